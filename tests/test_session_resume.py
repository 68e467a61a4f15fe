"""A training script that dies again and again, against the real cores: the rows, and all that it says, are as if nothing had happened."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import ps_worker as ps
from beside_torch import one_worker
from inprocess import PATIENT, InProcess
from jobs import checksum, counting_table
from lives import session_module
from ps_proto.requests import Barrier, Finish, Pull
from ps_proto.values import Adagrad, Adam, Async, BoundedStaleness, Mode, Sync
from ps_worker.keeping.agreeing import as_rank_0
from ps_worker.nn.reading import RowModule
from ps_worker.session import Session

pytestmark = pytest.mark.usefixtures("one_thread")

BATCHES, EPOCHS = 3, 2
Sample = dict[str, torch.Tensor]


class Killed(BaseException):
    """The process dies: nothing that the script would do afterwards is done."""


@dataclass
class Fate:
    """Kills the script at each of these (clock, moment), once."""

    deaths: set[tuple[int, str]]
    died: list[tuple[int, str]] = field(default_factory=list)

    def at(self, clock: int, moment: str) -> None:
        if (clock, moment) in self.deaths:
            self.deaths.remove((clock, moment))
            self.died.append((clock, moment))
            raise Killed


class Clicks(Dataset[Sample]):
    """Ids, counts with noise drawn when they are read, and labels."""

    def __len__(self) -> int:
        return 8 * BATCHES

    def __getitem__(self, index: int) -> Sample:
        return {"ids": torch.tensor([index % 7, index % 5]), "counts": torch.rand(3) + index, "label": torch.tensor([float(index % 2)])}


class Model(nn.Module):
    """Rows, a layer with dropout and BatchNorm: random numbers, dense weights and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = ps.nn.EmbeddingBag(None, 4, name="rows")
        self.norm = nn.BatchNorm1d(3)
        self.top = nn.Sequential(nn.Dropout(0.3), nn.Linear(7, 1))

    def forward(self, batch: Sample) -> torch.Tensor:
        out: torch.Tensor = self.top(torch.cat([self.rows(batch["ids"]), self.norm(batch["counts"])], dim=1))
        return out


def ids_of(model: Model) -> Callable[[Sample], dict[RowModule, Any]]:
    return lambda batch: {model.rows: batch["ids"]}


def train(session: Session, fate: Fate, said: dict[int, tuple[float, ...]], overlap: bool = False) -> None:
    """A script as users write it."""
    client = session.client
    torch.manual_seed(client.incarnation if session.is_resumed else 0)  # a start that resumes has only what was captured
    model = Model()
    optimizer = ps.optim.ServerOptimizer(model, dense=Adam(lr=0.05), sparse=Adagrad(lr=0.1), client=client, overlap_pushes=overlap)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=5)
    session.register("scheduler", scheduler)
    session.barrier()
    loader = DataLoader(Clicks(), 8, shuffle=True)
    for _ in range(EPOCHS):
        for batch in ps.prefetch(loader, ids_of(model), client=client):
            clock = client.clock
            fate.at(clock, "before the step")
            loss = nn.functional.binary_cross_entropy_with_logits(model(batch), batch["label"])
            loss.backward()  # type: ignore[no-untyped-call]
            said[clock] = (loss.item(), optimizer.param_groups[0]["lr"], torch.rand(()).item())
            optimizer.step()
            optimizer.zero_grad()
            fate.at(clock, "behind the step")
            scheduler.step()
        with torch.no_grad():
            for batch in ps.prefetch(loader, ids_of(model), client=client):
                model(batch)
        session.barrier()
        fate.at(client.clock, "behind the pass")
    said[client.clock] = tuple(model.norm.running_mean.tolist()) if model.norm.running_mean is not None else ()


@contextmanager
def life(cluster: InProcess, world_size: int, mode: Mode) -> Iterator[Session]:
    """Rank 0's process from its start to its end, or to its death."""
    client = cluster.connect(0, world_size, mode, PATIENT, resume=True)
    with pytest.MonkeyPatch.context() as patch:
        session = Session(client, None)
        patch.setattr(session_module, "_current", session)
        with session:
            yield session


def lived(cluster: InProcess, fate: Fate, mode: Mode, world_size: int = 1, overlap: bool = False) -> dict[int, tuple[float, ...]]:
    """Run rank 0's script, and start it again as often as it dies; return what it said of each step."""
    said: dict[int, tuple[float, ...]] = {}
    while True:
        try:
            with life(cluster, world_size, mode) as session:
                train(session, fate, said, overlap)
        except Killed:
            continue
        return said


def state(cluster: InProcess) -> str:
    with cluster.connect() as observer:
        return checksum({name: observer.export(name) for name in ("rows", "dense")})


MOMENTS = ["before the step", "behind the step"]
STEPS = range(BATCHES * EPOCHS)


@pytest.mark.parametrize(("mode", "overlap"), [(Sync(), False), (Async(), True)], ids=["synchronous", "asynchronous, overlapping"])
def test_a_script_that_dies_in_every_step_trains_as_if_it_had_not(mode: Mode, overlap: bool) -> None:
    untouched, killed = InProcess(2), InProcess(2)
    want = lived(untouched, Fate(set()), mode, overlap=overlap)
    passes = {(BATCHES * epoch, "behind the pass") for epoch in range(1, EPOCHS + 1)}
    fate = Fate({(step, moment) for step in STEPS for moment in MOMENTS} | passes)
    got = lived(killed, fate, mode, overlap=overlap)
    assert len(fate.died) == len(STEPS) * len(MOMENTS) + EPOCHS
    if isinstance(mode, Sync):
        assert state(killed) == state(untouched)
    else:  # what a step reads depends on what has arrived
        got, want = ({step: numbers[1:] for step, numbers in said.items()} for said in (got, want))
    assert got == want


def test_what_an_evaluation_behind_a_step_draws_changes_nothing() -> None:
    """A worker that died behind the step does not make it again, nor draws what it drew."""

    def run(fate: Fate) -> tuple[str, dict[int, float]]:
        cluster, said, is_done = InProcess(2), dict[int, float](), False
        while not is_done:
            try:
                with life(cluster, 1, Sync()) as session:
                    torch.manual_seed(session.client.incarnation if session.is_resumed else 0)
                    client, model = session.client, Model()
                    optimizer = ps.optim.ServerOptimizer(model, dense=Adam(lr=0.05), sparse=Adagrad(lr=0.1), client=client)
                    for batch in ps.prefetch(DataLoader(Clicks(), 2, shuffle=True), ids_of(model), client=client):
                        clock = client.clock
                        model(batch).sum().backward()
                        said[clock] = torch.rand(()).item()
                        optimizer.step()
                        optimizer.zero_grad()
                        fate.at(clock, "behind the step")
                        if clock % 2:
                            model.eval()
                            with torch.no_grad():
                                for other in ps.prefetch(DataLoader(Clicks(), 8, shuffle=True), ids_of(model), client=client):
                                    model(other)
                                    fate.at(clock, "in the evaluation")
                            model.train()
                        fate.at(clock, "behind the evaluation")
                        if clock == 7:
                            break
                    client.barrier()
                    fate.at(client.clock, "behind the loop")
                    is_done = True
            except Killed:
                continue
        return state(cluster), said

    moments = {(0, "behind the step"), (2, "behind the evaluation"), (8, "behind the loop")}
    moments |= {(clock, "in the evaluation") for clock in (1, 3, 5)}
    fate = Fate(set(moments))
    assert run(fate) == run(Fate(set()))
    assert len(fate.died) == len(moments)


def test_a_turn_with_two_steps_draws_for_each_its_own_numbers() -> None:
    """The first step's state is captured where the second one pulls, but what is drawn between them is no evaluation."""

    def run(turns: Callable[[Session], Iterable[int]]) -> list[float]:
        drawn, ids = [], np.arange(3)
        with life(InProcess(1), 1, Sync()) as session:
            client = session.client
            client.create_table(counting_table("rows"))
            torch.manual_seed(0)
            for _ in turns(session):
                for _ in range(2):
                    rows = client.pull("rows", ids)
                    drawn.append(torch.rand(()).item())
                    client.push("rows", ids, rows)
                    client.end_step()
        return drawn

    drawn = run(lambda session: ps.prefetch([0, 1, 2], client=session.client))
    assert drawn == run(lambda session: range(3))
    assert len(set(drawn)) == 6


@pytest.mark.parametrize("zeroes", ["behind", "ahead"])
def test_what_a_turn_draws_that_computes_for_the_next_step_is_not_drawn_again(zeroes: str) -> None:
    drawn: list[float] = []
    with life(InProcess(1), 1, Sync()) as session:
        model = Model()
        optimizer = ps.optim.ServerOptimizer(model, dense=Adam(lr=0.05), sparse=Adagrad(lr=0.1), client=session.client)
        for number, batch in enumerate(ps.prefetch(DataLoader(Clicks(), 4), ids_of(model), client=session.client)):
            if number:
                optimizer.step()
                if zeroes == "behind":
                    optimizer.zero_grad()
            loss = model(batch).sum()
            if zeroes == "ahead":
                optimizer.zero_grad()
            loss.backward()
            drawn.append(torch.rand(()).item())
        optimizer.step()
    assert len(set(drawn)) == len(drawn) == 2 * BATCHES


def test_another_rank_that_lives_on_notices_nothing() -> None:
    def run(fate: Fate) -> tuple[str, dict[int, tuple[float, ...]]]:
        cluster, model = InProcess(2), Model().eval()  # which draws nothing: the generators are those of the other rank's thread

        def second() -> None:  # a session of its own would need a process of its own
            with cluster.connect(1, 2, Sync(), PATIENT) as client:
                optimizer = ps.optim.ServerOptimizer(model, dense=Adam(lr=0.05), sparse=Adagrad(lr=0.1), client=client)
                scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=5)
                client.barrier()
                for _ in range(EPOCHS):
                    for number in range(BATCHES):
                        model({"ids": torch.tensor([[number, 3]]), "counts": torch.full((1, 3), 1.0)}).sum().backward()
                        optimizer.step()
                        optimizer.zero_grad()
                        scheduler.step()
                    client.barrier()

        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(second)
            said = lived(cluster, fate, Sync(), world_size=2)
            other.result(timeout=60)
        return state(cluster), said

    assert run(Fate({(2, "before the step"), (2, "behind the step"), (3, "behind the pass"), (5, "behind the step")})) == run(Fate(set()))


@pytest.mark.parametrize("mode", [Sync(), Async(), BoundedStaleness(1)], ids=str)
def test_each_step_of_a_loop_over_numbers_counts_once(mode: Mode) -> None:
    cluster, fate = InProcess(2), Fate({(step, moment) for step in range(6) for moment in MOMENTS})
    said: list[int] = []

    def script(session: Session) -> None:
        client = session.client
        client.create_table(counting_table("counts"))
        client.assign("counts", [100], np.full((1, 2), 5, np.float32))  # done once, at the first start
        for epoch in range(2):
            for step in session.steps(3):
                fate.at(client.clock, "before the step")
                client.push("counts", [step, 100], np.ones((2, 2), np.float32))
                client.push("counts", [10 + epoch], np.ones((1, 2), np.float32))
                fate.at(client.clock, "behind the step")
                client.end_step()
            session.barrier()
        said.append(client.clock)

    while not said:
        try:
            with life(cluster, 1, mode) as session:
                script(session)
        except Killed:
            continue
    assert len(fate.died) == 12
    with cluster.connect() as observer:
        ids, rows = observer.export("counts")
        assert dict(zip(ids.tolist(), rows[:, 0].tolist(), strict=True)) == {0: -2, 1: -2, 2: -2, 10: -3, 11: -3, 100: 5 - 6}


def test_what_was_loaded_and_saved_before_is_neither_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def script(session: Session, fate: Fate, folder: Path) -> None:
        torch.manual_seed(session.client.clock)
        client, model = session.client, Model()
        ps.load(model, tmp_path / "begun")
        optimizer = ps.optim.ServerOptimizer(model, dense=Adam(lr=0.05), sparse=Adagrad(lr=0.1), client=client)
        for number in range(EPOCHS):
            for batch in ps.prefetch(DataLoader(Clicks(), 8), ids_of(model), client=client):
                model(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                fate.at(client.clock, "behind the step")
            ps.save(model, folder / f"{number}")
            fate.at(client.clock, "behind the pass")

    def run(fate: Fate, folder: Path) -> str:
        cluster, is_done = InProcess(2), False
        while not is_done:
            try:
                with life(cluster, 1, Sync()) as session:
                    script(session, fate, folder)
                    is_done = True
            except Killed:
                continue
        return state(cluster)

    with one_worker() as (_, client):
        model = Model()
        ps.optim.ServerOptimizer(model, dense=Adam(), sparse=Adagrad(), client=client)
        ps.save(model, tmp_path / "begun")
    want = run(Fate(set()), tmp_path / "untouched")
    fate = Fate({(2, "behind the step"), (3, "behind the pass"), (5, "behind the step")})
    assert run(fate, tmp_path / "killed") == want
    said = [message.split(" is left out")[0] for message in caplog.messages if "left out" in message]
    assert said == ["ps.load", "ps.load", "ps.load", "ps.save"]  # after the second death the first pass is at its end, and saved again
    saved = [sorted((tmp_path / name).rglob("*.safetensors"), key=lambda path: path.name) for name in ("untouched", "killed")]
    assert len(saved[0]) == 3 * EPOCHS
    assert [path.read_bytes() for path in saved[0]] == [path.read_bytes() for path in saved[1]]


def test_gradients_of_a_pass_that_made_no_step_count_once() -> None:
    """It is made again after a restart, and its gradients were in the step that followed."""

    def run(fate: Fate) -> str:
        cluster, is_done = InProcess(2), False
        while not is_done:
            try:
                with life(cluster, 1, Sync()) as session:
                    torch.manual_seed(0)
                    model = Model().eval()
                    optimizer = ps.optim.ServerOptimizer(model, dense=Adam(lr=0.05), sparse=Adagrad(lr=0.1), client=session.client)
                    for _ in range(3):
                        for batch in ps.prefetch(DataLoader(Clicks(), 8), ids_of(model), client=session.client, batches_per_step=4):
                            model(batch).sum().backward()
                        for batch in ps.prefetch(DataLoader(Clicks(), 24), ids_of(model), client=session.client):
                            fate.at(session.client.clock, "before the step")
                            model(batch).sum().backward()
                            optimizer.step()
                            optimizer.zero_grad()
                    is_done = True
            except Killed:
                continue
        return state(cluster)

    fate = Fate({(1, "before the step"), (2, "before the step")})
    assert run(fate) == run(Fate(set()))
    assert len(fate.died) == 2


def test_buffers_that_are_too_large_are_said(caplog: pytest.LogCaptureFixture) -> None:
    with life(InProcess(1), 1, Sync()) as session:
        model = Model()
        model.register_buffer("average", torch.zeros(5_000))
        ps.optim.ServerOptimizer(model, client=session.client)
        assert caplog.messages == [
            "The model's buffers have 20,032 bytes, more than the 16,384 that travel with each step: a worker that is started again has "
            "them as its script makes them. Give session.register() those that training changes."
        ]


# --- barriers inside a turn whose step is made ------------------------------------------------------------------------------------


class KilledAt:
    """Kills rank 0 as it is about to send its request with this number among those of a kind that `picks` it."""

    def __init__(self, picks: Callable[[Any], bool], number: int) -> None:
        self._picks = picks
        self._left = number
        self.has_killed = False

    def __call__(self, address: str, body: Any) -> None:
        if not self.has_killed and self._picks(body):
            self._left -= 1
            if self._left < 0:
                self.has_killed = True
                raise Killed


def both(cluster: InProcess, mode: Mode, script: Callable[[ps.Client, Any], None]) -> None:
    """Run the script as rank 0, in a session that is started again when it dies, and as rank 1, in a thread that lives on."""

    def second() -> None:
        with Session(cluster.connect(1, 2, mode, PATIENT), None) as session:
            script(session.client, session.steps(4))

    def first() -> None:
        while True:
            try:
                with life(cluster, 2, mode) as session:
                    script(session.client, session.steps(4))
            except Killed:
                continue
            return

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(second)
        first()
        other.result(timeout=60)


@dataclass
class EvaluatesAndMeets:
    """Behind every second step it evaluates and meets the others, more than once; `met`: what they agreed upon at the last ones."""

    met: list[tuple[int | None, int, int]] = field(default_factory=list)

    def __call__(self, client: ps.Client, steps: Iterable[int]) -> None:
        client.create_table(counting_table("counts"))
        client.barrier()
        for step in steps:
            assert client.agree_async(10 + step).result() == 10 + step  # all are in this turn
            client.push("counts", [client.rank], np.ones((1, 2), np.float32))
            client.end_step()
            if step % 2:
                client.pull("counts", [0, 1])  # the state is captured here
                client.barrier()
                client.pull("counts", [0, 1])
                client.barrier()
                self.met.append((client.rank, step, client.agree_async(20 + step).result()))
        client.barrier()


BARRIERS = 1 + 4 + 2 * 3 + 1


def is_met(body: Any) -> bool:
    """Whether it is rank 0 that comes to a barrier."""
    return isinstance(body, Barrier) and body.rank == 0 and not body.is_between


def is_read(body: Any) -> bool:
    return isinstance(body, Pull) and body.fence.rank == 0


@pytest.mark.parametrize("number", [*range(BARRIERS), *[-1 - number for number in range(8)]])
@pytest.mark.parametrize("mode", [Sync(), Async(), BoundedStaleness(0)], ids=str)
def test_what_meets_behind_a_step_does_not_wait_for_a_worker_that_died_there(mode: Mode, number: int) -> None:
    cluster, script = InProcess(2), EvaluatesAndMeets()
    kill = KilledAt(is_met, number) if number >= 0 else KilledAt(is_read, -1 - number)
    cluster.before = kill
    both(cluster, mode, script)
    assert kill.has_killed
    assert [met for met in script.met if met[0] == 1] == [(1, 1, 21), (1, 3, 23)]
    assert [met for met in script.met if met[0] == 0] in ([(0, 1, 21), (0, 3, 23)], [(0, 1, 21)], [(0, 3, 23)])
    with cluster.connect() as observer:
        assert observer.export("counts")[1][:, 0].tolist() == ([-2, -2] if isinstance(mode, Sync) else [-4, -4])  # the mean, or the sum


@pytest.mark.parametrize("moment", ["flush", "first barrier", "work", "second barrier"])
def test_a_save_behind_a_step_does_not_wait_for_rank_0_that_died_in_it(moment: str) -> None:
    cluster, is_dead = InProcess(2), False
    outcomes: list[tuple[int | None, bool]] = []
    kills = {
        "flush": KilledAt(
            lambda body: isinstance(body, Finish) and body.fence.rank == 0 and body.finished is not None and body.wait_s > 0, 0
        ),
        "first barrier": KilledAt(is_met, 1),
        "second barrier": KilledAt(is_met, 2),
    }
    if moment in kills:
        cluster.before = kills[moment]

    def work() -> None:
        nonlocal is_dead
        if moment == "work" and not is_dead:
            is_dead = True
            raise Killed

    def script(client: ps.Client, steps: Iterable[int]) -> None:
        client.create_table(counting_table("counts"))
        client.barrier()
        for step in steps:
            client.push("counts", [client.rank], np.ones((1, 2), np.float32))
            client.end_step()
            if step == 1:
                outcomes.append((client.rank, as_rank_0(client, work)))

    both(cluster, Sync(), script)
    assert is_dead or kills[moment].has_killed
    assert {rank for rank, _ in outcomes} <= {0, 1}
    with cluster.connect() as observer:
        assert observer.export("counts")[1][:, 0].tolist() == [-2, -2]


def test_dense_weights_that_are_torchs_are_said_not_to_travel(caplog: pytest.LogCaptureFixture) -> None:
    cluster = InProcess(1)

    def script(session: Session) -> None:
        ps.optim.ServerOptimizer(Model(), dense=None, client=session.client)
        session.client.end_step()
        session.client.flush()

    def die(session: Session) -> None:
        script(session)
        raise Killed

    with pytest.raises(Killed), life(cluster, 1, Sync()) as session:
        die(session)
    assert caplog.messages == []
    with life(cluster, 1, Sync()) as session:
        script(session)
    assert "This worker goes on at step 1, but its dense weights are torch's" in caplog.text
