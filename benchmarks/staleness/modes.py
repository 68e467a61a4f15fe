"""The modes of W8, as `--mode` and the results call them: "sync", a staleness bound, "async"."""

MODES = ("sync", "1", "2", "4", "8", "16", "async")

# Li et al., "Scaling distributed machine learning with the parameter server", OSDI'14, §5.1: the share of time that workers waited, sparse
# logistic regression on 1,000 machines. Their bound 0 waits for every rank in each step, as our synchronous mode does.
OSDI_14_IDLE = {"sync": 0.50, "16": 0.017}


def spoken(mode: str) -> str:
    """Return what a table or a plot calls it."""
    return mode if mode in ("sync", "async") else f"bound {mode}"
