"""Bugs planted in what survives crashes: each is found, by a search over seeds or by the directed fault that it hides from."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ps_proto.orders import ProcessNamed
from ps_proto.requests import ServerRegistered
from ps_proto.values import Async
from ps_server.coordinator import ranks
from ps_server.coordinator.contenders import Contender
from ps_server.coordinator.core import CoordinatorCore
from ps_server.coordinator.members import Members
from ps_server.coordinator.schedule import Schedule
from ps_server.events import Effect, Persist
from ps_server.shard.checkpointer import Checkpointer
from ps_server.shard.table import Table
from ps_server.shard.window import Buckets, Window
from ps_server.storage import publishing
from ps_server.tasks import SavedNames
from ps_worker.protocol.writing import Writer
from sharding.shard_map import Server
from sim import cluster
from sim import test_crashes_directed as directed
from sim.cluster import Simulation
from sim.counting import Counting
from sim.found_checkpoints import ROOT, FoundCheckpoints, held, held_after, rows_of
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
        if held(rows_of(found.load(manifest, servers=2))) != held_after(WORKERS, manifest.step):
            yield f"seed {seed}, checkpoint {manifest.number} is not step {manifest.step}"


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
    assert any(fault for seed in range(2) for fault in wrong_names(seed)) == (plant is not nothing)


@pytest.mark.parametrize("plant", [forgets_bits, nothing], ids=lambda plant: plant.__name__)
def test_found_by_a_part_that_fails(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(fault for seed in range(2) for fault in wrong_steps(seed, a_part_fails)) == (plant is not nothing)


@pytest.mark.parametrize("plant", [any_step, nothing], ids=lambda plant: plant.__name__)
def test_found_by_a_server_that_is_a_step_behind(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(fault for seed in range(2) for fault in wrong_steps(seed, one_is_behind)) == (plant is not nothing)


# --- in what comes back ----------------------------------------------------------------------------------------------------------


def fence_of_one(patch: pytest.MonkeyPatch) -> None:
    """Only one server is asked how far a rank came."""
    fact, finished = ranks.last_fact, ranks.last_finished
    patch.setattr(ranks, "last_fact", lambda fenced: fact(fenced[-1:]))
    patch.setattr(ranks, "last_finished", lambda fenced: finished(fenced[-1:]))


def initial_rows(patch: pytest.MonkeyPatch) -> None:
    """A server that was started again is taken in as if it had been there all the time, and serves what it has: nothing."""
    admit, registered = Members._admit, Members._registered

    def _admit(members: Members, server: Server, nonce: int) -> ServerRegistered:
        known = members.servers.get(server.name)
        if known is None or members.shard_map is None:
            return admit(members, server, nonce)
        members.servers[server.name], members._processes[server.name] = known, nonce
        return registered(members, known)

    patch.setattr(Members, "_admit", _admit)


def believes_every_message(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks for the name of a server that is gone gets it, although nobody knows whether it is there itself."""
    check = Contender.check

    def unchecked(contender: Contender) -> None:
        contender.answers[contender.server.address] = ProcessNamed(contender.body.nonce)
        check(contender)

    patch.setattr(Contender, "check", unchecked)


def clock_of_another(patch: pytest.MonkeyPatch) -> None:
    """A rank goes on after the most that any server had heard of it, and not the least."""
    find = publishing._ranks_of

    def _ranks_of(parts: list[Any], removals: Any) -> Any:
        found = []
        for rank in find(parts, removals):
            clock = max([part.clocks[rank.rank] for part in parts])
            shard = next((shard for shard, part in enumerate(parts) if part.facts.get(rank.rank) == clock), None)
            found.append(rank.model_copy(update={"clock": clock, "shard": shard}))
        return tuple(found)

    patch.setattr(publishing, "_ranks_of", _ranks_of)


def tells_first(patch: pytest.MonkeyPatch) -> None:
    """The coordinator stores what it has told already."""
    handle = CoordinatorCore.handle

    def last(core: CoordinatorCore, event: Any, now_s: float) -> list[Effect]:
        return sorted(handle(core, event, now_s), key=lambda effect: isinstance(effect, Persist))

    patch.setattr(CoordinatorCore, "handle", last)


def start_values_take_names(patch: pytest.MonkeyPatch) -> None:
    """Values that are put where there are none take names of the step, so that a script which begins again names its pushes otherwise."""
    assign = Writer.assign

    def _assign(writer: Writer, tables: Any, only_absent: bool) -> Any:
        if only_absent:
            writer._steps.take_name(is_push=False)
        return assign(writer, tables, only_absent)

    patch.setattr(Writer, "assign", _assign)


@pytest.mark.parametrize(
    ("plant", "fault"),
    [
        (fence_of_one, directed.test_a_step_that_one_server_heard_of_is_finished_everywhere),
        (initial_rows, directed.test_a_worker_hands_a_restarted_server_the_map_of_before),
        (believes_every_message, directed.test_what_a_dead_process_said_of_itself_comes_late_while_the_next_one_is_cut_off),
        (clock_of_another, directed.test_a_server_dies_where_the_parts_of_a_checkpoint_are_of_different_steps),
        (tells_first, directed.test_the_coordinator_dies_before_it_has_stored_what_it_is_about_to_tell),
        (start_values_take_names, directed.test_a_worker_dies_when_one_of_two_servers_has_its_push),
    ],
    ids=lambda each: each.__name__,
)
def test_found_by_the_directed_fault(plant: Plant, fault: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the bug, that test passes."""
    monkeypatch.setattr(cluster, "VIRTUAL_LIMIT_S", 60.0)  # a hang is a find, too
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        fault()
