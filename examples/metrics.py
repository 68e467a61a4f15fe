"""How good a click model's scores are: the area under the ROC curve and the log loss."""

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.float32]
Logits = npt.NDArray[np.float32] | npt.NDArray[np.float64]


def auc(labels: Labels, scores: Logits) -> float:
    """Return the chance that a random click scores above a random other row; a tie counts as one half.

    labels  float32[n], 0 or 1, both present.     scores  float[n], any increasing function of the probability; no NaN.
    The Mann-Whitney U by ranks, where equal scores share their mean rank, so ties are exact. O(n log n).
    Raises ValueError where one class is missing, a score is NaN or the lengths differ.

    >>> auc(np.float32([0, 0, 1, 1]), np.float32([0.1, 0.4, 0.4, 0.8]))
    0.875
    """
    _check(labels, scores)
    clicks = labels > 0.5
    clicks_count = int(np.count_nonzero(clicks))
    others_count = labels.size - clicks_count
    if clicks_count == 0 or others_count == 0:
        raise ValueError(f"AUC needs both classes, but {clicks_count} of {labels.size} rows are clicks.")
    _, group, group_sizes = np.unique(scores, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(group_sizes) - (group_sizes - 1) / 2
    rank_sum = float(mean_ranks[group[clicks]].sum())
    return (rank_sum - clicks_count * (clicks_count + 1) / 2) / (clicks_count * others_count)


def log_loss(labels: Labels, logits: Logits) -> float:
    """Return the mean of -log p(label), in nats, where p(1) = 1 / (1 + exp(-logit)).

    labels  float32[n], 0 or 1.     logits  float[n], no NaN. Exact for logits of any size, as log(1 + exp z) - y·z never overflows.
    Raises ValueError where there is no row, a logit is NaN or the lengths differ.
    """
    _check(labels, logits)
    wide = logits.astype(np.float64)
    return float(np.mean(np.logaddexp(0.0, wide) - labels * wide))


def _check(labels: Labels, scores: Logits) -> None:
    if labels.shape != scores.shape or labels.ndim != 1 or labels.size == 0:
        raise ValueError(f"Labels {labels.shape} and scores {scores.shape} must be two vectors of one length, at least 1.")
    if np.isnan(scores).any():
        raise ValueError(f"{int(np.isnan(scores).sum())} of {scores.size} scores are NaN.")
