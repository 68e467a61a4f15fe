"""ps.prefetch against the real cores in this process: which rows a batch gets, what is asked when, and how a pass ends."""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ps_worker as ps
from inprocess import PATIENCE, Fault, InProcess
from jobs import checksum
from polling import poll_until
from ps_proto.errors import BarrierTimeout, InvalidRequest, Unreachable
from ps_proto.requests import Pull, Push
from ps_proto.values import SGD, Adagrad, Adam, Async, BoundedStaleness, Mode, Sync, Zeros
from ps_worker.nn.reading import RowModule
from ps_worker.prefetch.device import moved
from ps_worker.prefetch.planning import BESIDE_MIN

BRIEF = replace(PATIENCE, wait_timeout_s=0.3)
each_mode = pytest.mark.parametrize("mode", [Sync(), Async(), BoundedStaleness(0), BoundedStaleness(2)], ids=str)


@dataclass(frozen=True)
class Batch:
    """Ids of two features, "c" and "d", and labels."""

    sparse: dict[str, Tensor]
    label: Tensor

    @classmethod
    def of(cls, rank: int, number: int, size: int = 6) -> "Batch":
        random = np.random.default_rng([rank, number])
        ids = {feature: torch.from_numpy(random.integers(0, 12, size)) for feature in "cd"}
        return cls(ids, torch.from_numpy(random.random((size, 1), np.float32)))


def batches(count: int, rank: int = 0, size: int = 6) -> list[Batch]:
    return [Batch.of(rank, number, size) for number in range(count)]


class Model(nn.Module):
    """Two tables and a dense layer, the same at every start."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = ps.nn.EmbeddingBagCollection(3, {"c": "C", "d": "D"}, seed=5)
        self.top = nn.Linear(6, 1)
        with torch.no_grad():
            self.top.weight.copy_(torch.linspace(-1, 1, 6))
            self.top.bias.zero_()

    def forward(self, batch: Batch) -> Tensor:
        return torch.sigmoid(self.top(self.bags(batch.sparse)))


def optimizer_of(model: nn.Module, client: ps.Client, **options: Any) -> ps.optim.ServerOptimizer:
    return ps.optim.ServerOptimizer(model, dense=Adam(lr=0.05), sparse=Adagrad(lr=0.1), client=client, **options)


def ids_for(model: Model) -> Callable[[Batch], dict[RowModule, Any]]:
    return lambda batch: {model.bags: batch.sparse}


def take_step(model: Model, optimizer: ps.optim.ServerOptimizer, batch: Batch) -> None:
    nn.functional.mse_loss(model(batch), batch.label).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def state(cluster: InProcess) -> str:
    with cluster.connect() as observer:
        return checksum({name: observer.export(name) for name in ("C", "D", "dense")})


def pulls(cluster: InProcess) -> list[tuple[str, Pull]]:
    """The pulls of ranks that ask for rows, as (address, pull)."""
    return [(address, body) for address, body in list(cluster.calls) if isinstance(body, Pull) and body.tables and body.fence.rank >= 0]


def run_ranks(work: Callable[[int], Any], count: int = 2) -> list[Any]:
    with ThreadPoolExecutor(count) as ranks:
        return [outcome.result(timeout=60) for outcome in [ranks.submit(work, rank) for rank in range(count)]]


# --- the same bits ------------------------------------------------------------------------------------------------------------


Loop = Callable[[Model, ps.optim.ServerOptimizer, Iterable[Batch]], None]


def trained(how: Loop, depth: int | None, count: int = 8, size: int = 6) -> str:
    """Train two ranks on so many batches each; return the checksum of all rows. `depth` None: without prefetch."""
    cluster = InProcess(2)

    def work(rank: int) -> None:
        with cluster.connect(rank, 2, Sync()) as client:
            model = Model()
            optimizer = optimizer_of(model, client)
            given: Iterable[Batch] = batches(count, rank, size)
            how(model, optimizer, given if depth is None else ps.prefetch(given, ids_for(model), depth=depth))

    run_ranks(work)
    return state(cluster)


def plainly(model: Model, optimizer: ps.optim.ServerOptimizer, loader: Iterable[Batch]) -> None:
    for batch in loader:
        take_step(model, optimizer, batch)


def skipping(model: Model, optimizer: ps.optim.ServerOptimizer, loader: Iterable[Batch]) -> None:
    for number, batch in enumerate(loader):
        if number % 3 == 1:
            continue
        take_step(model, optimizer, batch)


def twice_each(model: Model, optimizer: ps.optim.ServerOptimizer, loader: Iterable[Batch]) -> None:
    for batch in loader:
        take_step(model, optimizer, batch)
        take_step(model, optimizer, batch)


def accumulating(model: Model, optimizer: ps.optim.ServerOptimizer, loader: Iterable[Batch]) -> None:
    for number, batch in enumerate(loader):
        nn.functional.mse_loss(model(batch), batch.label).backward()  # type: ignore[no-untyped-call]
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def evaluating(model: Model, optimizer: ps.optim.ServerOptimizer, loader: Iterable[Batch]) -> None:
    for batch in loader:
        with torch.no_grad():
            for other in ps.prefetch(batches(3, rank=7), ids_for(model)):
                model(other)
            model(batch)
        take_step(model, optimizer, batch)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("how", [plainly, skipping, twice_each, accumulating, evaluating], ids=lambda how: how.__name__)
def test_synchronous_training_ends_with_the_same_bits(how: Loop, depth: int) -> None:
    assert trained(how, depth) == trained(how, None)


@pytest.mark.parametrize("how", [plainly, skipping], ids=lambda how: how.__name__)
def test_synchronous_training_ends_with_the_same_bits_where_batches_are_planned_beside(how: Loop) -> None:
    large = {"count": 4, "size": BESIDE_MIN // 2}
    assert trained(how, 2, **large) == trained(how, None, **large)


@pytest.mark.parametrize("depth", [1, 3, 6])
def test_batches_that_make_a_step_together_are_asked_for_once(depth: int) -> None:
    cluster = InProcess(1)
    with cluster.connect(0, 1, Sync()) as client:
        model = Model()
        optimizer = optimizer_of(model, client)
        start, begin = client.clock, len(pulls(cluster))
        accumulating(model, optimizer, ps.prefetch(batches(16), ids_for(model), depth=depth, batches_per_step=4))
        asked = [(pull.fence.clock - start, len(pull.tables)) for _, pull in pulls(cluster)[begin:]]
    tables = [2] * 4 + [3, 2, 2, 2] * 3  # the dense blocks with a step's first batch; those of the first step are there already
    assert asked == list(zip([number // 4 for number in range(16)], tables, strict=True))


def test_the_checksum_tells_two_runs_apart() -> None:
    assert trained(plainly, None) != trained(skipping, None)


# --- which step's rows ----------------------------------------------------------------------------------------------------------


class Counted(NamedTuple):
    """An embedding of one id whose row counts the pushes: after k of them it is -k."""

    cluster: InProcess
    client: ps.Client
    module: ps.nn.Embedding
    optimizer: ps.optim.ServerOptimizer

    def loader(self, count: int, **options: Any) -> Iterator[Tensor]:
        return iter(ps.prefetch([torch.tensor([7]) for _ in range(count)], lambda ids: {self.module: ids}, **options))

    def step(self, ids: Tensor) -> float:
        """Take a step; return what the forward read."""
        row = self.module(ids)
        row.sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(row.detach())


def counted(mode: Mode) -> Counted:
    cluster = InProcess(1)
    client = cluster.connect(0, 1, mode)
    module = ps.nn.Embedding(None, 1, name="count", initializer=Zeros())
    return Counted(cluster, client, module, ps.optim.ServerOptimizer(module, sparse=SGD(lr=1.0), client=client))


@pytest.mark.parametrize(
    ("mode", "depth", "ahead"),
    [
        (Sync(), 1, 0),
        (Sync(), 3, 0),
        (BoundedStaleness(0), 2, 0),
        (BoundedStaleness(2), 1, 1),
        (BoundedStaleness(2), 4, 2),  # further ahead than the bound lets it read: sent when it may
        (Async(), 1, 1),
        (Async(), 3, 3),
    ],
    ids=str,
)
def test_rows_are_asked_for_as_far_ahead_as_the_mode_lets_a_step_read(mode: Mode, depth: int, ahead: int) -> None:
    """`ahead`: of how many pushes of its own a prefetched pull sees nothing."""
    job = counted(mode)
    with job.client:
        start, read = job.client.clock, []
        for number, ids in enumerate(job.loader(8, depth=depth)):
            # They are under way before this step is taken: none of them sees its push.
            asked = min(number + ahead + 1, 8)
            poll_until(lambda asked=asked: len(pulls(job.cluster)) == asked)  # type: ignore[misc]  # a bound default has no type
            read.append(job.step(ids))
        assert read == [-float(max(0, number - ahead)) for number in range(8)]
        assert [pull.fence.clock - start for _, pull in pulls(job.cluster)] == list(range(8))


@each_mode
def test_a_batch_without_a_step_gets_the_rows_of_the_step_at_work(mode: Mode) -> None:
    job = counted(mode)
    with job.client:
        read, steps = [], 0
        for number, ids in enumerate(job.loader(9, depth=2)):
            if number in (0, 3, 4):
                continue
            read.append(job.step(ids))
            steps += 1
    exact = [-float(step) for step in range(steps)]
    ahead = 0 if mode in (Sync(), BoundedStaleness(0)) else 2
    assert all(now <= got <= min(0, now + ahead) for got, now in zip(read, exact, strict=True))


@each_mode
def test_a_batch_of_several_steps_gets_no_rows_of_a_step_gone_by(mode: Mode) -> None:
    job = counted(mode)
    with job.client:
        for number, ids in enumerate(job.loader(4)):
            assert job.step(ids) == -2 * number
            assert job.step(ids) == -2 * number - 1  # a forward that nobody foresaw pulls


def test_without_gradients_all_is_asked_for_the_step_at_work() -> None:
    job = counted(Sync())
    with job.client, torch.no_grad():
        for number, ids in enumerate(job.loader(5)):
            poll_until(lambda number=number: len(pulls(job.cluster)) == min(number + 2, 5))  # type: ignore[misc]
            job.module(ids)
        assert {pull.fence.clock for _, pull in pulls(job.cluster)} == {job.client.clock}


# --- what is asked --------------------------------------------------------------------------------------------------------------


@each_mode
def test_one_pull_a_step_carries_all_tables_and_the_dense_blocks(mode: Mode) -> None:
    cluster = InProcess(2)
    with cluster.connect(0, 1, mode) as client:
        model = Model()
        optimizer = optimizer_of(model, client)
        cluster.calls.clear()
        start = client.clock
        plainly(model, optimizer, ps.prefetch(batches(5), ids_for(model)))
        asked = [(address, pull.fence.clock - start) for address, pull in pulls(cluster)]
        assert len(asked) == len(set(asked)), "a server was asked twice for a step"
        for step in range(5):
            tables = {part.table for _, pull in pulls(cluster) for part in pull.tables if pull.fence.clock - start == step}
            assert tables == ({"C", "D", "dense"} if step else {"C", "D"})  # the optimizer begins with the dense blocks of the first


def test_a_synchronous_dense_table_does_not_hold_up_asynchronous_rows() -> None:
    cluster = InProcess(1)
    with cluster.connect(0, 1, Async()) as client:
        model = Model()
        optimizer = optimizer_of(model, client, dense_mode=Sync())
        cluster.calls.clear()
        start = client.clock
        for number, batch in enumerate(ps.prefetch(batches(4), ids_for(model))):
            poll_until(lambda number=number: {"C"} <= asked_for(cluster, start + min(number + 1, 3)))  # type: ignore[misc]
            assert "dense" not in asked_for(cluster, start + number + 1)
            take_step(model, optimizer, batch)
        assert asked_for(cluster, start + 3) == {"C", "D", "dense"}


def asked_for(cluster: InProcess, clock: int) -> set[str]:
    return {part.table for _, pull in pulls(cluster) for part in pull.tables if pull.fence.clock == clock}


def test_modules_that_share_a_table_get_each_their_rows() -> None:
    cluster = InProcess(2)

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = (ps.nn.Embedding(None, 3, name="shared", seed=9) for _ in range(2))

    with cluster.connect(0, 1, Sync()) as client:
        pair = Pair()
        ps.optim.ServerOptimizer(pair, client=client)
        given = [(torch.tensor([5, 1, 5]), torch.tensor([2, 1]))]
        for one, other in ps.prefetch(given, lambda batch: {pair.one: batch[0], pair.other: batch[1]}):
            rows, others = pair.one(one).detach(), pair.other(other).detach()
        assert sorted(id for _, pull in pulls(cluster) for part in pull.tables for id in part.ids.tolist()) == [1, 2, 5]
        assert rows.numpy().tobytes() == client.pull("shared", [5, 1, 5]).tobytes()
        assert others.numpy().tobytes() == client.pull("shared", [2, 1]).tobytes()


def test_a_tuple_is_the_arguments_of_a_forward() -> None:
    cluster = InProcess(1)
    with cluster.connect(0, 1, Sync()) as client:
        bag = ps.nn.EmbeddingBag(None, 2, mode="sum", name="bag")
        ps.optim.ServerOptimizer(bag, client=client)
        for values, offsets in ps.prefetch([(torch.tensor([3, 4, 3]), torch.tensor([0, 2]))], lambda batch: {bag: batch}):
            pooled = bag(values, offsets)
            assert len(pulls(cluster)) == 1
        rows = torch.from_numpy(client.pull("bag", [3, 4]))
        torch.testing.assert_close(pooled, torch.stack([rows[0] + rows[1], rows[0]]))


def test_inputs_that_the_loop_changed_in_their_place_get_their_own_rows() -> None:
    job = counted(Sync())
    with job.client:
        job.client.push("count", [8], np.full((1, 1), 5.0, np.float32))
        job.client.end_step()
        for ids in job.loader(1):
            ids += 1
            assert job.module(ids).item() == -5.0


@pytest.mark.parametrize("ids", [torch.tensor([], dtype=torch.int64), torch.tensor([1])], ids=["none", "one"])
def test_a_batch_without_ids_asks_for_nothing(ids: Tensor) -> None:
    job = counted(Sync())
    with job.client:
        for given in ps.prefetch([ids], lambda batch: {job.module: batch}):
            assert job.module(given).shape == (ids.numel(), 1)
        assert len(pulls(job.cluster)) == ids.numel()


# --- how it ends ------------------------------------------------------------------------------------------------------------------


@each_mode
def test_two_passes_and_their_length(mode: Mode) -> None:
    job = counted(mode)
    with job.client:
        loader = ps.prefetch([torch.tensor([7])] * 3, lambda ids: {job.module: ids}, depth=2)
        assert len(loader) == 3
        assert [sum(1 for ids in loader if job.step(ids) <= 0) for _ in range(2)] == [3, 3]
    with pytest.raises(TypeError, match=r"no len\(\)"):
        len(ps.prefetch(iter([1])))


@each_mode
@pytest.mark.parametrize("takes_step", [False, True])
def test_a_break_lets_go_of_what_was_asked(mode: Mode, takes_step: bool) -> None:
    job = counted(mode)
    with job.client:
        for ids in job.loader(9, depth=2):
            if takes_step:
                job.step(ids)
            break
        job.client.flush()
        job.client.end_step()
        before = len(pulls(job.cluster))
        for _ in range(3):
            job.client.end_step()
        job.client.flush()
        assert len(pulls(job.cluster)) <= before + (1 if takes_step else 0)  # nothing comes after, but what was on its way
        assert job.step(torch.tensor([7])) == -float(takes_step)


def test_an_exception_in_the_loop_lets_go_of_what_was_asked() -> None:
    job = counted(Sync())
    with job.client:

        def fail() -> None:
            for _ in job.loader(3):
                raise RuntimeError("on purpose")

        with pytest.raises(RuntimeError, match="on purpose"):
            fail()
        gc.collect()
        job.client.end_step()
        job.client.flush()
        assert job.step(torch.tensor([7])) == 0.0
        assert len(pulls(job.cluster)) == 2  # that of the first batch, and this one


@each_mode
def test_an_exception_of_the_loader_arrives_at_its_batch(mode: Mode) -> None:
    job = counted(mode)

    def broken() -> Iterator[Tensor]:
        yield from [torch.tensor([7])] * 2
        raise OSError("the disk is gone")

    with job.client:
        seen: list[float] = []
        loader = recorded(ps.prefetch(broken(), lambda ids: {job.module: ids}, depth=4), seen)
        with pytest.raises(OSError, match="the disk is gone"):
            assert [job.step(ids) for ids in loader]
        assert len(seen) == 2


def recorded(loader: Iterable[Tensor], seen: list[float]) -> Iterator[Tensor]:
    """Yield what a loader yields and note that it came."""
    for item in loader:
        seen.append(0.0)
        yield item


def test_an_exception_of_ids_arrives_at_its_batch() -> None:
    job = counted(Async())
    with job.client:
        seen: list[float] = []
        given = [torch.tensor([7]), torch.tensor([0.5])]
        loader = recorded(ps.prefetch(given, lambda ids: {job.module: ids}), seen)
        with pytest.raises(InvalidRequest, match="int64 or uint64"):
            assert [job.step(ids) for ids in loader]
        assert len(seen) == 1


def test_an_error_of_a_pull_arrives_at_its_forward() -> None:
    job = counted(Async())
    with job.client:
        loader = job.loader(3)
        first = next(loader)
        poll_until(lambda: len(pulls(job.cluster)) == 2)
        job.cluster.faults.append(Fault(Pull, is_lost=True, count=10**9))
        job.step(first)
        second = next(loader)  # the third is asked for
        job.step(second)
        third = next(loader)
        with pytest.raises(Unreachable):
            job.step(third)
        job.cluster.faults.clear()
        job.step(third)
        assert next(loader, None) is None


# --- uneven data -------------------------------------------------------------------------------------------------------------------


def numbers(count: int, has_len: bool) -> Iterable[Tensor]:
    given = [torch.tensor([7])] * count
    return given if has_len else iter(given)


def uneven(mode: Mode, loaders: Sequence[Callable[[], Iterable[Tensor]]], passes: int = 1, **options: Any) -> list[list[int]]:
    """Train a rank on each loader; return how many steps each took in each pass."""
    cluster = InProcess(2)

    def work(rank: int) -> list[int]:
        with cluster.connect(rank, len(loaders), mode) as client:
            module = ps.nn.Embedding(None, 1, name="count", initializer=Zeros())
            optimizer = ps.optim.ServerOptimizer(module, sparse=SGD(lr=1.0), client=client)
            steps = []
            for _ in range(passes):
                steps.append(0)
                for ids in ps.prefetch(loaders[rank](), lambda ids: {module: ids}, client=client, **options):
                    Counted(cluster, client, module, optimizer).step(ids)
                    steps[-1] += 1
                if options:
                    client.barrier()  # the ranks' barriers still meet
        return steps

    return run_ranks(work, len(loaders))


@each_mode
def test_a_rank_whose_data_ends_leaves_and_the_others_go_on(mode: Mode) -> None:
    assert uneven(mode, [lambda: numbers(2, True), lambda: numbers(5, False)]) == [[2], [5]]


@each_mode
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("has_len", [(True, True), (False, False), (True, False)], ids=["both", "none", "one"])
def test_all_ranks_stop_with_the_shortest(mode: Mode, depth: int, has_len: tuple[bool, bool]) -> None:
    loaders = [lambda: numbers(2, has_len[0]), lambda: numbers(5, has_len[1])]
    assert uneven(mode, loaders, passes=2, uneven="stop", depth=depth) == [[2, 2], [2, 2]]


@pytest.mark.parametrize("has_len", [True, False])
def test_a_rank_without_data_stops_all(has_len: bool) -> None:
    assert uneven(Async(), [lambda: numbers(0, has_len), lambda: numbers(3, has_len)], uneven="stop") == [[0], [0]]


def test_a_rank_that_closes_early_is_asked_no_more() -> None:
    cluster = InProcess(1)

    def work(rank: int) -> int:
        with cluster.connect(rank, 2, Async()) as client:
            module = ps.nn.Embedding(None, 1, name="count", initializer=Zeros())
            optimizer = ps.optim.ServerOptimizer(module, sparse=SGD(lr=1.0), client=client)
            for number, ids in enumerate(ps.prefetch(numbers(6, False), lambda ids: {module: ids}, uneven="stop")):
                Counted(cluster, client, module, optimizer).step(ids)
                if rank == 0 and number == 2:
                    break
            return client.clock

    assert run_ranks(work) == [3, 6]


@pytest.mark.parametrize("has_len", [True, False])
def test_a_rank_that_does_not_come_is_named(has_len: bool) -> None:
    cluster = InProcess(1)
    with cluster.connect(1, 2, Async(), BRIEF) as client, pytest.raises(BarrierTimeout, match="for rank 0"):
        next(iter(ps.prefetch(numbers(3, has_len), uneven="stop", client=client)))


class Boastful(list[Tensor]):
    """A loader with fewer batches than its length says."""

    def __len__(self) -> int:
        return 4


def test_a_loader_that_has_less_than_its_length_is_an_error() -> None:
    def given(rank: int) -> Iterable[Tensor]:
        return Boastful([torch.tensor([7])] * 2) if rank == 0 else numbers(5, True)

    cluster = InProcess(1)

    def work(rank: int) -> str:
        client = cluster.connect(rank, 2, Async())
        try:
            return str(sum(1 for _ in ps.prefetch(given(rank), uneven="stop", client=client)))
        except InvalidRequest as error:
            return str(error)
        finally:
            client.close()

    short, long = run_ranks(work)
    assert short.startswith("len(loader) is more than the batches it gave, but must be at most 2")
    assert long == "4"


# --- devices and arguments -----------------------------------------------------------------------------------------------------------


class Named(NamedTuple):
    ids: Tensor
    name: str


def test_all_tensors_of_a_batch_are_moved() -> None:
    given = {"pair": (torch.ones(2), [torch.ones(1)]), "named": Named(torch.ones(3), "x"), "batch": Batch.of(0, 0), "other": 5}
    there = moved(given, torch.device("meta"))
    assert there["pair"][0].is_meta
    assert there["pair"][1][0].is_meta
    assert isinstance(there["named"], Named)
    assert there["named"].ids.is_meta
    assert there["named"].name == "x"
    assert there["batch"].label.is_meta
    assert there["batch"].sparse["c"].is_meta
    assert there["other"] == 5
    assert not given["pair"][0].is_meta  # type: ignore[index]


def test_a_moved_batch_finds_its_rows() -> None:
    cluster = InProcess(2)
    with cluster.connect(0, 1, Sync()) as client:
        model = Model()
        optimizer = optimizer_of(model, client)
        cluster.calls.clear()
        for batch in ps.prefetch(batches(4), ids_for(model), device="cpu"):
            assert batch.label.device.type == "cpu"
            take_step(model, optimizer, batch)
        asked = [(address, pull.fence.clock) for address, pull in pulls(cluster)]
        assert len(asked) == len(set(asked))


def test_without_ids_it_only_moves() -> None:
    assert [item.item() for item in ps.prefetch([torch.ones(1)] * 2, device="cpu")] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"depth": 0}, "depth is 0"),
        ({"depth": True}, "depth is True"),
        ({"batches_per_step": 0}, "batches_per_step is 0"),
        ({"uneven": "wait"}, "uneven is 'wait'"),
    ],
)
def test_arguments_that_cannot_be_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        ps.prefetch([], **options)


@pytest.mark.parametrize("given", [lambda ids: ids, lambda ids: {nn.Linear(1, 1): ids}], ids=["a tensor", "another module"])
def test_ids_of_anything_but_our_modules_are_refused(given: Any) -> None:
    with pytest.raises(InvalidRequest, match="what `ids` returns"):
        next(iter(ps.prefetch([torch.tensor([1])], given)))


# --- key lists ------------------------------------------------------------------------------------------------------------------


def small_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers remember pulls of a few ids too."""
    monkeypatch.setattr("ps_worker.protocol.worker.Worker.__init__.__defaults__", (None, 1))


def pushed_by_name(cluster: InProcess) -> list[dict[str, bool]]:
    """Return of each push, over all servers, whether its tables named a pull."""
    found: list[dict[str, bool]] = []
    names: list[tuple[int, int]] = []
    for _, body in cluster.calls:
        if isinstance(body, Push):
            if (body.fence.clock, body.seq) not in names:
                names.append((body.fence.clock, body.seq))
                found.append({})
            for part in body.tables:
                found[-1][part.table] = found[-1].get(part.table, True) and part.pull > 0
    return found


@each_mode
@pytest.mark.parametrize("depth", [1, 2])
def test_each_step_names_the_pull_of_its_batch_once_a_push_has_shown_that_it_trains(
    mode: Mode, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_lists(monkeypatch)
    cluster = InProcess(2)
    with cluster.connect(0, 1, mode) as client:
        model = Model()
        plainly(model, optimizer_of(model, client), ps.prefetch(batches(8), ids_for(model), depth=depth))
    by_name = pushed_by_name(cluster)
    assert len(by_name) == 8
    # What was asked for before the first push is not remembered: the first batch, and as many as are read ahead of it.
    assert by_name[depth + 1 :] == [{"C": True, "D": True, "dense": True}] * (7 - depth)
    assert not any(shard.counters.key_lists_unknown for shard in cluster.shards.values())


@pytest.mark.parametrize("mode", [Async(), Sync()], ids=str)
def test_steps_without_prefetch_name_their_pulls_too(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    small_lists(monkeypatch)
    cluster = InProcess(2)
    with cluster.connect(0, 1, mode) as client:
        model = Model()
        plainly(model, optimizer_of(model, client), batches(5))
    assert pushed_by_name(cluster)[1:] == [{"C": True, "D": True, "dense": True}] * 4


def test_the_bits_do_not_depend_on_key_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    without = trained(plainly, 1)
    small_lists(monkeypatch)
    assert trained(plainly, 1) == without
    monkeypatch.setattr("ps_server.shard.key_lists.KeyLists._known", lambda lists, fence: None)  # servers forget at once
    assert trained(plainly, 1) == without
