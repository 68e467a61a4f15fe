"""The coordinator's orders that ride in a rank's *finished* and hold from the fold of a step on: of that one, or as is decided (R8, R9).

No server can fold the step without them, so all follow them between the same two steps.
"""

from ps_proto.errors import InvalidRequest
from ps_proto.requests import StepOrder

ADMIT = "admit"


class StepOrders:
    """Those of steps that are not folded, and the numbers of those that were followed: an order may ride in several steps."""

    def __init__(self) -> None:
        self._waiting: dict[int, dict[int, StepOrder]] = {}  # step -> number -> order
        self._followed: set[int] = set()

    def clear(self) -> None:
        """Forget everything: another job begins, or the cluster has gone back."""
        self._waiting.clear()
        self._followed.clear()

    def check(self, orders: tuple[StepOrder, ...], world_size: int) -> None:
        """Raise InvalidRequest for orders that cannot be followed, in a job of so many ranks."""
        admitted = {order.rank for waiting in self._waiting.values() for order in waiting.values()}
        for order in orders:
            if order.kind != ADMIT:
                raise InvalidRequest("kind of an order", repr(order.kind), repr(ADMIT))
            admitted.add(order.rank)
            rank_max = max(world_size, len({rank for rank in admitted if rank >= world_size}) + world_size - 1)
            if not 0 <= order.rank <= rank_max:
                raise InvalidRequest("rank of an order", str(order.rank), f"from 0 to {rank_max}, which is the next one")

    def keep(self, step: int, orders: tuple[StepOrder, ...]) -> None:
        """Keep what is to be done once `step` is folded."""
        if orders:
            self._waiting.setdefault(step, {}).update({order.number: order for order in orders})

    def take(self, step: int) -> list[StepOrder]:
        """Return what is to be done between this step, which is folded, and the next one, by number; each number is returned once."""
        orders = [order for _, order in sorted(self._waiting.pop(step, {}).items()) if order.number not in self._followed]
        self._followed |= {order.number for order in orders}
        return orders

    @property
    def steps(self) -> list[int]:
        """The steps with which an order waits."""
        return list(self._waiting)
