"""How a client ends: well, by an exception, with unfinished business."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from clients import ITEM, USER, alone, each_mode, ones, records_of
from inprocess import PATIENCE
from ps_proto.errors import ClientClosed, UnfinishedPush, Unreachable
from ps_proto.values import SGD, Async, Mode, Sync
from ps_worker.asking import Patience
from ps_worker.client import Client


@each_mode
def test_close_finishes_a_step_that_has_pushes_leaves_and_waits(mode: Mode) -> None:
    cluster, client = alone(mode, 2, ITEM)
    with client:
        client.push_async("item", np.arange(20), ones(20, 2))
    assert client.clock == 1
    assert cluster.coordinator.job is not None
    assert cluster.coordinator.job.is_over
    with cluster.connect() as observer:
        assert observer.pull("item", np.arange(20)).tolist() == ones(20, 2, -1.0).tolist()


def test_close_does_not_finish_a_step_without_pushes() -> None:
    _, client = alone(Sync())
    client.pull("user", [1])
    client.end_step()
    client.close()
    assert client.clock == 1


def fail_in_with(client: Client, action: Callable[[], Any]) -> None:
    """Leave `with` by an exception, after the action."""

    def body() -> None:
        with client:
            action()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()


def test_an_exception_in_with_neither_finishes_the_step_nor_leaves() -> None:
    cluster, client = alone(Sync(), 2, ITEM)
    fail_in_with(client, lambda: client.push("item", [1], ones(1, 2)))
    job = cluster.coordinator.job
    assert job is not None
    assert job.ranks == {0: 1}
    assert all(shard.step == 0 for shard in cluster.shards.values())
    with cluster.connect(0, 1, Sync()) as again:  # redoes the step
        assert again.clock == 0
        again.push("item", [1], ones(1, 2))
        again.end_step()
        assert again.pull("item", [1]).tolist() == [[-1, -1]]


def test_an_exception_in_with_does_not_wait_for_what_is_queued() -> None:
    cluster, client = alone(Async(), 2, ITEM, patience=Patience(10.0, 1_000.0, 1_000.0, PATIENCE.backoff))
    cluster.down.add("server-0:0")
    cluster.down.add("server-1:0")
    handles: list[Any] = []
    fail_in_with(client, lambda: handles.extend([client.push_async("item", np.arange(20), ones(20, 2)), client.pull_async("item", [1])]))
    assert all(handle.done() for handle in handles)
    for handle in handles:
        with pytest.raises(ClientClosed):
            handle.result()


def test_close_with_unfinished_business_says_so_and_still_closes() -> None:
    cluster, client = alone(Sync(), 2, ITEM)
    cluster.down.add("server-1:0")
    with pytest.raises(Unreachable):
        client.push("item", np.arange(20), ones(20, 2))
    with pytest.raises(UnfinishedPush):
        client.close()
    client.close()
    with pytest.raises(ClientClosed):
        client.retry_push()


def test_a_closed_client_refuses_everything_by_name() -> None:
    _, client = alone()
    parts = client.export_iter("user")
    client.push("user", np.arange(40), ones(40))
    next(parts)
    saved = records_of(client, "user")
    client.close()
    client.close()
    for attempt, action in (
        (lambda: client.pull("user", [1]), "pull"),
        (lambda: client.pull_async("user", [1]), "pull"),
        (lambda: client.push("user", [1], ones(1)), "push"),
        (lambda: client.push_async("user", [1], ones(1)), "push"),
        (lambda: client.assign("user", [1], ones(1)), "assign rows"),
        (client.retry_push, "push"),
        (client.end_step, "end a step"),
        (client.flush, "flush"),
        (client.barrier, "wait at a barrier"),
        (lambda: client.create_table(USER), "create a table"),
        (lambda: client.set_optimizer("user", SGD()), "set an optimizer"),
        (lambda: client.export("user"), "export"),
        (lambda: next(client.export_records("user")), "export"),
        (lambda: client.restore("user", saved), "restore rows"),
        (lambda: client.clear("user"), "clear a table"),
        (lambda: client.spec("user"), "ask for a table"),
        (lambda: next(parts), "export"),
        (client.stats, "ask for stats"),
    ):
        with pytest.raises(ClientClosed, match=f"This client is closed, so it cannot {action}. Connect again."):
            attempt()
    with pytest.raises(ClientClosed), client:
        client.pull("user", [1])
