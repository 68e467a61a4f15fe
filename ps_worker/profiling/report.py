"""A profile as lines for people."""

from ps_worker.profiling.breakdown import CLIENT, COMPUTE, GROUPS, PARKED, RETRIES, STEP, TURNS, WIRE, Breakdown, Row
from ps_worker.profiling.server_times import ServerTimes
from ps_worker.profiling.stopwatch import LOAD
from ps_worker.profiling.taps import BARRIER, END, OTHER, PULL, PUSH

LABELS = {
    STEP: "the whole step",
    COMPUTE: "your own code",
    LOAD: "reading batches (ps.prefetch's loader)",
    "pulls": "blocked in pulls",
    "pushes": "blocked in pushes and ends of steps",
    "worker": "the client's work in your thread",
    BARRIER: "barriers",
    OTHER: "other calls",
}
PART_LABELS = {
    PARKED: "waiting for other ranks",
    TURNS: "the servers' turns",
    WIRE: "wire and wake-ups",
    RETRIES: "pauses before asking again",
    CLIENT: "the client's work in its thread",
    "ids": "ids: repeats, split, join",
    "tensors": "rows into tensors",
    "pooling": "pooling",
    "pooling back": "pooling, backward",
    "gradients": "gradients: sums, checks, copies",
    "steps": "ends of steps",
}
ORDER = (STEP, COMPUTE, LOAD, "pulls", "pushes", "worker", BARRIER, OTHER)
BESIDE_LABELS = {PULL: "pulls", PUSH: "pushes", END: "ends of steps"}


def table(breakdown: Breakdown) -> list[str]:
    """Return the rows, in milliseconds; those that are zero throughout are left out."""
    lines = [f"{'milliseconds a step':<42}{'mean':>10}{'p50':>10}{'p99':>10}{'share':>8}"]
    for name in ORDER:
        row = breakdown.rows[name]
        if row.mean_s > 0.0 or name in (STEP, COMPUTE):
            lines.append(_line(LABELS[name], row))
            parts = [(part, breakdown.rows[f"{name}.{part}"]) for part in GROUPS.get(name, ())]
            lines += [_line(f"    {PART_LABELS[part]}", row) for part, row in parts if row.mean_s > 0.0]
    return lines


def _line(label: str, row: Row) -> str:
    numbers = "".join([f"{seconds * 1e3:>10.3f}" for seconds in (row.mean_s, row.p50_s, row.p99_s)])
    return f"{label:<42}{numbers}{row.share:>8.1%}"


def beside(breakdown: Breakdown) -> list[str]:
    """Return what ran beside the training, and what travelled."""
    lines = [
        f"beside it, in the client's threads: {BESIDE_LABELS[kind]} {seconds * 1e3:.3f} ms a step, {breakdown.hidden[kind]:.0%} hidden"
        for kind, seconds in breakdown.beside_s.items()
    ]
    return [*lines, f"a step sends {_size(breakdown.sent_bytes)} of ids and rows, and receives {_size(breakdown.received_bytes)}"]


def servers(times: ServerTimes | None, is_running: bool) -> list[str]:
    """Return what the servers said of themselves and of all ranks. `is_running`: they are asked only when the profile ends."""
    if times is None:
        why = "the servers are asked what they did when the profile ends" if is_running else "the servers did not say what they did"
        return [f"{why}: waiting and their turns are among wire and wake-ups"]
    lines = [f"{name} used {busy:.0%} of a processor, turns took {times.turns[name]:.0%}" for name, busy in times.busy.items()]
    if len(times.parked_s) > 1:
        lines.append(f"waited for others at the servers: {', '.join([f'rank {rank} {it:.3f} s' for rank, it in times.parked_s.items()])}")
    return lines


def _size(nbytes: float) -> str:
    return f"{nbytes / 2**20:.2f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:.2f} KiB"
