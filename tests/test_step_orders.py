"""Orders that ride in finished steps: which are taken, and when each is done."""

import pytest

from ps_proto.errors import InvalidRequest
from ps_proto.requests import StepOrder
from ps_server.shard.step_orders import StepOrders


def admit(number: int, rank: int) -> StepOrder:
    return StepOrder(number, "admit", rank, 1)


def test_orders_wait_for_their_step_and_are_done_once_by_number() -> None:
    orders = StepOrders()
    orders.keep(4, (admit(2, 1), admit(1, 0)))
    orders.keep(4, (admit(2, 1),))  # the same one, carried by another rank
    orders.keep(5, (admit(2, 1), admit(3, 2)))
    orders.keep(6, ())
    assert orders.steps == [4, 5]
    assert orders.take(3) == []
    assert orders.take(4) == [admit(1, 0), admit(2, 1)]
    assert orders.take(5) == [admit(3, 2)]
    assert orders.take(5) == []
    orders.keep(7, (admit(1, 0),))
    assert orders.take(7) == []
    orders.keep(8, (admit(4, 0),))
    orders.clear()
    assert orders.take(8) == []
    orders.keep(1, (admit(1, 0),))
    assert orders.take(1) == [admit(1, 0)], "of another job"


def test_orders_that_cannot_be_followed_are_refused() -> None:
    orders = StepOrders()
    orders.check((), 2)
    orders.check((admit(1, 0), admit(2, 2), admit(3, 3)), 2)
    with pytest.raises(InvalidRequest, match=r"rank of an order is 3, but must be from 0 to 2, which is the next one"):
        orders.check((admit(1, 3),), 2)
    with pytest.raises(InvalidRequest, match="rank of an order is -1"):
        orders.check((admit(1, -1),), 2)
    with pytest.raises(InvalidRequest, match="kind of an order is 'move', but must be 'admit'"):
        orders.check((StepOrder(1, "move", 0, 1),), 2)
    orders.keep(4, (admit(1, 2),))
    orders.check((admit(2, 3),), 2)
