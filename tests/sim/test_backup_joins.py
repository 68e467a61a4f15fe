"""Who joins a job with backup workers, or leaves it: all servers count the rank from the same step on, whatever comes late (R8, R9)."""

from collections.abc import Callable, Generator
from typing import Any

import pytest

from jobs import TABLES, gradients_of, ids_of
from ps_proto.requests import OBSERVER, StepDecided
from ps_proto.values import Sync
from ps_worker.asking import Pause
from ps_worker.protocol import Worker
from sim.backup import Checked, NotingShard
from sim.cluster import Simulation
from sim.lives import Lives, beat
from sim.nodes import Script, WorkerNode
from sim.scripts import half_of, train

WORKERS = 3  # of which two make up a step, and of four ranks three
NEXT = WORKERS  # the rank of the first who joins
STEPS = 24
PAUSE_S = 0.1

Make = Callable[[int], Callable[[Worker], Script]]


class Begun:
    """A job of three ranks that is a few steps old. `pauses`: what a gradient takes each; `quiet`: ranks that renew no lease."""

    def __init__(self, seed: int, pauses: tuple[float, ...] = (PAUSE_S,) * WORKERS, quiet: tuple[int, ...] = ()) -> None:
        self.checked = Checked(Simulation(seed, 3, shard_class=NotingShard, lease_s=1.0), backup_workers=1)
        self.sim = self.checked.sim
        self.lives = Lives(self.sim, pause_s=(0.1, 0.3))
        self.nodes: list[WorkerNode] = []
        for rank, pause_s in enumerate(pauses):
            script = train(rank, WORKERS, STEPS if pause_s <= PAUSE_S else 5, Sync(1), self.checked.batches, pause_s)
            node = self.sim.worker(f"worker-{rank}", script)
            self.nodes.append(node)
            if rank not in quiet:
                self.sim.worker(f"worker-{rank}'s heart", _heart_of(node))
        self.sim.run(until=lambda: self.sim.coordinator.shard_map is not None and max(shard.step for shard in self.checked.shards) >= 3)

    def join(self, name: str, steps: int = 6) -> None:
        """Let somebody join, do some steps, and leave."""
        self.lives.add(name, self._joining(name, steps))

    def _joining(self, name: str, steps: int) -> Make:
        def make(nonce: int) -> Callable[[Worker], Script]:
            def script(worker: Worker) -> Script:
                yield from worker.join(OBSERVER, 0, None, nonce, resume=True, name=name)
                yield from worker.know([spec.name for spec in TABLES])
                for batch in range(steps):
                    yield from self._step(worker, batch)
                yield from worker.leave()

            return script

        return make

    def _step(self, worker: Worker, batch: int) -> Generator[Any, Any, None]:
        ids = {spec.name: ids_of(worker.rank, batch, spec.name) for spec in TABLES}
        rows = yield from worker.pull(list(ids.items()))
        self.checked.batches[worker.rank, worker.clock] = batch
        yield Pause(PAUSE_S / 4)
        gradients = {name: gradients_of(worker.rank, batch, ids[name], read) for name, read in zip(ids, rows, strict=True)}
        for half in (0, 1):
            yield from worker.push([half_of(name, ids[name], gradients[name], half) for name in ids])
        yield from worker.end_step()

    def finish(self, *names: str) -> None:
        """Let all end, and look at every step."""
        self.checked.finish(*self.nodes, *[self.lives.worker(name) for name in names])
        assert max([decision.ranks_count for decision in self.checked.folded]) > WORKERS - 1, "somebody has joined"

    def steps_of(self, rank: int) -> list[int]:
        """Return the steps that have a gradient of the rank."""
        return [decision.step for decision in self.checked.folded if rank in decision.ranks]

    def first_of(self, rank: int) -> int:
        """Return the first step of whose roster the rank is, on every server."""
        (first,) = {shard.clocks.since[rank] for shard in self.checked.shards}
        return first


def _heart_of(node: WorkerNode) -> Callable[[Worker], Script]:
    return lambda worker: beat(node)


def test_who_joins_is_late_at_once_and_goes_on_at_the_newest_step() -> None:
    job = Begun(1)
    job.join("joins")
    job.finish("joins")
    joined = job.lives.worker("joins").worker
    assert (joined.rank, joined.late_steps) == (NEXT, 0)
    assert min(step for rank, step in job.checked.batches if rank == NEXT) > job.first_of(NEXT)
    assert len(job.steps_of(NEXT)) > 0


def test_a_rank_that_is_always_late_may_be_the_only_one_that_brings_the_order() -> None:
    """The others are cut off from the coordinator, and decide all steps meanwhile."""
    job = Begun(2, pauses=(PAUSE_S, PAUSE_S, 0.5), quiet=(0, 1))
    job.join("joins")
    job.finish("joins")
    assert job.nodes[2].worker.late_steps > 0
    assert job.steps_of(2) == []
    assert job.first_of(NEXT) > 3


@pytest.mark.parametrize("fault", ["lost", "doubled", "overtaken", "answers lost"])
def test_a_decision_with_an_order_that_is_lost_doubled_or_late_admits_once_and_everywhere(fault: str) -> None:
    job = Begun(3)
    decider, (other, _) = job.checked.roles()
    network = job.sim.network
    match fault:
        case "lost":
            planned = network.drop_next(body=StepDecided, count=40)
        case "doubled":
            planned = network.double_next(body=StepDecided, count=40)
        case "overtaken":
            planned = network.delay_next(0.4, target=other, body=StepDecided, count=8)
        case _:
            planned = network.drop_next(source=other, target=decider, count=20)
    job.join("joins")
    job.finish("joins")
    assert planned.fired
    assert job.first_of(NEXT) > 3


def test_two_who_join_at_once_get_a_rank_each() -> None:
    job = Begun(4)
    for name in ("joins", "comes-too"):
        job.join(name)
    job.finish("joins", "comes-too")
    assert {job.lives.worker(name).worker.rank for name in ("joins", "comes-too")} == {NEXT, NEXT + 1}
    assert all(job.steps_of(rank) for rank in (NEXT, NEXT + 1))


def test_who_joins_may_leave_before_it_begins() -> None:
    job = Begun(5)
    job.join("joins", steps=0)
    job.finish("joins")
    assert job.steps_of(NEXT) == []
    assert [decision.ranks_count for decision in job.checked.folded][-1] in (1, 2), "it is waited for no more"


def test_who_dies_before_it_hears_that_it_has_joined_comes_back_to_its_rank() -> None:
    job = Begun(6)
    job.join("joins")
    job.sim.run(until=lambda: NEXT in job.checked.shards[0].clocks.since)
    job.sim.when(lambda: job.lives.kill("joins"), source="coordinator", target="joins")
    job.sim.run(until=lambda: job.lives.deaths["worker"] == 1)
    assert job.sim.coordinator.job is not None
    assert job.sim.coordinator.job.world_size == NEXT + 1
    job.sim.run(until=lambda: job.lives.worker("joins").is_done)
    job.finish("joins")
    assert len(job.steps_of(NEXT)) > 0


def test_who_has_left_joins_again_and_its_late_gradients_count_in_no_step_of_its_second_time() -> None:
    job = Begun(7)
    job.join("joins", steps=3)
    job.sim.run(until=lambda: job.lives.worker("joins").is_done)
    first = job.first_of(NEXT)
    job.join("comes-after", steps=3)
    job.finish("comes-after")
    assert job.lives.worker("comes-after").worker.rank == NEXT
    assert first < job.first_of(NEXT)


def test_the_order_outlives_a_coordinator_that_dies_once_it_is_stored() -> None:
    job = Begun(8)
    job.join("joins")
    job.sim.run(until=lambda: bool(job.sim.coordinator.job is not None and job.sim.coordinator.job.orders))
    job.lives.kill("coordinator")
    job.finish("joins")
    assert job.lives.deaths["coordinator"] == 1
    assert len(job.steps_of(NEXT)) > 0
