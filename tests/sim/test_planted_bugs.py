"""The tester tested: each planted bug is found by the searches above, or by the directed fault that a random search does not reach."""

import numpy as np
import pytest

from jobs import checksum
from naive.training import train as train_in_one_process
from ps_proto.errors import ParameterServerError
from ps_proto.requests import Decision, Fence, Finish, Finished, TableRows
from ps_proto.values import BoundedStaleness, Mode, Sync
from ps_server.shard.gate import Gate
from ps_server.shard.shard import Shard
from ps_server.shard.staging import Staging
from ps_server.shard.window import Buckets, Fresh, Window
from ps_worker.asking import Operation, Patience, World
from ps_worker.protocol import Worker
from ps_worker.protocol.named import Named
from ps_worker.protocol.writing import Writer
from sim.backup import Checked, NotingDecider, NotingShard
from sim.cluster import Simulation
from sim.network import Chances
from sim.scripts import Ledger, count, missing_or_double, train, trained

ROUGH = Chances(drop=0.05, double=0.05, delay=0.1)
SEEDS = 24  # the first one finds each planted bug


class FinishesFirst(Writer):
    def _send(self, named: Named) -> Operation[None]:
        if named.seq == 2:
            yield from self._peers.ask_all(Finish(self._view.fence(), Finished(self._view.clock)))
        yield from super()._send(named)


class FinishesEarly(Worker):
    """Says that a step is finished before its last push is acknowledged."""

    def __init__(self, coordinator: str, world: World, patience: Patience | None = None, list_ids_min: int = 1) -> None:
        super().__init__(coordinator, world, patience, list_ids_min)
        self._writer = FinishesFirst(self._view, self._peers, self._tables, self._steps, self._key_lists, world.lend)


class ServerWindow(Window):
    """Remembers one name per rank for the whole server."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[int, int] = {}

    def fresh(self, rank: int, buckets: Buckets, name: int) -> Fresh | None:
        return None if self._last.get(rank, 0) < name else np.zeros(buckets.size, np.bool_)

    def record(self, rank: int, buckets: Buckets, name: int) -> None:
        self._last[rank] = name


class OneWindow(Shard):
    def __init__(self, server: str, rows_max: int | None = None) -> None:
        super().__init__(server, rows_max)
        self.writer.window = ServerWindow()


class NoWindow(Window):
    def fresh(self, rank: int, buckets: Buckets, name: int) -> Fresh | None:
        return None


class AppliesAgain(Shard):
    """Applies a push as often as it comes."""

    def __init__(self, server: str, rows_max: int | None = None) -> None:
        super().__init__(server, rows_max)
        self.writer.window = NoWindow()


class OpenGate(Gate):
    def may_read(self, mode: Mode, fence: Fence, at_step: int) -> bool:
        return True


class ReadsAnyStep(Shard):
    """Answers a pull from whatever step it is at."""

    def __init__(self, server: str, rows_max: int | None = None) -> None:
        super().__init__(server, rows_max)
        self.reader.gate = OpenGate(server, self.steps)


class WideGate(Gate):
    def may_read(self, mode: Mode, fence: Fence, at_step: int) -> bool:
        wider = BoundedStaleness(mode.bound + 1) if isinstance(mode, BoundedStaleness) else mode
        return super().may_read(wider, fence, at_step)


class ReadsAhead(Shard):
    """Lets a pull go one step further than the bound."""

    def __init__(self, server: str, rows_max: int | None = None) -> None:
        super().__init__(server, rows_max)
        self.reader.gate = WideGate(server, self.steps)


class ArrivalOrder(Staging):
    """Keeps contributions in the order in which they came."""

    def take(self, clock: int, roster: list[int]) -> dict[str, list[TableRows]]:
        step = self._steps.pop(clock, {})
        contributions: dict[str, list[TableRows]] = {}
        for tables in step.values():  # a dict is in the order of insertion
            for table in tables:
                contributions.setdefault(table.table, []).append(table)
        return contributions


class FoldsAsTheyCome(Shard):
    """Folds contributions in the order of arrival."""

    def __init__(self, server: str, rows_max: int | None = None) -> None:
        super().__init__(server, rows_max)
        self.steps.staging = ArrivalOrder()


class OwnView(NotingDecider):
    """Decides for itself, and listens to nobody."""

    @property
    def decides(self) -> bool:
        return True

    def hear(self, decision: Decision, step: int, world_size: int) -> None:
        pass


class FoldsByItsOwnView(NotingShard):
    """With backup workers, folds from the ranks that it heard of first itself."""

    decider_class = OwnView


def is_found_with_backup_workers(shard_class: type[NotingShard]) -> bool:
    for seed in range(SEEDS // 2):
        job = Checked(Simulation(seed, 3, ROUGH, shard_class), backup_workers=1)
        nodes = [job.sim.worker(f"worker-{rank}", train(rank, 3, 8, Sync(1), job.batches)) for rank in range(3)]
        job.sim.run()
        if any(node.error for node in nodes) or (len({shard.step for shard in job.shards}) == 1 and job.faults()):
            return True
    return False


def is_found_in_synchronous_runs(shard_class: type[Shard], worker_class: type[Worker]) -> bool:
    reference = checksum(train_in_one_process(3, 8))
    for seed in range(SEEDS):
        sim = Simulation(seed, 3, ROUGH, shard_class, worker_class)
        nodes = [sim.worker(f"worker-{rank}", train(rank, 3, 8)) for rank in range(3)]
        sim.run()
        if any(node.error for node in nodes) or checksum(trained(sim)) != reference:
            return True
    return False


def is_found_in_counting_runs(shard_class: type[Shard], worker_class: type[Worker], mode: Mode) -> bool:
    for seed in range(SEEDS):
        sim = Simulation(seed, 3, ROUGH, shard_class, worker_class)
        ledger = Ledger(mode.bound if isinstance(mode, BoundedStaleness) else None, seed)
        for rank in range(3):
            sim.worker(f"worker-{rank}", count(rank, 3, 8, mode, ledger), start_s=sim.rng.random() * 5)
        sim.disturb(until_s=40.0, with_moves=True)
        sim.run()
        if ledger.torn or any(missing_or_double(sim, ledger)):
            return True
    return False


@pytest.mark.parametrize(
    ("shard_class", "worker_class"),
    [(Shard, FinishesEarly), (ReadsAnyStep, Worker), (FoldsAsTheyCome, Worker)],
    ids=["finished sent before all acknowledgements", "a pull answered from another step", "folded in the order of arrival"],
)
def test_found_by_the_bits(shard_class: type[Shard], worker_class: type[Worker]) -> None:
    assert is_found_in_synchronous_runs(shard_class, worker_class)


def test_a_server_that_folds_by_its_own_view_is_found() -> None:
    assert is_found_with_backup_workers(FoldsByItsOwnView)


@pytest.mark.parametrize(
    ("shard_class", "mode"),
    [
        (OneWindow, BoundedStaleness(2)),
        (AppliesAgain, BoundedStaleness(2)),
        (ReadsAhead, BoundedStaleness(0)),
        (ReadsAhead, BoundedStaleness(1)),
    ],
    ids=["one window per server", "no window", "a bound of 1 for 0", "a bound of 2 for 1"],
)
def test_found_by_the_counts(shard_class: type[Shard], mode: Mode) -> None:
    assert is_found_in_counting_runs(shard_class, Worker, mode)


@pytest.mark.parametrize("mode", [Sync(), Sync(1), BoundedStaleness(1)], ids=str)
def test_nothing_is_found_where_nothing_is_planted(mode: Mode) -> None:
    if mode == Sync(1):
        assert not is_found_with_backup_workers(NotingShard)
    elif isinstance(mode, Sync):
        assert not is_found_in_synchronous_runs(Shard, Worker)
    else:
        assert not is_found_in_counting_runs(Shard, Worker, mode)


def test_an_error_of_a_worker_is_no_silent_end() -> None:
    """A script that ends in an error shows it: else a search over seeds would pass by finding nothing."""
    sim = Simulation(1)
    node = sim.worker("worker-0", train(5, 3, 1))
    sim.run()
    assert isinstance(node.error, ParameterServerError)
