"""Applied on arrival, each push is in the rows once, whatever is lost, doubled, delayed, cut or moved; and the bound holds."""

from collections.abc import Callable

import numpy as np
import pytest

from jobs import counting_table
from ps_proto.orders import InstallMap
from ps_proto.requests import Done, Push
from ps_proto.values import Async, BoundedStaleness, Mode
from ps_worker.protocol import Worker
from sim.cluster import Simulation
from sim.network import Chances
from sim.nodes import Script
from sim.scripts import Ledger, count, missing_or_double

WORKERS, STEPS = 3, 12
ROUGH = Chances(drop=0.03, double=0.03, delay=0.03)
MODES: list[Mode] = [Async(), BoundedStaleness(0), BoundedStaleness(1), BoundedStaleness(4)]


def run(seed: int, mode: Mode, with_moves: bool, servers: int = 3) -> tuple[Simulation, Ledger]:
    sim = Simulation(seed, servers, ROUGH)
    ledger = Ledger(mode.bound if isinstance(mode, BoundedStaleness) else None, seed)
    for rank in range(WORKERS):
        sim.worker(f"worker-{rank}", count(rank, WORKERS, STEPS, mode, ledger), start_s=sim.rng.random() * 10)
    sim.disturb(until_s=60.0, with_moves=with_moves)
    sim.run()
    sim.check()
    errors = [node.error for node in sim.nodes.values() if getattr(node, "error", None)]
    assert errors == [], f"seed {seed}"
    return sim, ledger


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("seed", range(8))
def test_each_push_counts_once_and_the_bound_holds(seed: int, mode: Mode) -> None:
    sim, ledger = run(seed, mode, with_moves=False, servers=1 + seed % 4)
    assert list(missing_or_double(sim, ledger)) == []
    assert ledger.torn == []


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("seed", range(100, 106))
def test_each_push_counts_once_while_buckets_move(seed: int, mode: Mode) -> None:
    sim, ledger = run(seed, mode, with_moves=True)
    assert sim.moves_count > 0
    assert list(missing_or_double(sim, ledger)) == []
    assert ledger.torn == []


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_each_push_counts_once_in_a_long_search(mode: Mode) -> None:
    for seed in range(1000, 2000):
        sim, ledger = run(seed, mode, with_moves=seed % 2 == 0, servers=1 + seed % 4)
        assert list(missing_or_double(sim, ledger)) == [], f"seed {seed}"
        assert ledger.torn == [], f"seed {seed}"


IDS = np.arange(200, dtype=np.uint64)


def pusher(pushes: int) -> Callable[[Worker], Script]:
    def script(worker: Worker) -> Script:
        yield from worker.join(0, 1, Async(), 1)
        yield from worker.create_table(counting_table("a"))
        for _ in range(pushes):
            yield from worker.push([("a", IDS, np.ones((IDS.size, 2), np.float32))])
        yield from worker.end_step()
        yield from worker.leave()

    return script


def holds_rows(sim: Simulation, server: str) -> bool:
    tables = sim.shards[server].tables
    return "a" in tables and len(tables["a"]) > 0


def rows(sim: Simulation) -> set[float]:
    return {sim.row("a", int(id))[0] for id in IDS}


def test_push_is_applied_once_when_its_acknowledgement_is_lost() -> None:
    sim = Simulation(1, servers=2)
    node = sim.worker("worker-0", pusher(1))
    sim.run(until=lambda: "a" in sim.coordinator.tables)
    lost = sim.network.drop_next(source="server-0", target="worker-0", body=Done)
    sim.run()
    assert lost.fired
    assert node.error is None
    assert sim.shards["server-0"].counters.table("a").rows_repeated > 0
    assert rows(sim) == {-1.0}


def test_a_push_whose_buckets_move_while_half_of_it_is_acknowledged_counts_once() -> None:
    """Server 0 applied its part; server 1's part is held up until half of server 0's buckets belong to it: all is split again."""
    sim = Simulation(2, servers=2)
    node = sim.worker("worker-0", pusher(1))
    held = sim.network.delay_next(0.2, source="worker-0", target="server-1", body=Push)
    sim.run(until=lambda: holds_rows(sim, "server-0"))
    sim.move_buckets("server-0", "server-1", share=0.5)
    sim.move_buckets("server-1", "server-0", share=0.5)
    sim.run()
    assert held.fired
    assert node.error is None
    assert sim.shards["server-0"].counters.table("a").rows_repeated > 0, "what came back under the same name was known"
    assert rows(sim) == {-1.0}


def test_a_server_that_missed_the_newest_map_gets_it_from_the_worker() -> None:
    sim = Simulation(3, servers=3)
    node = sim.worker("worker-0", pusher(4))
    sim.run(until=lambda: holds_rows(sim, "server-0"))
    sim.move_buckets("server-0", "server-1", share=0.5)
    told = sim.network.delay_next(0.0, source="worker-0", target="server-2", body=InstallMap)
    sim.run()
    assert told.fired
    assert node.error is None
    assert rows(sim) == {-4.0}
