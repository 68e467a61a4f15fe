"""What a rank says about its own steps: that one is finished, that it leaves; and its wait for the fold (R4, R6)."""

from ps_proto.errors import InvalidRequest
from ps_proto.requests import OBSERVER, Done, Finish
from ps_server.events import Body
from ps_server.shard.catalog import Catalog
from ps_server.shard.key_lists import KeyLists
from ps_server.shard.membership import Membership
from ps_server.shard.parking import Parking, Wait
from ps_server.shard.steps import Steps


class Finisher:
    """The turn of Finish."""

    def __init__(self, membership: Membership, catalog: Catalog, steps: Steps, key_lists: KeyLists, parking: Parking) -> None:
        self._membership = membership
        self._catalog = catalog
        self._steps = steps
        self._key_lists = key_lists
        self._parking = parking

    def finish(self, request: int, finish: Finish, now_s: float) -> Body | None:
        """Take what is finished; where the rank waits, answer once its last step is folded."""
        self._membership.check(finish.fence)
        if finish.fence.rank == OBSERVER:
            raise InvalidRequest("rank", "none", "a rank: an observer finishes nothing")
        if finish.finished is not None:
            self._steps.learn(finish.fence.rank, finish.finished)
        if finish.leave:
            self._steps.leave(finish.fence.rank)
            self._key_lists.forget(finish.fence.rank)
        if finish.wait_s <= 0:
            return Done(self._steps.step)
        last = self._steps.clocks.finished[finish.fence.rank]

        def attempt() -> Done | None:
            return Done(self._steps.step) if self._steps.step > last or not self._catalog.has_synchronous else None

        wait = Wait(finish.fence, finish.wait_s, attempt, lambda after_s: self._steps.timeout(last + 1, 0, after_s))
        return self._parking.answer_or_park(request, wait, now_s)
