"""What is queued runs beside the training, in its order."""

import threading
import weakref
from typing import Any

import numpy as np
import pytest

from clients import ITEM, alone, each_mode, in_thread, ones
from inprocess import PATIENCE, Fault, InProcess
from naive.table import NaiveTable
from ps_proto.errors import TableFull, UnfinishedPush, Unreachable
from ps_proto.requests import Finish, Pull, Push
from ps_proto.values import Adagrad, Async, BoundedStaleness, Mode, Sync, TableSpec
from ps_worker.asking import Patience


@each_mode
def test_queued_pushes_come_in_order_and_end_step_waits_for_them(mode: Mode) -> None:
    cluster, client = alone(mode, 2, TableSpec("item", 2, Adagrad(0.5)))
    with client:
        handles = [client.push_async("item", [1], ones(1, 2, float(k + 1))) for k in range(8)]
        client.end_step()
        assert all(handle.done() for handle in handles)
        assert {handle.result() for handle in handles} == {None}
        order = [body.seq for _, body in cluster.calls if isinstance(body, Push)]
        assert order == list(range(1, 9))
        naive = NaiveTable(TableSpec("item", 2, Adagrad(0.5)))
        gradients = [ones(1, 2, float(sum(range(1, 9))))] if mode == Sync() else [ones(1, 2, float(k + 1)) for k in range(8)]
        for gradient in gradients:
            naive.update([1], gradient, Adagrad(0.5).parameters())
        assert client.pull("item", [1]).tobytes() == naive.pull([1])[0].tobytes()


@pytest.mark.parametrize(("mode", "steps"), [(Async(), 0), (BoundedStaleness(2), 0), (BoundedStaleness(1), 1), (Sync(), 2)], ids=str)
def test_a_pull_for_a_later_step_is_sent_once_its_mode_lets_it(mode: Mode, steps: int) -> None:
    cluster, client = alone(mode, 1, ITEM)
    with client:
        handle = client.pull_async("item", [1], clock=2)
        cancelled = client.pull_async("item", [1], clock=3)
        cancelled.cancel()
        for _ in range(steps):
            assert not client.can_pull_ahead(["item"], 2)
            assert not any(isinstance(body, Pull) for _, body in cluster.calls)
            client.end_step()
        assert client.can_pull_ahead(["item"], 2)
        assert handle.result().tolist() == [[0, 0]]
        for _ in range(4):
            client.end_step()
        client.flush()
        assert [body.fence.clock for _, body in cluster.calls if isinstance(body, Pull)] == [2]


def test_the_ids_of_a_queued_pull_may_be_changed_at_once() -> None:
    cluster, client = alone(Async(), 1, ITEM)
    with client:
        ids = np.arange(2_000, dtype=np.uint64)
        values = np.repeat(np.arange(2_000, dtype=np.float32)[:, None], 2, axis=1)
        client.assign("item", ids, values)
        gate = threading.Event()

        def hold_pulls(address: str, body: Any) -> None:
            if isinstance(body, Pull):
                assert gate.wait(5.0)

        cluster.before = hold_pulls
        queued = [client.pull_async("item", ids) for _ in range(2)]  # one is at work, one waits in the queue
        ids[:] = 7
        gate.set()
        for handle in queued:
            assert handle.result().tolist() == values.tolist()


def test_a_queued_pull_is_of_the_step_at_work() -> None:
    cluster, client = alone(Sync(), 1, ITEM)
    with client:
        gate = threading.Event()

        def hold_pulls(address: str, body: Any) -> None:
            if isinstance(body, Pull):
                assert gate.wait(5.0)

        cluster.before = hold_pulls
        handle = client.pull_async("item", [1])
        client.push("item", [1], ones(1, 2))

        def finish() -> None:
            client.end_step()
            client.flush()

        thread, outcome = in_thread(finish)
        thread.join(0.1)  # were end_step not to wait, the step would be folded by then
        assert not outcome
        gate.set()
        thread.join()
        assert outcome == [None]
        assert handle.result().tolist() == [[0, 0]]  # not of the next step, and not StepPassed
        assert client.pull_async({"item": [1]}).result()["item"].tolist() == [[-1, -1]]


def test_a_queued_push_that_fails_says_so_and_is_unfinished_business() -> None:
    cluster, client = alone(Async(), 1, ITEM)
    with client:
        cluster.down.add("server-0:0")
        handle = client.push_async("item", [1], ones(1, 2))
        with pytest.raises(Unreachable, match="server-0 at server-0:0 did not answer"):
            handle.result(5.0)
        next_handle = client.push_async("item", [2], ones(1, 2))
        with pytest.raises(UnfinishedPush):
            next_handle.result(5.0)
        with pytest.raises(UnfinishedPush, match="Push 1 of step 0 was never acknowledged everywhere"):
            client.end_step()
        cluster.down.clear()
        client.retry_push()
        client.end_step()
        assert client.export("item")[0].tolist() == [1]


def test_the_error_of_a_queued_push_that_nobody_asked_about_is_raised_at_the_end_of_the_step() -> None:
    _, client = alone(Async(), 1, ITEM, rows_max=3)
    with client:
        client.push_async("item", np.arange(4), ones(4, 2))
        with pytest.raises(TableFull):
            client.end_step()
        client.end_step()  # said once
        heard = client.push_async("item", np.arange(4), ones(4, 2))
        with pytest.raises(TableFull):
            heard.result()
        client.end_step()


def test_pulls_that_are_asked_ahead_and_let_go_of_are_not_gathered() -> None:
    """An evaluation within ps.prefetch asks for the next step's rows at each batch, and no step comes."""
    _, client = alone(Sync())
    with client:
        made = []
        for _ in range(5):
            handle = client.pull_async("item", [1], clock=client.clock + 1)
            made.append(weakref.ref(handle))
            handle.cancel()
        del handle
        assert [one() is None for one in made] == [True] * 4 + [False]
        client.end_step()
        assert made[-1]() is None


def test_a_pull_that_waits_for_this_ranks_own_push_ends_when_that_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ps_worker.protocol.peers.WAIT_SLICE_S", 0.05)
    cluster = InProcess(1, patience=Patience(rpc_timeout_s=10.0, retry_timeout_s=0.05, wait_timeout_s=20.0, backoff=PATIENCE.backoff))
    with cluster.connect(0, 1, BoundedStaleness(0)) as client:
        client.create_table(ITEM)
        lost = Fault(Push, is_lost=True, count=1_000_000)
        cluster.faults.append(lost)
        client.push_async("item", [1], ones(1, 2))
        ended = client.end_step_async()
        with pytest.raises(Unreachable):
            client.pull("item", [1])  # for a step that begins once the one before is finished, of this rank too
        assert lost.fired
        with pytest.raises(UnfinishedPush):
            ended.result()
        cluster.faults.clear()
        client.retry_push()
        assert client.pull("item", [1]).tolist() == [[-1.0, -1.0]]


ON_ARRIVAL = [Async(), BoundedStaleness(0), BoundedStaleness(1)]


def told(cluster: InProcess, address: str) -> list[int]:
    """Which steps the server heard to be finished, in the order in which it heard of each first."""
    bodies = [body for to, body in cluster.calls if to == address and isinstance(body, Pull | Finish)]
    return list(dict.fromkeys([body.finished.clock for body in bodies if body.finished is not None]))


@pytest.mark.parametrize("mode", ON_ARRIVAL, ids=str)
def test_steps_that_end_without_a_wait_are_told_each_by_itself_and_in_order(mode: Mode) -> None:
    cluster, client = alone(mode, 2, ITEM)
    with client:
        handles = []
        for _ in range(20):
            client.push_async("item", [1, 2, 3], ones(3, 2))
            handles.append(client.end_step_async())
        assert client.clock == 20
        client.flush()
        assert [handle.result() for handle in handles] == [None] * 20
        assert client.pull("item", [1, 2, 3]).tolist() == [[-20, -20]] * 3
        for address in ("server-0:0", "server-1:0"):
            assert told(cluster, address) == list(range(20))


def test_a_push_that_fails_holds_up_the_ends_of_all_steps_behind_it_until_it_is_made() -> None:
    cluster, client = alone(Async(), 1, ITEM)
    with client:
        cluster.down.add("server-0:0")
        first = client.push_async("item", [1], ones(1, 2))
        ended = [client.end_step_async()]
        second = client.push_async("item", [2], ones(1, 2))
        ended.append(client.end_step_async())
        with pytest.raises(Unreachable):
            first.result(5.0)
        for behind in (second, *ended):
            with pytest.raises(UnfinishedPush, match="Push 1 of step 0"):
                behind.result(5.0)
        cluster.down.clear()
        assert told(cluster, "server-0:0") == []
        client.retry_push()
        assert told(cluster, "server-0:0") == [0, 1]
        client.push("item", [2], ones(1, 2))
        client.end_step()
        assert client.export("item")[0].tolist() == [1, 2]


def test_a_server_that_could_not_be_told_of_a_step_is_told_of_it_before_the_next() -> None:
    cluster, client = alone(Async(), 2, ITEM)
    with client:
        cluster.faults.append(Fault(Finish, "server-1:0", is_lost=True, count=1_000))
        ended = [client.end_step_async() for _ in range(3)]
        for handle in ended:
            with pytest.raises(Unreachable):
                handle.result(5.0)
        cluster.faults.clear()
        cluster.calls.clear()
        client.push("item", np.arange(8), ones(8, 2))
        client.flush()
        assert told(cluster, "server-1:0") == [0, 1, 2]
