"""Key lists under faults that are aimed at them: what arrives again, late or under another map, and what is forgotten meanwhile (R19)."""

from typing import Any

import numpy as np
import pytest

from jobs import counting_table
from ps_proto.requests import Done, Ids, Pull, Pulled, Push
from ps_proto.values import Async, Sync
from ps_server.shard import key_lists as server_lists
from ps_server.shard.key_lists import KeyList, KeyLists
from ps_server.shard.table import Table
from ps_worker.asking import Pause
from ps_worker.protocol import Worker
from ps_worker.protocol import key_lists as worker_lists
from sim.backup import Checked, NotingShard
from sim.cluster import Simulation
from sim.network import Fault
from sim.nodes import Script
from sim.relearning import ROUGH, Forgetful, counted
from sim.scripts import train

STEPS = 12


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


FIRST, SECOND = IDS[:45], IDS[45:]  # as many of each, so that a list taken for another shows


def ones(ids: Ids) -> tuple[str, Ids, Any]:
    return "a", ids, np.ones((ids.size, 2), np.float32)


def lines(*said: Any) -> Any:
    """Be rank 0, push once so that pulls are remembered, and do what is said: ("pull", ids), ("push", ids) or ("pause", seconds)."""

    def script(worker: Worker, nonce: int = 1) -> Script:
        yield from worker.join(0, 1, Async(), nonce)
        yield from worker.create_table(counting_table("a"))
        yield from worker.push([("a", IDS[:1], np.zeros((1, 2), np.float32))])
        for verb, what in said:
            match verb:
                case "pull":
                    yield from worker.pull([("a", what)])
                case "push":
                    yield from worker.push([ones(what)])
                case "pause":
                    yield Pause(what)

    return script


def noted(sim: Simulation, source: str, body: type, count: int = 1) -> Fault:
    """Note the next messages of a worker; they arrive as ever."""
    return sim.network.delay_next(0.0, source=source, body=body, count=count)


def check_each_was_pushed(sim: Simulation, times: dict[str, float]) -> None:
    expected = {"first": FIRST, "second": SECOND}
    assert {name: {sim.row("a", int(id))[0] for id in expected[name]} for name in times} == {
        name: {-count} for name, count in times.items()
    }


def test_what_a_replaced_worker_said_is_no_list_of_its_successor() -> None:
    """Both count their pulls from 1. What the first one said arrives again between the second's pull and its push."""
    sim = Simulation(3, servers=1)
    pull, push = noted(sim, "old", Pull), sim.network.delay_next(0.0, source="old", body=Push, count=2)
    sim.worker("old", lines(("pull", FIRST), ("push", FIRST), ("pause", 1000.0)))
    sim.run(until=lambda: counted(sim, "rows_listed") == FIRST.size)
    script = lines(("pull", SECOND), ("pause", 1.0), ("push", SECOND))
    new = sim.worker("new", lambda worker: script(worker, nonce=2))
    pulled = noted(sim, "new", Pull)
    sim.run(until=lambda: counted(sim, "rows_pulled") == FIRST.size + SECOND.size)
    assert [fault.hits[-1].body.tables[0].pull for fault in (pull, pulled, push)] == [1, 1, 1]
    for message in (pull.hits[0], push.hits[1], pull.hits[0]):
        sim._deliver(message)
    sim.run(until=lambda: new.is_done)
    assert new.error is None
    assert counted(sim, "rows_listed") == FIRST.size + SECOND.size
    check_each_was_pushed(sim, {"first": 1.0, "second": 1.0})


def test_a_pull_that_is_answered_late_and_twice_is_the_list_of_its_own_number() -> None:
    """Its answer is lost, so it is asked again; copies of it arrive after a newer pull, and after both were pushed."""
    sim = Simulation(4, servers=1)
    lost = sim.network.drop_next(source="server-0", target="worker-0", body=Pulled)
    asked = noted(sim, "worker-0", Pull, count=3)
    said = (("pull", FIRST), ("pull", SECOND), ("pause", 1.0), ("push", FIRST), ("push", SECOND), ("pause", 1.0), ("push", SECOND))
    node = sim.worker("worker-0", lines(*said))
    sim.run(until=lambda: asked.fired)
    assert lost.fired
    assert [message.body.tables[0].pull for message in asked.hits] == [1, 1, 2]
    sim.run(until=lambda: counted(sim, "rows_pulled") == 3 * FIRST.size)
    sim._deliver(asked.hits[0])
    sim.run(until=lambda: counted(sim, "rows_listed") == 2 * FIRST.size)
    sim._deliver(asked.hits[0])
    sim._deliver(asked.hits[2])
    sim.run()
    assert node.error is None
    assert counted(sim, "rows_listed") == 3 * FIRST.size
    check_each_was_pushed(sim, {"first": 1.0, "second": 2.0})


def test_a_list_is_not_known_again_where_its_buckets_have_moved_away_and_back() -> None:
    sim = Simulation(5, servers=2)
    said = (("pull", FIRST), ("pause", 1.0), ("push", FIRST), ("pull", FIRST), ("push", FIRST))
    node = sim.worker("worker-0", lines(*said))
    pushes = noted(sim, "worker-0", Push, count=4)
    sim.run(until=lambda: counted(sim, "rows_pulled") == FIRST.size)
    moved = [sim.move_buckets(*names, share=1.0).owners for names in (("server-0", "server-1"), ("server-1", "server-0"))]
    assert (moved[0] != moved[1]).any()
    sim.run()
    assert node.error is None
    assert pushes.fired
    assert counted(sim, "rows_listed") == FIRST.size, "the second push alone"
    check_each_was_pushed(sim, {"first": 2.0})


class ForgetfulNoting(Forgetful, NotingShard):
    """Forgets key lists, and notes its folds."""


@pytest.mark.parametrize("backup_workers", [0, 1])
def test_a_job_with_late_ranks_that_names_its_pulls_folds_what_the_slow_twin_does(backup_workers: int) -> None:
    job = Checked(Simulation(6, 2, ROUGH, ForgetfulNoting), backup_workers)
    scripts = [
        train(rank, 3, STEPS, Sync(backup_workers), job.batches, pause_s=0.04 * rank * backup_workers, pulls_halves=True)
        for rank in range(3)
    ]
    job.finish(*[job.sim.worker(f"worker-{rank}", script) for rank, script in enumerate(scripts)])
    assert counted(job.sim, "rows_listed") > 0
    assert (sum(shard.counters.pushes_late for shard in job.shards) > 0) == (backup_workers > 0)


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
