"""One sentence that says what to look at first, from a breakdown's numbers."""

from collections.abc import Mapping

from ps_worker.profiling.breakdown import COMPUTE, PARKED, RETRIES, TURNS, WIRE, Breakdown
from ps_worker.profiling.server_times import ServerTimes
from ps_worker.profiling.stopwatch import LOAD
from ps_worker.profiling.taps import BARRIER, PULL, PUSH

PAGE = "docs/performance.md"
SHARE_MIN = 0.1  # of the step: below it there is little to win
SLOWEST_MAX = 0.5  # of what the others wait on average: a rank that waits less holds them up
BUSY_MIN = 0.8  # of a processor: beyond it a server, which is one thread, holds others up

# What may take most of a step -> the heading of the page that says what to turn.
ANCHORS = {
    PARKED: "waiting-for-other-ranks",
    TURNS: "the-servers-work",
    WIRE: "wire-and-wake-ups",
    RETRIES: "pauses",
    "worker": "the-clients-work",
    LOAD: "reading-batches",
    BARRIER: "waiting-for-other-ranks",
    COMPUTE: "your-own-code",
}


def advice(breakdown: Breakdown, servers: ServerTimes | None, rank: int, is_synchronous: bool) -> str:
    """Return one sentence, with the place to read on. `is_synchronous`: whether a table is, so that nothing may overlap a step's end."""
    shares = shares_of(breakdown)
    cause = max([name for name in ANCHORS if name != COMPUTE], key=lambda name: shares[name])
    if shares[cause] < SHARE_MIN:
        cause = COMPUTE
    return f"{_sentence(cause, shares[cause], breakdown, servers, rank, is_synchronous)}; see {PAGE}#{ANCHORS[cause]}."


def shares_of(breakdown: Breakdown) -> Mapping[str, float]:
    """Return of each cause how much of the step it takes, of 1; pulls and pushes together."""
    rows = breakdown.rows
    blocked = {part: rows[f"pulls.{part}"].share + rows[f"pushes.{part}"].share for part in (PARKED, TURNS, WIRE, RETRIES)}
    client = rows["worker"].share + rows["pulls.client"].share + rows["pushes.client"].share
    return {**blocked, "worker": client, **{name: rows[name].share for name in (LOAD, BARRIER, COMPUTE)}}


def _sentence(cause: str, share: float, breakdown: Breakdown, servers: ServerTimes | None, rank: int, is_synchronous: bool) -> str:
    part = f"{share:.0%} of the step"
    if cause == PARKED:
        return f"{part} waits for other ranks{_slowest(servers, rank)}"
    if cause == BARRIER:
        return f"{part} waits at barriers"
    if cause == TURNS:
        return f"{part} waits for the servers' own work{_busiest(servers)}: more servers share it"
    if cause == WIRE:
        busiest = _busiest(servers)
        if busiest:
            return f"{part} is wire and wake-ups{busiest}: more servers share what comes"
        return f"{part} is wire and wake-ups: {_hint(breakdown, is_synchronous)}"
    if cause == RETRIES:
        return f"{part} pauses before asking servers again that gave no answer, or not yet: their logs say why"
    if cause == LOAD:
        return f"{part} waits for the loader's next batch: a DataLoader with workers reads beside the training"
    if cause == COMPUTE:
        return f"{share:.0%} of the step is your own code, and no part of ours is above {SHARE_MIN:.0%}: there is little to win here"
    return f"{part} is the client's own work on ids and rows"


def _hint(breakdown: Breakdown, is_synchronous: bool) -> str:
    """Return what makes less of the wire to be seen."""
    if is_synchronous:
        return "larger batches make it less, and over a network a table's `wire` of fewer bytes"
    if breakdown.rows["pushes.wire"].share > breakdown.rows["pulls.wire"].share:
        if PUSH in breakdown.beside_s:
            return "a push takes longer than the step beside it, so larger batches help, or more servers"
        return "overlap_pushes=True lets gradients travel beside the next step"
    if PULL in breakdown.beside_s:
        return "a greater depth of ps.prefetch hides more of it"
    return "ps.prefetch lets rows travel beside the step before"


def _slowest(servers: ServerTimes | None, rank: int) -> str:
    """Return who holds the others up: of several ranks, the one whose requests were parked the least, where that is much less."""
    if servers is None or len(servers.parked_s) < 2:
        return ""
    slowest = min(servers.parked_s, key=lambda one: servers.parked_s[one])
    others = [parked_s for rank, parked_s in servers.parked_s.items() if rank != slowest]
    if servers.parked_s[slowest] > SLOWEST_MAX * sum(others) / len(others):
        return ", now for one and now for another: each waits much the same"
    if slowest == rank:
        return "; yet it waits the least of all ranks"
    return f": rank {slowest}, which waits the least, is the slowest"


def _busiest(servers: ServerTimes | None) -> str:
    """Return which server has no time left; nothing where each has."""
    if servers is None or not servers.busy:
        return ""
    busiest = max(servers.busy, key=lambda name: servers.busy[name])
    return f", and {busiest} uses {servers.busy[busiest]:.0%} of a processor" if servers.busy[busiest] >= BUSY_MIN else ""
