"""Whose a rank is that was given to somebody who joined: by which name, and from which step on."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ps_proto.requests import NEVER
from ps_server.coordinator.stored import StoredHolder

HOLDERS_KEPT = 8  # of a rank: a rollback comes back to one of the last


class Holders:
    """The ranks of a job that were given to joining workers. A rank that nobody holds is of a worker that says its number.

    Who holds a rank holds it for good, also where it is lost, removed or started again, until it has left and somebody else takes the rank.
    After a rollback a rank is whose it was at the checkpoint: the last one's who held it and had begun by then. `since`: the first step of
    the one who holds it; NEVER while the admission is under way.
    """

    def __init__(self, stored: Sequence[StoredHolder] = ()) -> None:
        self._holders = list(stored)  # those of one rank in the order in which they took it

    def stored(self) -> tuple[StoredHolder, ...]:
        """Return what is to be stored of it."""
        return tuple(self._holders)

    def name_of(self, rank: int) -> str:
        """Return by which name the rank is held, "" where nobody holds it."""
        holder = self._last(rank)
        return holder.name if holder is not None else ""

    def since(self, rank: int) -> int:
        """Return with which step the rank's holder began; NEVER where nobody holds it, or the holder has yet to begin."""
        holder = self._last(rank)
        return holder.since if holder is not None else NEVER

    def ranks(self) -> set[int]:
        """Return every rank that somebody holds."""
        return {holder.rank for holder in self._holders}

    def ranks_of(self, name: str) -> list[int]:
        """Return the ranks that a name holds, the one that it took last first. It has left all of them but one."""
        ranks = dict.fromkeys([holder.rank for holder in reversed(self._holders) if holder.name == name])
        return [rank for rank in ranks if self.name_of(rank) == name]

    def take(self, rank: int, name: str) -> None:
        """Let a name hold the rank from now on."""
        self._holders.append(StoredHolder(rank, name, NEVER))
        of_rank = [holder for holder in self._holders if holder.rank == rank]
        for old in of_rank[:-HOLDERS_KEPT]:
            self._holders.remove(old)

    def begin(self, rank: int, since: int) -> None:
        """Let the one who holds the rank begin with a step, who has not yet."""
        holder = self._last(rank)
        if holder is not None and holder.since == NEVER:
            self._holders[self._holders.index(holder)] = replace(holder, since=since)

    def go_back(self, finished: Mapping[int, int], admitted: Mapping[int, int]) -> set[int]:
        """Be as at a checkpoint, where each rank of the job has finished this step; return the ranks that change hands.

        admitted  rank -> the first step of whoever was admitted to it last at the checkpoint, where that is news: all servers had
                  followed the order by then, and it is of the one whose admission was under way until now.
        """
        for rank, since in admitted.items():
            self.begin(rank, since)
        before = list(self._holders)
        self._holders = [holder for holder in before if holder.since != NEVER and holder.since - 1 <= finished.get(holder.rank, NEVER)]
        return {holder.rank for holder in before if holder not in self._holders}

    def _last(self, rank: int) -> StoredHolder | None:
        return next((holder for holder in reversed(self._holders) if holder.rank == rank), None)
