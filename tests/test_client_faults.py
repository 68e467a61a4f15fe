"""Lost messages, and servers that are away or full."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from clients import ITEM, alone, each_mode, ones
from inprocess import PATIENT, Fault
from ps_proto.errors import PushPartlyTaken, UnfinishedPush, Unreachable
from ps_proto.requests import Assign, Finish, LeaveJob, OpenExport, Pull, Push, ReadExport
from ps_proto.values import SGD, Async, Mode, Sync, TableSpec


@pytest.mark.parametrize("body", [Push, Pull, Finish, Assign, OpenExport, ReadExport, LeaveJob], ids=lambda body: body.__name__)
@pytest.mark.parametrize("is_lost", [True, False], ids=["request", "answer"])
@each_mode
def test_a_lost_message_changes_nothing(body: type, is_lost: bool, mode: Mode) -> None:
    cluster, client = alone(mode, 2, TableSpec("item", 2, SGD(1.0)), patience=PATIENT)
    fault = Fault(body, is_lost=is_lost, count=2)
    cluster.faults.append(fault)
    with client:
        client.assign("item", np.arange(20), ones(20, 2, 50.0))
        for _ in range(3):
            client.pull("item", np.arange(20))
            client.push("item", np.arange(20), ones(20, 2))
            client.end_step()
        ids, rows = client.export("item")
        assert ids.tolist() == list(range(20))
        assert rows.tolist() == ones(20, 2, 47.0).tolist()
    assert fault.fired == 2
    assert cluster.coordinator.job is not None
    assert cluster.coordinator.job.is_over


@each_mode
def test_a_push_that_one_server_did_not_answer_is_sent_again_under_its_name(mode: Mode) -> None:
    cluster, client = alone(mode, 2, ITEM)
    gradients = ones(20, 2)
    with client:
        cluster.down.add("server-1:0")
        with pytest.raises(Unreachable, match="server-1"):
            client.push("item", np.arange(20), gradients)
        attempts: list[Callable[[], Any]] = [
            lambda: client.push("item", [1], ones(1, 2)),
            lambda: client.assign("item", [1], ones(1, 2)),
            client.end_step,
            client.flush,
        ]
        for attempt in attempts:
            with pytest.raises(UnfinishedPush, match=r"Call client.retry_push\(\), or connect again with this rank"):
                attempt()
        gradients[:] = 1000.0  # the caller's buffer is free again: the push keeps what it was
        with pytest.raises(Unreachable):
            client.retry_push()
        cluster.down.clear()
        client.retry_push()
        client.retry_push()  # nothing to do
        client.end_step()
        assert client.pull("item", np.arange(20)).tolist() == ones(20, 2, -1.0).tolist()
        names = {(body.fence.clock, body.seq) for _, body in cluster.calls if isinstance(body, Push)}
        assert names == {(0, 1)}


def test_a_push_that_one_server_refused_and_another_took_stays_unfinished() -> None:
    cluster, client = alone(Async(), 2, TableSpec("item", 2, SGD(1.0)), rows_max=40)
    with client:
        client.push("item", np.arange(40), ones(40, 2))
        cluster.shards["server-0"].tables["item"]._slab.capacity = len(cluster.shards["server-0"].tables["item"])
        with pytest.raises(PushPartlyTaken, match="has no room beyond"):
            client.push("item", np.arange(60), ones(60, 2))
        with pytest.raises(UnfinishedPush):
            client.push("item", [1], ones(1, 2))
        cluster.shards["server-0"].tables["item"]._slab.capacity = 40
        client.retry_push()
        assert client.pull("item", np.arange(60))[:, 0].tolist() == [-2.0] * 40 + [-1.0] * 20


def test_the_cores_agree_after_everything() -> None:
    cluster, client = alone(Sync(), 3)
    with client:
        client.push({"user": (np.arange(30), ones(30)), "item": ([1], ones(1, 2))})
    for shard in cluster.shards.values():
        shard.check_invariants()
        assert (shard.step, shard.staging.rows_count) == (1, 0)
