"""Planning a batch beside the step before it: in which thread, and that nothing else changes."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import ps_worker as ps
from inprocess import InProcess
from polling import poll_until
from ps_proto.errors import ClientClosed, InvalidRequest
from ps_proto.requests import Pull
from ps_proto.values import SGD, Async, BoundedStaleness, Mode, Sync, Zeros
from ps_worker.nn.reading import Plan, RowModule
from ps_worker.prefetch.fetch import Fetch
from ps_worker.prefetch.planning import BESIDE_MIN, Forward, Needs, planned

WAIT_S = 20.0
each_mode = pytest.mark.parametrize("mode", [Sync(), Async(), BoundedStaleness(1)], ids=str)


class Held(ps.nn.Embedding):
    """An embedding whose plans, beside the user's thread, wait until they may go on.

    `begun`: how many plans there were; `planned_in`: the threads of those that are made.
    """

    def __init__(self) -> None:
        super().__init__(None, 1, name="count", initializer=Zeros())
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.begun = 0
        self.planned_in: list[str] = []

    def plan(self, *inputs: Any) -> Plan:
        self.begun += 1
        if threading.current_thread() is not threading.main_thread():
            assert self.may_go_on.wait(WAIT_S)
        plan = super().plan(*inputs)
        self.planned_in.append(threading.current_thread().name)
        return plan

    def hold(self, after: int) -> None:
        """Hold the plans after the first so many."""
        poll_until(lambda: len(self.planned_in) == after)
        self.may_go_on.clear()


class Job:
    """One rank that trains a row whose every step takes 1 off it."""

    def __init__(self, mode: Mode) -> None:
        self.cluster = InProcess(1)
        self.client = self.cluster.connect(0, 1, mode)
        self.module = Held()
        self.optimizer = ps.optim.ServerOptimizer(self.module, sparse=SGD(lr=1.0), client=self.client)

    def loader(self, given: list[Tensor], **options: Any) -> Iterator[Tensor]:
        return iter(ps.prefetch(given, lambda ids: {self.module: ids}, **options))

    def step(self, ids: Tensor) -> float:
        """Take a step; return the row that the forward read of the first id."""
        rows = self.module(ids)
        rows[0].sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(rows[0].detach())

    @property
    def pulls(self) -> int:
        return sum([isinstance(body, Pull) and bool(body.tables) for _, body in [*self.cluster.calls]])


def many(id: int = 7) -> Tensor:
    """Return a batch that is planned beside."""
    return torch.full((BESIDE_MIN,), id)


@each_mode
def test_a_step_is_taken_while_the_next_batch_is_planned(mode: Mode) -> None:
    job = Job(mode)
    with job.client:
        loader = job.loader([many() for _ in range(3)])
        first = next(loader)
        job.module.hold(after=2)
        job.step(first)
        second = next(loader)
        assert job.step(second) in (0.0, -1.0)  # the third waits to be planned
        poll_until(lambda: job.module.begun == 3)
        assert job.pulls == 2
        job.module.may_go_on.set()
        assert job.step(next(loader)) == -2.0  # its pull began once it was planned, when the steps before were in
        assert job.pulls == 3
        assert all(name.startswith("rowstead-plan") for name in job.module.planned_in)
        assert next(loader, None) is None


def test_a_small_batch_is_planned_at_once() -> None:
    job = Job(Async())
    with job.client:
        assert [job.step(ids) for ids in job.loader([torch.tensor([7])] * 3)]
        assert set(job.module.planned_in) == {threading.main_thread().name}


class Noting(ps.nn.Embedding):
    """Notes in which threads it is planned, whatever the inputs."""

    planned_in: list[str]

    def plan(self, *inputs: Any) -> Plan:
        self.planned_in.append(threading.current_thread().name)
        return Plan([])


@pytest.mark.parametrize(
    ("device", "wrap", "is_beside"),
    [("cpu", list, True), ("cpu", dict, True), ("cpu", tuple, True), ("meta", list, False), ("meta", dict, False)],
)
def test_what_is_planned_beside_is_large_and_on_this_host(device: str, wrap: type, is_beside: bool) -> None:
    """Wherever the tensors lie in the arguments. The device "meta" stands for a GPU: one that this host need not have."""
    halves = [torch.empty(BESIDE_MIN // 2, dtype=torch.int64, device=device) for _ in range(2)]
    given = {"one": halves[0], "other": halves[1]} if wrap is dict else wrap(halves)
    job = Job(Async())
    with job.client:
        module = Noting(None, 1, name="noted")
        module.planned_in = []
        needs = planned([Forward.of(module, (given,), (given,))], job.client)
        assert needs.result(WAIT_S).wanted == {}
        assert [name.startswith("rowstead-plan") for name in module.planned_in] == [is_beside]


@pytest.mark.parametrize("depth", [1, 3])
def test_an_error_of_planning_arrives_at_its_batch(depth: int) -> None:
    job = Job(Async())
    with job.client:
        loader = job.loader([many(), many(), many().double(), many()], depth=depth)
        for _ in range(2):
            job.step(next(loader))
        with pytest.raises(InvalidRequest, match="int64 or uint64"):
            next(loader)
        assert next(loader, None) is None
        assert job.step(torch.tensor([7])) == -2.0


@each_mode
def test_a_break_lets_go_of_a_batch_that_is_being_planned(mode: Mode) -> None:
    job = Job(mode)
    with job.client:
        loader = job.loader([many() for _ in range(6)], depth=4)
        job.step(next(loader))
        job.module.hold(after=5)
        next(loader)
        poll_until(lambda: job.module.begun == 6)
        loader.close()  # type: ignore[attr-defined]  # a generator has it
        before = job.pulls
        job.module.may_go_on.set()
        job.client.end_step()
        job.client.flush()
        assert job.pulls <= before + 1  # at most the one that had begun
        assert job.step(torch.tensor([7])) == -1.0


def test_closing_the_client_while_a_batch_is_planned_ends_its_pull() -> None:
    job = Job(Async())
    loader = job.loader([many() for _ in range(3)])
    job.step(next(loader))
    job.module.hold(after=2)
    second = next(loader)
    poll_until(lambda: job.module.begun == 3)
    closing = threading.Thread(target=job.client.disconnect)
    closing.start()
    poll_until(lambda: job.client._connection.is_closed)
    job.module.may_go_on.set()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    assert len(job.module.planned_in) == 3
    with pytest.raises(ClientClosed):
        job.step(second)
    with pytest.raises(ClientClosed):
        job.step(next(loader))


@each_mode
def test_a_batch_without_a_step_while_the_next_is_planned_gets_the_rows_of_the_step_at_work(mode: Mode) -> None:
    job = Job(mode)
    with job.client:
        read = 0

        def ids_of(batch: Tensor) -> dict[RowModule, Any]:
            nonlocal read
            read += 1
            if read == 4:
                job.module.may_go_on.set()  # the loop has found by now that the third batch is for another step
            return {job.module: batch}

        loader = iter(ps.prefetch([many() for _ in range(4)], ids_of))
        job.step(next(loader))
        job.module.hold(after=2)
        next(loader)  # no step
        poll_until(lambda: job.module.begun == 3)
        assert job.step(next(loader)) == -1.0
        assert job.step(next(loader)) in ((-1.0, -2.0) if mode != Sync() else (-2.0,))


def test_a_batch_that_is_changed_while_it_is_planned_gets_its_own_rows() -> None:
    job = Job(Sync())
    with job.client:
        given = [many() for _ in range(3)]
        loader = job.loader(given)
        job.step(next(loader))
        job.module.hold(after=2)
        second = next(loader)
        poll_until(lambda: job.module.begun == 3)
        given[2].fill_(8)
        job.module.may_go_on.set()
        assert job.step(second) == -1.0
        assert job.step(next(loader)) == 0.0  # id 8, which no step has trained
        assert job.module.planned_in[-1] == threading.main_thread().name


def test_what_forwards_of_one_table_need_lies_end_to_end() -> None:
    one, other, none = (ps.nn.Embedding(None, 1, name="shared") for _ in range(3))
    given = [(one, torch.tensor([5, 1, 5])), (none, torch.tensor([], dtype=torch.int64)), (other, torch.tensor([2, 1]))]
    needs = Needs.of([Forward.of(module, ids, ids) for module, ids in given])
    assert {table: ids.tolist() for table, ids in needs.wanted.items()} == {"shared": [5, 1, 2, 1]}
    assert needs.places == [{"shared": (0, 2)}, {}, {"shared": (2, 4)}]


def test_what_is_let_go_of_before_it_is_planned_never_is() -> None:
    job = Job(Async())
    with job.client:
        job.module.hold(after=0)
        under_way, waiting = [planned([Forward.of(job.module, many(), many())], job.client) for _ in range(2)]
        poll_until(under_way.running)
        fetch = Fetch([], waiting, job.client, job.client.turn)
        fetch.forget()
        job.module.may_go_on.set()
        assert under_way.result(WAIT_S).wanted["count"].tolist() == [7]
    assert job.module.begun == 1


def test_nothing_is_planned_for_a_client_that_is_closed() -> None:
    job = Job(Async())
    job.client.close()
    with pytest.raises(ClientClosed, match="plan a pull"):
        planned([Forward.of(job.module, many(), many())], job.client)
