"""Pushes that name their ids by a pull: sums stay exact whatever is lost, doubled, forgotten, cleared, moved; planted bugs are found."""

from typing import Any

import numpy as np
import pytest

from jobs import counting_table
from ps_proto.errors import UnknownKeyList
from ps_proto.requests import Done, Fence, Ids, Push
from ps_proto.values import Async, BoundedStaleness, Mode, Sync
from ps_server.shard import key_lists as server_lists
from ps_server.shard.counters import Counters
from ps_server.shard.key_lists import KeyList, KeyLists
from ps_server.shard.shard import Shard
from ps_server.shard.table import Places, Table
from ps_worker.asking import Asker, Operation, Patience, World
from ps_worker.protocol import Worker
from ps_worker.protocol import key_lists as worker_lists
from sharding.arrays import read_only
from sim.cluster import Script, Simulation
from sim.network import Chances
from sim.relearning import Forgetful, relearned, wrong_rows

ROUGH = Chances(drop=0.03, double=0.03, delay=0.05)
MODES: list[Mode] = [Async(), BoundedStaleness(1), Sync()]
STEPS = 12
SEEDS = 24  # within which each planted bug is found


def counted(sim: Simulation, name: str) -> int:
    return sum(getattr(table, name) for shard in sim.shards.values() for table in shard.counters.tables.values())


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_what_is_pushed_by_name_counts_once(seed: int, mode: Mode) -> None:
    sim = Simulation(seed, 1 + seed % 3, ROUGH, Forgetful if seed % 2 else Shard)
    ledger = relearned(sim, STEPS, mode)
    sim.check()
    assert [node.error for node in sim.nodes.values() if getattr(node, "error", None)] == [], f"seed {seed}"
    assert wrong_rows(sim, ledger, mode) == [], f"seed {seed}"
    assert counted(sim, "rows_listed") > 0
    if seed % 2:
        assert sum(shard.counters.key_lists_unknown for shard in sim.shards.values()) > 0


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_what_is_pushed_by_name_counts_once_in_a_long_search(mode: Mode) -> None:
    for seed in range(1000, 2000):
        sim = Simulation(seed, 1 + seed % 4, ROUGH, Forgetful if seed % 2 else Shard)
        assert wrong_rows(sim, relearned(sim, STEPS, mode), mode) == [], f"seed {seed}"


# --- directed faults ---------------------------------------------------------------------------------------------------------

IDS: Ids = np.arange(90, dtype=np.uint64)


def repeat(pushes: int) -> Any:
    def script(worker: Worker) -> Script:
        yield from worker.join(0, 1, Async(), 1)
        yield from worker.create_table(counting_table("a"))
        for _ in range(pushes):
            yield from worker.pull([("a", IDS)])
            yield from worker.push([("a", IDS, np.ones((IDS.size, 2), np.float32))])
        yield from worker.end_step()
        yield from worker.leave()

    return script


def rows(sim: Simulation) -> set[float]:
    return {sim.row("a", int(id))[0] for id in IDS}


def test_a_server_that_forgets_between_a_push_and_its_repetition_applies_it_once() -> None:
    """The acknowledgement of a push by name is lost; the server knows the push, but not the list any more."""
    sim = Simulation(1, servers=2)
    node = sim.worker("worker-0", repeat(2))
    sim.run(until=lambda: counted(sim, "rows_pushed") == IDS.size)
    lost = sim.network.drop_next(source="server-0", target="worker-0", body=Done, count=1)
    sim.run(until=lambda: lost.fired)
    assert sim.shards["server-0"].counters.table("a").rows_listed > 0
    sim.shards["server-0"].key_lists.clear()
    sim.run()
    assert node.error is None
    assert sim.shards["server-0"].counters.key_lists_unknown == 1
    assert sim.shards["server-0"].counters.table("a").rows_repeated > 0
    assert rows(sim) == {-2.0}


def test_a_push_by_name_whose_buckets_move_while_half_of_it_is_acknowledged_counts_once() -> None:
    sim = Simulation(2, servers=2)
    node = sim.worker("worker-0", repeat(2))
    sim.run(until=lambda: counted(sim, "rows_pushed") == IDS.size)
    held = sim.network.delay_next(0.2, source="worker-0", target="server-1", body=Push)
    sim.run(until=lambda: sim.shards["server-0"].counters.table("a").rows_listed > 0)
    sim.move_buckets("server-0", "server-1", share=0.5)
    sim.move_buckets("server-1", "server-0", share=0.5)
    sim.run()
    assert held.fired
    assert node.error is None
    assert sim.shards["server-0"].counters.table("a").rows_repeated > 0
    assert rows(sim) == {-2.0}


LITTLE = 64 << 10  # bytes of lists that a worker and a server keep here


def ahead(depth: int, batches: int, ids_count: int) -> Any:
    """Pull `depth` batches ahead of their pushes, as ps.prefetch does."""

    def script(worker: Worker) -> Script:
        yield from worker.join(0, 1, Async(), 1)
        yield from worker.create_table(counting_table("a"))
        yield from worker.push([("a", IDS[:1], np.zeros((1, 2), np.float32))])
        given = [np.arange(ids_count, dtype=np.uint64) + np.uint64(batch) for batch in range(batches)]
        for batch in range(batches + depth):
            if batch < batches:
                yield from worker.pull([("a", given[batch])])
            if batch >= depth:
                yield from worker.push([("a", given[batch - depth], np.ones((ids_count, 2), np.float32))])
        yield from worker.leave()

    return script


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("depth", [0, 3, 7, 12])
@pytest.mark.parametrize("ids_count", [200, 1_200, 6_000])
def test_what_fits_neither_side_is_not_named_rather_than_sent_twice(
    ids_count: int, depth: int, servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a worker whose batches are just too large for a server would send each push once more, for ever."""
    monkeypatch.setattr(worker_lists, "LISTS_BYTES_MAX", LITTLE)
    monkeypatch.setattr(KeyLists.__init__, "__defaults__", (LITTLE,))
    sim = Simulation(1, servers)
    node = sim.worker("worker-0", ahead(depth, 16, ids_count))
    sim.run()
    assert node.error is None
    assert sum(shard.counters.key_lists_unknown for shard in sim.shards.values()) == 0
    if depth < worker_lists.LISTS_MAX and (depth + 1) * (1_024 + 24 * ids_count) <= LITTLE:
        assert counted(sim, "rows_listed") == 16 * ids_count


@pytest.mark.parametrize("count", [1, 4_096, 1_000_000])
def test_a_server_keeps_twice_what_a_worker_names(count: int) -> None:
    """Pulls are on their way, or were given up, of which the worker knows less than the server."""
    ids: Ids = np.zeros(count, np.uint64)
    here, there = worker_lists.KeyList(1, 1, ids, {}), KeyList(ids, Table(counting_table("a")).pull_with_places(ids)[1])
    assert server_lists.LISTS_MAX >= 2 * worker_lists.LISTS_MAX
    assert here.nbytes / worker_lists.LISTS_BYTES_MAX >= 2 * there.nbytes / server_lists.LISTS_BYTES_MAX


# --- planted bugs ------------------------------------------------------------------------------------------------------------


class AnyList(KeyLists):
    """Takes the newest list of the table that has as many ids, whatever pull was named: as if a name outlived what it stood for."""

    def get(self, fence: Fence, table: str, pull: int, rows_count: int) -> KeyList:
        known = self._ranks.get(fence.rank)
        lists = known.tables.get(table, {}) if known is not None else {}
        fitting = [number for number, its in lists.items() if its.ids.size == rows_count]
        if not fitting:
            raise UnknownKeyList("a server", table, pull)
        return lists[max(fitting)]


class OneForAll(KeyLists):
    """Knows the lists of all ranks as if they were one's."""

    def keep(self, fence: Fence, table: str, pull: int, ids: Ids, places: Places) -> None:
        super().keep(Fence(fence.map_version), table, pull, ids, places)

    def get(self, fence: Fence, table: str, pull: int, rows_count: int) -> KeyList:
        return super().get(Fence(fence.map_version), table, pull, rows_count)


def shard_with(lists: type[KeyLists]) -> type[Shard]:
    class Planted(Forgetful):
        def __init__(self, server: str, rows_max: int | None = None) -> None:
            super().__init__(server, rows_max)
            planted = lists(server, Counters())
            self.key_lists = self.reader._key_lists = self.writer._key_lists = planted

    return Planted


class SameSize(worker_lists.KeyLists):
    """Takes a list of as many ids for the same."""

    def find(self, wanted: Any, map_version: int) -> worker_lists.KeyList | None:
        lists = [*self._lists.get(wanted.table, {}).values()]
        super().find(wanted, map_version)
        return next((known for known in lists if known.ids.size == wanted.ids.size and known.map_version == map_version), None)


class ComparesSizes(Worker):
    def __init__(self, coordinator: str, world: World, patience: Patience | None = None, list_ids_min: int = 1) -> None:
        super().__init__(coordinator, world, patience, list_ids_min)
        lists = SameSize(world.exclusive, list_ids_min)
        self._key_lists = self._reader._key_lists = self._writer._key_lists = lists


class TakesItForDone(Asker):
    """Takes a list that is not known for an acknowledgement."""

    def ask(self, questions: Any, on_refused: Any = None) -> Operation[dict[str, Any]]:
        try:
            return (yield from super().ask({peer: question._replace(in_full=None) for peer, question in questions.items()}, on_refused))
        except UnknownKeyList:
            return dict.fromkeys(questions, Done())


class NeverResends(Worker):
    def __init__(self, coordinator: str, world: World, patience: Patience | None = None, list_ids_min: int = 1) -> None:
        super().__init__(coordinator, world, patience, list_ids_min)
        self._peers._asker = TakesItForDone(world, patience or Patience())


def is_found(shard_class: type[Shard], worker_class: type[Worker] = Worker) -> bool:
    for seed in range(SEEDS):
        sim = Simulation(seed, 2, ROUGH, shard_class, worker_class)
        ledger = relearned(sim, STEPS, Async())
        if any(getattr(node, "error", None) for node in sim.nodes.values()) or wrong_rows(sim, ledger, Async()):
            return True
    return False


@pytest.mark.parametrize("lists", [AnyList, OneForAll], ids=["another pull's list", "another rank's list"])
def test_a_server_that_takes_another_list_is_found(lists: type[KeyLists]) -> None:
    assert is_found(shard_with(lists))


@pytest.mark.parametrize("worker_class", [ComparesSizes, NeverResends], ids=lambda worker: worker.__name__)
def test_a_worker_that_takes_a_list_for_what_it_is_not_is_found(worker_class: type[Worker]) -> None:
    assert is_found(Forgetful, worker_class)


def test_slots_that_outlive_a_clear_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Table, "_remove", lambda table, ids: table._index.remove(read_only(ids)))
    assert is_found(Shard)


def test_nothing_is_found_where_nothing_is_planted() -> None:
    assert not is_found(Forgetful)
