"""Bugs planted in what survives crashes: each is found, by a search over seeds or by the directed fault that it hides from."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from jobs import Ids, Rows, checksum
from naive.training import train as train_in_one_process
from ps_proto.values import Async
from ps_server.coordinator.schedule import Schedule
from ps_server.shard.checkpointer import Checkpointer
from ps_server.shard.table import Table
from ps_server.shard.window import Buckets, Window
from ps_server.storage import publishing
from ps_server.tasks import SavedNames
from sim.cluster import Simulation
from sim.counting import Counting
from sim.found_checkpoints import ROOT, FoundCheckpoints, rows_of
from sim.network import Chances
from sim.scripts import train

WORKERS, STEPS = 3, 8
ROUGH = Chances(drop=0.02, double=0.03, delay=0.05)
Plant = Callable[[pytest.MonkeyPatch], None]


def wrong_steps(seed: int, trouble: Callable[[Simulation], object]) -> Iterator[str]:
    """Yield each checkpoint of synchronous training that is not the rows of its step."""
    sim = Simulation(seed, 3, ROUGH, schedule=Schedule(ROOT, every_steps=1, keep=50, full_every=6))
    nodes = [sim.worker(f"worker-{rank}", train(rank, WORKERS, STEPS, pause_s=1.0)) for rank in range(WORKERS)]
    trouble(sim)
    sim.run(until=lambda: all([node.is_done for node in nodes]))
    assert [node.error for node in nodes] == [None] * len(nodes)
    found = FoundCheckpoints(sim)
    assert found.manifests
    for manifest in found.manifests:
        if held(rows_of(found.load(manifest, servers=2))) != held(train_in_one_process(WORKERS, manifest.step)):
            yield f"seed {seed}, checkpoint {manifest.number} is not step {manifest.step}"


def held(tables: dict[str, tuple[Ids, Rows]]) -> str:
    return checksum({name: rows for name, rows in tables.items() if rows[0].size})


def wrong_names(seed: int) -> Iterator[str]:
    """Yield each row of a checkpoint of asynchronous training that has other pushes than its names say."""
    sim = Simulation(seed, 2, ROUGH, schedule=Schedule(ROOT, every_s=2.0, keep=50))
    job = Counting(seed, WORKERS, STEPS, Async(), pause_s=1.0)
    nodes = [sim.worker(f"worker-{rank}", job.script(rank, 1 + rank)) for rank in range(WORKERS)]
    sim.run()
    assert [node.error for node in nodes] == [None] * len(nodes)
    found = FoundCheckpoints(sim)
    assert found.manifests
    for manifest in found.manifests:
        yield from job.faults_in(found.load(manifest, servers=2))


def a_part_fails(sim: Simulation) -> None:
    """D-g: the second checkpoint's part fails on one server, whose next increment has to have what that one had."""
    sim.run(until=lambda: len(FoundCheckpoints(sim).manifests) == 1)
    sim.nodes["server-1"].mount.fail_next("write")


def one_is_behind(sim: Simulation) -> None:
    """D-d: one server hears late what is finished, each time: it is a step behind the others when a checkpoint is asked for."""
    for server in ("server-0", "server-1", "server-2"):
        sim.network.delay_next(1.5, target=server, source="worker-0", count=6)


# --- what is planted -------------------------------------------------------------------------------------------------------------


def without_window(patch: pytest.MonkeyPatch) -> None:
    """A snapshot leaves the names of pushes out."""

    def saved(self: Window, buckets: Buckets) -> SavedNames:
        return SavedNames((), buckets.copy(), np.zeros((0, buckets.size), np.uint64))

    patch.setattr(Window, "saved", saved)


def forgets_bits(patch: pytest.MonkeyPatch) -> None:
    """A save that failed counts as one that is complete."""
    settle = Table.settle_save
    patch.setattr(Table, "settle_save", lambda table, is_committed: settle(table, True))


def any_step(patch: pytest.MonkeyPatch) -> None:
    """A server takes its part at whatever step it is, and nobody looks at whether the parts are of one."""

    def look(self: Any) -> None:
        if self._phase == "armed":
            self._take(self._order)

    patch.setattr(Checkpointer, "look", look)
    check = publishing._check_instant

    def unchecked(task: Any, parts: list[Any]) -> None:
        check(task, [part.model_copy(update={"step": parts[0].step}) for part in parts])

    patch.setattr(publishing, "_check_instant", unchecked)


def nothing(patch: pytest.MonkeyPatch) -> None:
    pass


@pytest.mark.parametrize("plant", [without_window, nothing], ids=lambda plant: plant.__name__)
def test_found_by_the_names(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any([fault for seed in range(2) for fault in wrong_names(seed)]) == (plant is not nothing)


@pytest.mark.parametrize("plant", [forgets_bits, nothing], ids=lambda plant: plant.__name__)
def test_found_by_a_part_that_fails(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any([fault for seed in range(2) for fault in wrong_steps(seed, a_part_fails)]) == (plant is not nothing)


@pytest.mark.parametrize("plant", [any_step, nothing], ids=lambda plant: plant.__name__)
def test_found_by_a_server_that_is_a_step_behind(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any([fault for seed in range(2) for fault in wrong_steps(seed, one_is_behind)]) == (plant is not nothing)
