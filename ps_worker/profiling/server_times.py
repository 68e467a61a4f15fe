"""What the servers say of the time between two looks at them, of this rank's requests and of all ranks'."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ps_proto.requests import Stats
from ps_worker.profiling.stopwatch import Carried
from ps_worker.profiling.taps import END, PULL, PUSH

KINDS = {PULL: "pull", PUSH: "push", END: "finish"}  # ours -> the servers' own word


@dataclass(frozen=True)
class Split:
    """How a call's time is divided, of 1.

    parked   at the server, until the mode let it go on: for other ranks.     turns  the server's own work for it.
    """

    parked: float
    turns: float

    @property
    def wire(self) -> float:
        """The rest: the way there and back, being woken up, and standing behind others' requests."""
        return 1.0 - self.parked - self.turns


NOTHING_KNOWN = Split(0.0, 0.0)


@dataclass(frozen=True)
class ServerTimes:
    """What the servers did between two looks.

    splits     of this rank's calls, by kind: seconds of all servers together, against those of all calls together.
    parked_s   by rank: how long its requests were parked, all servers together; every rank that a server has answered.
    busy       by server: its processor time for each second.     turns  the same of its turns, so of one processor at most.
    """

    splits: Mapping[str, Split]
    parked_s: Mapping[int, float]
    busy: Mapping[str, float]
    turns: Mapping[str, float]

    @classmethod
    def between(
        cls, before: Mapping[str, Stats], after: Mapping[str, Stats], rank: int, calls_s: Mapping[str, float], wall_s: float
    ) -> "ServerTimes":
        """Compare two looks, `wall_s` apart. `calls_s`: the seconds of this rank's calls in between, by kind."""
        servers = [(name, before[name], after[name]) for name in sorted(before.keys() & after.keys())]
        splits = {}
        for kind, total_s in calls_s.items():
            if kind in KINDS and total_s > 0.0:
                parked_s, turns_s = [
                    sum(
                        [
                            _of_rank(new, rank, f"{KINDS[kind]}_{what}") - _of_rank(old, rank, f"{KINDS[kind]}_{what}")
                            for _, old, new in servers
                        ]
                    )
                    for what in ("parked_s", "turn_s")
                ]
                parked = min(1.0, max(0.0, parked_s / total_s))
                splits[kind] = Split(parked, min(1.0 - parked, max(0.0, turns_s / total_s)))
        parked_by_rank: defaultdict[int, float] = defaultdict(float)
        for _, old, new in servers:
            for other in new.ranks:
                since_s = sum(
                    [_of_rank(new, other, f"{word}_parked_s") - _of_rank(old, other, f"{word}_parked_s") for word in KINDS.values()]
                )
                parked_by_rank[other] += since_s
        return cls(
            splits,
            dict(sorted(parked_by_rank.items())),
            {name: _rate(old, new, "cpu_s", wall_s) for name, old, new in servers},
            {name: _rate(old, new, "turns_s", wall_s) for name, old, new in servers},
        )


def calls_s(carried: Sequence[Carried]) -> dict[str, float]:
    """Return the seconds of calls by kind."""
    total: defaultdict[str, float] = defaultdict(float)
    for call in carried:
        total[call.kind] += call.end_s - call.begin_s
    return total


def _of_rank(stats: Stats, rank: int, name: str) -> float:
    return stats.ranks.get(rank, {}).get(name, 0.0)


def _rate(old: Stats, new: Stats, name: str, wall_s: float) -> float:
    return (new.server.get(name, 0.0) - old.server.get(name, 0.0)) / wall_s if wall_s > 0.0 else 0.0
