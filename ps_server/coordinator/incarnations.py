"""Every rank's newest incarnation, and which tries to join became which (R7)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ps_server.coordinator.journal import Journal
from ps_server.coordinator.stored import StoredNonce, StoredRank, rank_key

NONCES_KEPT = 8  # of a rank: a message that is repeated comes soon


@dataclass
class _Rank:
    incarnation: int = 0
    is_in: bool = False
    has_left: bool = False
    nonces: dict[int, int] = field(default_factory=dict)  # nonce -> the incarnation it became, oldest first


class Incarnations:
    """A new incarnation is stored before any server hears of it, so that none is given twice."""

    def __init__(self, stored: Mapping[int, StoredRank], journal: Journal) -> None:
        self._ranks = {
            rank: _Rank(one.incarnation, one.is_in, one.has_left, {nonce.nonce: nonce.incarnation for nonce in one.nonces})
            for rank, one in stored.items()
        }
        self._journal = journal

    def newest(self, rank: int) -> int:
        """Return the newest incarnation of a rank, 0 where it has none."""
        return self._ranks[rank].incarnation if rank in self._ranks else 0

    def became(self, rank: int, nonce: int) -> int | None:
        """Return the incarnation that a try to join became; None where it is a new one, or one of long ago."""
        return self._ranks[rank].nonces.get(nonce) if rank in self._ranks else None

    def rank_of(self, nonce: int) -> int | None:
        """Return the rank that a try to join was given; None where it is a new one, or one of long ago."""
        return next((number for number, rank in self._ranks.items() if nonce in rank.nonces), None)

    def known(self) -> list[int]:
        """Return every rank that has an incarnation."""
        return list(self._ranks)

    def inside(self) -> dict[int, int]:
        """Return the incarnation of each rank whose newest one takes part in the job."""
        return {number: rank.incarnation for number, rank in self._ranks.items() if rank.is_in}

    def has_left(self, rank: int) -> bool:
        """Say whether the rank's newest incarnation took part in a job and has left it."""
        return rank in self._ranks and self._ranks[rank].has_left

    def begin(self, rank: int, nonce: int | None = None) -> int:
        """Return the rank's next incarnation, which takes no part yet; `nonce`: of the try to join that becomes it."""
        have = self._ranks.setdefault(rank, _Rank())
        have.incarnation, have.is_in, have.has_left = have.incarnation + 1, False, False
        if nonce is not None:
            have.nonces.pop(nonce, None)  # a second incarnation of the same try is the newest of all
            have.nonces[nonce] = have.incarnation
            while len(have.nonces) > NONCES_KEPT:
                del have.nonces[next(iter(have.nonces))]
        self._keep(rank)
        return have.incarnation

    def forget_tries(self, rank: int) -> None:
        """Let every try to join that was given the rank be a new one."""
        self._ranks[rank].nonces.clear()
        self._keep(rank)

    def join(self, rank: int) -> None:
        """Let the newest incarnation take part."""
        self._ranks[rank].is_in = True
        self._keep(rank)

    def leave(self, rank: int) -> None:
        """End the part of the newest incarnation, if it takes any."""
        if rank in self._ranks and self._ranks[rank].is_in:
            self._ranks[rank].is_in, self._ranks[rank].has_left = False, True
            self._keep(rank)

    def clear(self) -> None:
        """Let no incarnation take part any more; none has left either."""
        for number, rank in self._ranks.items():
            if rank.is_in or rank.has_left:
                rank.is_in = rank.has_left = False
                self._keep(number)

    def _keep(self, number: int) -> None:
        rank = self._ranks[number]
        nonces = tuple([StoredNonce(nonce, incarnation) for nonce, incarnation in rank.nonces.items()])
        self._journal.put(rank_key(number), StoredRank(rank.incarnation, rank.is_in, rank.has_left, nonces))
