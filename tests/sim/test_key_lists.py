"""Pushes that name their ids by a pull: sums stay exact whatever is lost, doubled, forgotten, cleared, moved; planted bugs are found."""

from typing import Any

import pytest

from ps_proto.errors import UnknownKeyList
from ps_proto.requests import Done, Fence, Ids
from ps_proto.values import Async, BoundedStaleness, Mode, Sync
from ps_server.shard.counters import Counters
from ps_server.shard.key_lists import KeyList, KeyLists
from ps_server.shard.shard import Shard
from ps_server.shard.table import Places, Table
from ps_worker.asking import Asker, Operation, Patience, World
from ps_worker.protocol import Worker
from ps_worker.protocol import key_lists as worker_lists
from sim.cluster import Simulation
from sim.relearning import ROUGH, Forgetful, counted, relearned, wrong_rows

MODES: list[Mode] = [Async(), BoundedStaleness(1), Sync()]
STEPS = 12
SEEDS = 24  # within which each planted bug is found


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

    def ask(self, questions: Any, on_refused: Any = None, look: Any = None) -> Operation[dict[str, Any]]:
        try:
            return (
                yield from super().ask({peer: question._replace(in_full=None) for peer, question in questions.items()}, on_refused, look)
            )
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
    clear_all = Table.clear_all

    def clear_but_slots(table: Table) -> None:
        standing = table._standing
        clear_all(table)
        table._standing = standing

    monkeypatch.setattr(Table, "clear_all", clear_but_slots)
    assert is_found(Shard)


def test_nothing_is_found_where_nothing_is_planted() -> None:
    assert not is_found(Forgetful)
