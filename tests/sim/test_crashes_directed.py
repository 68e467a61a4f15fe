"""Deaths where a random search seldom falls: each is aimed at one message, and says that it hit."""

from functools import partial

import pytest

from ps_proto.errors import RolledBack
from ps_proto.orders import BeginCheckpoint, FenceRank, InstallMap, RankFenced, ResolveRank, RollBack
from ps_proto.requests import NEVER, BarrierPassed, JobJoined, Pull, Push, RegisterServer
from ps_proto.values import Async
from ps_server.coordinator.schedule import Schedule
from ps_server.storage.program import List, Program
from ps_server.storage.programs import PROGRAMS
from ps_server.storage.publishing import publish
from ps_server.tasks import PublishCheckpoint, Published
from sim.cluster import Programs, Simulation
from sim.counting import Counting
from sim.found_checkpoints import ROOT, FoundCheckpoints, held, held_after
from sim.lives import Lives
from sim.network import Message
from sim.scripts import train_on, trained

STEPS = 8
OTHERS = ("server-1", "server-2")


def simulation(
    seed: int = 1, every_steps: int = 2, every_s: float = 0.0, keep: int = 3, programs: Programs = PROGRAMS
) -> tuple[Simulation, Lives]:
    schedule = Schedule(ROOT, every_steps=every_steps, every_s=every_s, keep=keep)
    sim = Simulation(seed, 3, schedule=schedule, lease_s=3.0, awaits_registration=True, programs=programs)
    return sim, Lives(sim, pause_s=(0.5, 0.5))


def training(lives: Lives, workers: int = 2) -> None:
    for rank in range(workers):
        lives.add(f"worker-{rank}", partial(train_on, rank, workers, STEPS, pause_s=0.3))


def check_bits(lives: Lives, workers: int = 2) -> None:
    lives.run()
    lives.sim.check()
    assert held(trained(lives.sim)) == held_after(workers, STEPS)


def finished_at_one_server(lives: Lives) -> None:
    """Let rank 0 tell server-0 alone that it finished step 3, and die of it."""
    sim = lives.sim
    sim.run(until=lambda: [facts_of(sim, server) for server in sim.shards] == [2, 2, 2])
    for server in OTHERS:
        sim.network.drop_next(source="worker-0", target=server, body=Pull, count=1000)  # of step 4: that of 3 has arrived
    sim.run(until=lambda: facts_of(sim, "server-0") == 3)
    assert [facts_of(sim, server) for server in OTHERS] == [2, 2]
    lives.kill("worker-0")
    sim.network.faults.clear()


def facts_of(sim: Simulation, server: str) -> int:
    """Return the last step that a server has heard rank 0 to have finished."""
    fact = sim.shards[server].facts.get(0)
    return NEVER if fact is None else fact.clock


def test_a_step_that_one_server_heard_of_is_finished_everywhere() -> None:
    sim, lives = simulation()
    training(lives)
    finished_at_one_server(lives)
    sim.run(until=lambda: lives.worker("worker-0").worker.clock >= 4)
    assert lives.worker("worker-0").worker.clock == 4, "it is not redone"
    check_bits(lives)


@pytest.mark.parametrize(
    "moment",
    [
        {},  # before the worker is back
        {"target": "server-0", "body": FenceRank},
        {"source": "server-0", "body": RankFenced},
        {"target": "server-1", "body": ResolveRank},
        {"target": "server-0", "body": ResolveRank},
        {"target": "worker-0", "body": JobJoined},
    ],
    ids=["at once", "before its fence", "after its fence", "before another resolves", "before it resolves", "before the worker knows"],
)
def test_the_one_server_that_heard_of_a_step_dies_too(moment: dict[str, object]) -> None:
    """D-a: whatever of fence, resolve and rollback comes first, all go by the checkpoint."""
    sim, lives = simulation()
    training(lives)
    finished_at_one_server(lives)
    if moment:
        sim.when(lambda: lives.kill("server-0"), **moment)  # type: ignore[arg-type]  # as they are above
        sim.run(until=lambda: lives.deaths["server"] == 1)
    else:
        lives.kill("server-0")
    check_bits(lives)
    assert lives.timeline == 1
    assert any(isinstance(error, RolledBack) for error in lives.errors)


@pytest.mark.parametrize("server", ["server-0", "server-1", "server-2"])
def test_the_coordinator_dies_between_two_orders_that_settle_a_rank(server: str) -> None:
    """D-b: its successor finds the incarnation that it stored, and the worker's repeated question gets no other one."""
    sim, lives = simulation()
    training(lives)
    finished_at_one_server(lives)
    late = [sim.network.drop_next(target=other, body=ResolveRank) for other in sim.shards if other != server]
    sim.when(lambda: lives.kill("coordinator"), target=server, body=ResolveRank)
    sim.run(until=lambda: lives.deaths["coordinator"] == 1)
    assert all(fault.fired for fault in late)
    check_bits(lives)
    assert sim.coordinator.ranks.incarnations.newest(0) == 2


@pytest.mark.parametrize("effects", range(8))
def test_the_coordinator_dies_between_any_two_effects_of_a_rollback(effects: int) -> None:
    sim, lives = simulation()
    training(lives)
    sim.run(until=lambda: lives.worker("worker-0").worker.clock == 5)
    lives.kill("server-1")
    node = sim.nodes["coordinator"]

    def die_soon() -> None:
        node.dies_after = node.effects_count + effects

    sim.when(die_soon, target="coordinator", body=RegisterServer)
    check_bits(lives)
    assert node.is_dead
    assert lives.timeline >= 1


def test_a_worker_hands_a_restarted_server_the_map_of_before() -> None:
    """D-c: the server must not serve by it, or its rows would read as initial ones."""
    sim, lives = simulation()
    training(lives)
    sim.run(until=lambda: lives.worker("worker-0").worker.clock == 5)
    old_map = sim.coordinator.shard_map
    assert old_map is not None
    sim.network.delay_next(3.0, source="server-0's edge", target="coordinator", body=RegisterServer)
    lives.kill("server-0")
    sim.run(until=lambda: not sim.nodes["server-0"].is_dead)
    restarted = sim.shards["server-0"]
    for _ in range(3):
        sim.network.send(Message("worker-0", "server-0", "ask", sim.next_call(), InstallMap(old_map)))
    sim.run(until=lambda: restarted.membership.shard_map is not None)
    check_bits(lives)


@pytest.mark.parametrize("is_heard_first", [False, True], ids=["after the next process", "before it"])
def test_what_a_dead_process_said_of_itself_comes_late(is_heard_first: bool) -> None:
    """The process that listens where it did is the one that counts, else all wait for ever for one that is gone."""
    sim, lives = simulation()
    training(lives)
    sim.run(until=lambda: lives.worker("worker-0").worker.clock == 5)
    lives.kill("server-0")
    sim.run(until=lambda: not sim.nodes["server-0"].is_dead)
    node = sim.nodes["server-0"]
    if is_heard_first:
        sim.network.delay_next(1.0, source="server-0's edge", target="coordinator", body=RegisterServer)
    else:
        sim.run(until=lambda: sim.nodes["server-0's edge"].is_done)
    late = RegisterServer("server-0", node.address, nonce=99)
    sim.network.send(Message("server-0's edge", "coordinator", "ask", sim.next_call(), late))
    check_bits(lives)
    assert lives.timeline == 1, "and not for its sake"
    assert sim.nodes["server-0"] is node


def test_what_a_dead_process_said_of_itself_comes_late_while_the_next_one_is_cut_off() -> None:
    """The next one listens elsewhere, and seems to be gone. It must not lose its name to one that is: nobody would tell it."""
    sim, lives = simulation()
    training(lives)
    sim.run(until=lambda: lives.worker("worker-0").worker.clock == 5)
    node = sim.nodes["server-0"]
    sim.network.isolate("server-0")
    late = RegisterServer("server-0", "long ago", nonce=99)
    sim.network.send(Message("worker-0", "coordinator", "ask", sim.next_call(), late))
    sim.time.at(sim.time.now_s + 3.0, sim.network.heal)
    check_bits(lives)
    assert lives.timeline == 0
    assert sim.nodes["server-0"] is node


def test_two_servers_die_and_one_of_them_again_while_it_loads() -> None:
    sim, lives = simulation()
    training(lives)
    sim.run(until=lambda: lives.worker("worker-0").worker.clock == 5)
    lives.kill("server-0")
    lives.kill("server-1")
    sim.when(lambda: lives.kill("server-0"), target="server-0", body=RollBack)
    check_bits(lives)
    assert lives.deaths["server"] == 3


def test_a_checkpoint_that_is_about_to_be_complete_is_so_before_all_go_back_or_never() -> None:
    """Complete later, it would be a newer one of a time that is gone, and take the place of the one on which all stand."""
    begun: list[int] = []

    def publish_slowly(task: PublishCheckpoint) -> Program[Published]:
        begun.append(task.number)
        if len(begun) == 2:
            for _ in range(300):
                yield List(task.root, "")
        return (yield from publish(task))

    sim, lives = simulation(keep=1, programs=PROGRAMS | {PublishCheckpoint: publish_slowly})
    training(lives)
    sim.run(until=lambda: len(begun) == 2)
    lives.kill("server-0")
    sim.run(until=lambda: lives.timeline == 1)
    last = FoundCheckpoints(sim).manifests[-1]
    assert (last.number, last.timeline) == (begun[1], 0)
    check_bits(lives)


def test_a_worker_that_waits_for_a_dead_server_alone_hears_of_the_rollback() -> None:
    """The server comes back elsewhere; none of the others is asked anything, so that the lease has to learn it."""
    sim, lives = simulation()
    training(lives)
    sim.run(until=lambda: lives.worker("worker-0").worker.clock == 5)
    lives.kill("server-0")
    died_s = sim.time.now_s
    check_bits(lives)
    assert sim.time.now_s - died_s < 60.0, "and not when its retries are over"
    assert {type(error) for error in lives.errors} == {RolledBack}


# --- applied on arrival ------------------------------------------------------------------------------------------------------------


def counting(lives: Lives, job: Counting) -> None:
    for rank in range(job.world_size):
        lives.add(f"worker-{rank}", partial(job.script, rank, resumes=True))


def check_counts(lives: Lives, job: Counting) -> None:
    lives.run()
    lives.sim.check()
    assert job.torn == []
    assert list(job.missing_or_double(lives.sim)) == []


def test_a_worker_dies_when_one_of_two_servers_has_its_push() -> None:
    """D-e: the redone push has the same name, and is dropped where it had arrived."""
    sim, lives = simulation(every_steps=0, every_s=2.0)
    job = Counting(3, 2, STEPS, Async(), pause_s=1.0)
    counting(lives, job)
    sim.run(until=lambda: lives.worker("worker-0").worker.clock == 4)
    lost = [sim.network.drop_next(source="worker-0", target=server, body=Push) for server in OTHERS]
    sim.when(lambda: lives.kill("worker-0"), source="worker-0", target="server-0", body=Push)
    sim.run(until=lambda: lives.deaths["worker"] == 1)
    assert any(fault.fired for fault in lost)
    check_counts(lives, job)
    assert sum(shard.counters.table("a").rows_repeated for shard in sim.shards.values()) > 0


def test_the_coordinator_dies_before_it_has_stored_what_it_is_about_to_tell() -> None:
    """R13: a worker that was told that it takes part is known at the next barrier, also by a coordinator that was started since."""
    sim, lives = simulation(every_steps=0)
    job = Counting(6, 1, STEPS, Async(), pause_s=1.0)

    def die_soon() -> None:
        sim.store.dies_before = sim.store.commits_count

    sim.when(die_soon, body=ResolveRank)  # what is stored next is that the rank takes part
    counting(lives, job)
    check_counts(lives, job)
    assert lives.deaths["coordinator"] == 1
    assert lives.errors == []


def test_a_server_dies_where_the_parts_of_a_checkpoint_are_of_different_steps() -> None:
    """Without synchronous tables each server has its own instant; a rank goes on after the least of its clocks, and redoes the others'."""
    sim, lives = simulation(every_steps=0, every_s=3.0)
    job = Counting(7, 2, STEPS, Async(), pause_s=3.0)
    counting(lives, job)
    late = sim.network.delay_next(4.0, target="server-1", body=BeginCheckpoint, count=4)
    sim.run(until=lambda: bool(FoundCheckpoints(sim).manifests))
    assert late.hits
    lives.kill("server-2")
    check_counts(lives, job)
    assert lives.timeline == 1


def test_the_coordinator_dies_when_some_know_that_a_barrier_is_passed() -> None:
    """D-h: who asks again is told that it was passed, and waits for nobody who has gone on."""
    sim, lives = simulation(every_steps=0)
    job = Counting(4, 3, STEPS, Async(), pause_s=1.0)
    counting(lives, job)
    lost = sim.network.drop_next(source="coordinator", target="worker-1", body=BarrierPassed)
    sim.when(lambda: lives.kill("coordinator"), target="worker-0", body=BarrierPassed)
    sim.run(until=lambda: lives.deaths["coordinator"] == 1)
    assert lost.fired
    check_counts(lives, job)


def test_a_rank_that_left_is_started_again_where_the_cluster_goes_back_to_before() -> None:
    """D-i: its last steps are gone, and nobody but its launcher can bring them back."""
    sim, lives = simulation(every_steps=0, every_s=2.0)
    job = Counting(5, 2, STEPS, Async(), pause_s=1.0)
    counting(lives, job)
    first = lives.worker("worker-0")
    sim.run(until=lambda: first.worker.clock >= 2 and bool(FoundCheckpoints(sim).manifests))
    sim.network.drop_next(body=BeginCheckpoint, count=1000)
    sim.run(until=lambda: first.is_done)
    assert not FoundCheckpoints(sim).manifests[-1].ranks[0].has_left
    lives.kill("server-2")
    check_counts(lives, job)
    assert lives.worker("worker-0") is not first
