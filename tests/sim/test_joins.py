"""Workers that leave a running job and join it on purpose, while others die: each step is made of exactly its roster (R6, R8)."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from ps_proto.errors import RolledBack
from ps_proto.orders import RankFenced
from ps_proto.requests import NEVER, Decision, Done, Finished
from ps_proto.values import Async, BoundedStaleness, Mode, Sync
from ps_server.coordinator.schedule import Schedule
from ps_server.shard.clocks import Clocks
from sim import backup, cluster
from sim.cluster import Simulation
from sim.found_checkpoints import ROOT, FoundCheckpoints, held
from sim.lives import Lives
from sim.members import OWN_IDS, STEPS, Counter, Member, NotingShard, Run, Trainer, noting, run
from sim.network import Chances
from sim.scripts import trained

NO_FAULTS = Chances()


def check_bits(seed: int, kinds: tuple[str, ...], backup_workers: int = 0, shard_class: type[NotingShard] = NotingShard) -> Run:
    job = run(seed, Sync(backup_workers), Trainer, kinds, shard_class)
    steps = job.steps()
    if not backup_workers:
        assert len(steps) == STEPS
        assert all([len(step.ranks) == step.ranks_count for step in steps]), "each is of its whole roster"
        assert len({step.ranks_count for step in steps}) > 1, f"seed {seed}"
    assert held(trained(job.sim)) == job.checksum(), f"seed {seed}"
    return job


def counts(shards: type[NotingShard], rank: int, step: int, timeline: int) -> bool:
    """Return whether no rollback has withdrawn a push."""
    return all([step <= finished.get(rank, NEVER) for later, finished in shards.finished.items() if later > timeline])


def check_counts(seed: int, mode: Mode, kinds: tuple[str, ...]) -> Run:
    job = run(seed, mode, Counter, kinds)
    pushed = [push for member in job.members for push in member.pushed if counts(job.shards, *push)]
    for rank in range(4):
        done = {step for its, step, _ in pushed if its == rank}
        for id in range(OWN_IDS):
            row = job.sim.row("a", rank * OWN_IDS + id)
            assert row == [-float(sum(step >= id for step in done))] * 2, f"seed {seed}, rank {rank}"
    return job


KINDS = ("worker", "coordinator")
ALL_KINDS = (*KINDS, "server")


def has_gone_back(job: Run) -> bool:
    return job.lives.timeline > 0


def has_withdrawn(job: Run) -> bool:
    """Return whether a worker had joined that was none at the checkpoint to which all went back."""
    return any([isinstance(error, RolledBack) and error.clock == NEVER for error in job.lives.errors])


def has_joined(job: Run) -> bool:
    """Return whether a step is of somebody who joined."""
    return max([rank for step in job.steps() for rank in step.ranks]) >= job.members[0].world_size


def was_late(job: Run) -> bool:
    return sum([shard.counters.pushes_late + shard.counters.contributions_dropped for shard in job.sim.shards.values()]) > 0


def was_removed(job: Run) -> bool:
    """Return whether somebody who was removed has come back."""
    return any([shard.clocks.since.get(rank) for shard in job.sim.shards.values() for rank in range(job.members[0].world_size)])


@pytest.mark.parametrize("seed", range(4))
def test_each_step_is_of_its_roster(seed: int) -> None:
    assert not has_gone_back(check_bits(seed, KINDS if seed % 2 else ()))


@pytest.mark.parametrize("mode", [Async(), BoundedStaleness(1)], ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_each_push_of_those_who_come_and_go_counts_once(seed: int, mode: Mode) -> None:
    assert not has_gone_back(check_counts(seed, mode, KINDS if seed % 2 else ()))


def test_each_step_is_of_its_roster_also_where_all_go_back() -> None:
    runs = [check_bits(seed, ALL_KINDS) for seed in range(2, 8)]
    assert any([has_gone_back(job) for job in runs])
    assert any([has_withdrawn(job) for job in runs])


@pytest.mark.parametrize("backup_workers", [1, 2])
def test_each_step_is_of_the_first_of_its_roster(backup_workers: int) -> None:
    runs = [check_bits(seed, KINDS if seed % 2 else (), backup_workers) for seed in range(4)]
    for has_been in (has_joined, was_late, was_removed):
        assert any([has_been(job) for job in runs])


@pytest.mark.parametrize("backup_workers", [1, 2])
def test_each_step_is_of_the_first_of_its_roster_also_where_all_go_back(backup_workers: int) -> None:
    runs = [check_bits(seed, ALL_KINDS, backup_workers) for seed in range(5)]
    for has_been in (has_gone_back, has_withdrawn, has_joined, was_late):
        assert any([has_been(job) for job in runs])


class FollowsAsItHears(backup.NotingDecider):
    """Follows orders after the step that they came with, and not after the one whose decision has them."""

    def keep_orders(self, finished: Finished, step: int) -> Finished:
        if finished.clock >= step:
            self._orders.keep(finished.clock, finished.orders)
        return finished

    def hear(self, decision: Decision, step: int, world_size: int) -> None:
        super().hear(replace(decision, orders=()), step, world_size)

    def next(self, step: int, clocks: Clocks, facts: Mapping[int, Finished]) -> Decision | None:
        decision = super().next(step, clocks, facts)
        if decision is None or self.decides:
            return decision
        self.folded[-1] = replace(decision, orders=tuple(self._orders.take(step)))
        return self.folded[-1]


class FollowsAsItHearsShard(NotingShard):
    decider_class = FollowsAsItHears


def test_a_server_that_follows_orders_as_it_hears_them_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "VIRTUAL_LIMIT_S", 120.0)  # a hang is a find, too
    with pytest.raises(AssertionError):
        [check_bits(seed, (), 1, FollowsAsItHearsShard) for seed in range(8)]


@pytest.mark.parametrize("mode", [Async(), BoundedStaleness(1)], ids=str)
def test_each_push_counts_once_also_where_all_go_back(mode: Mode) -> None:
    runs = [check_counts(seed, mode, ALL_KINDS) for seed in range(6)]
    assert any([has_gone_back(job) for job in runs])
    assert any([has_withdrawn(job) for job in runs])


@pytest.mark.parametrize(("mode", "member"), [(Sync(), Trainer), (Async(), Counter)], ids=["sync", "async"])
def test_a_rank_is_its_new_holders_also_where_the_coordinator_had_yet_to_hear_of_it(mode: Mode, member: type[Member]) -> None:
    """Rank 1 has left, and all servers have admitted another worker to it at the checkpoint; nobody else could ever take it."""
    shards = noting()
    sim = Simulation(1, 2, NO_FAULTS, shards, schedule=Schedule(ROOT, every_s=2.0), lease_s=2.0, awaits_registration=True)
    lives = Lives(sim)
    first, second, joins = member(mode, 0), member(mode, 1, last=3), member(mode, name="joins")
    lives.add("worker-0", first.script)
    lives.add("worker-1", second.script)
    sim.run(until=lambda: lives.worker("worker-1").is_done)
    lives.add("joins", joins.script)

    def has_it() -> bool:
        return all([1 in shard.clocks.since for shard in sim.shards.values()])

    if isinstance(mode, Sync):
        sim.network.drop_next(target="coordinator", body=RankFenced, count=10_000)  # the order rides in what rank 0 says of its step
    else:
        sim.network.drop_next(target="coordinator", body=Done, count=10_000)
    sim.run(until=has_it)
    sim.run(until=lambda: any([rank.since is not None for rank in FoundCheckpoints(sim).manifests[-1].ranks]))
    job = sim.coordinator.job
    assert job is not None
    assert [order.rank for order in job.orders] == [1], "the coordinator has yet to hear of it"
    lives.kill("server-0")
    sim.network.faults.clear()
    lives.run()
    sim.check()
    assert lives.timeline == 1
    assert lives.worker("joins").worker.rank == 1
    assert sim.coordinator.job is not None
    assert sim.coordinator.job.world_size == 2


@pytest.mark.parametrize(("mode", "member"), [(Sync(), Trainer), (Async(), Counter)], ids=["sync", "async"])
def test_a_removed_rank_that_had_come_back_is_its_workers_where_all_go_back_to_before_that(mode: Mode, member: type[Member]) -> None:
    shards = noting()
    sim = Simulation(1, 2, NO_FAULTS, shards, schedule=Schedule(ROOT, every_s=2.0), lease_s=2.0, awaits_registration=True)
    lives = Lives(sim)
    members = [member(mode, rank, on_lost_worker="continue") for rank in (0, 1)]
    members[0].is_needed = lambda: lives.are_others_at_work("worker-0")
    for one in members:
        lives.add(f"worker-{one.rank}", one.script)
    sim.run(until=lambda: max(shard.clocks.clock_max for shard in sim.shards.values()) >= 2)
    usual_s, lives.pause_s = lives.pause_s, (9.0, 9.0)
    lives.kill("worker-1")
    sim.run(until=lambda: FoundCheckpoints(sim).manifests[-1].ranks[1].has_left)
    sim.run(until=lambda: lives.worker("worker-1").worker.incarnation > 2)  # which is that of the removal
    assert FoundCheckpoints(sim).manifests[-1].ranks[1].has_left
    lives.pause_s = usual_s
    lives.kill("server-0")
    sim.run(until=lambda: lives.timeline == 1)
    lives.add("joins", member(mode, name="joins").script)
    lives.run()
    sim.check()
    assert lives.worker("joins").worker.rank == 2
    assert lives.worker("worker-1").error is None
    assert sim.coordinator.job is not None
    assert sim.coordinator.job.world_size == 3


@pytest.mark.deep
@pytest.mark.timeout(7200)
def test_who_comes_and_goes_changes_nothing_else_in_a_long_search() -> None:
    for seed in range(1000, 1600):
        check_bits(seed, ALL_KINDS)
        check_bits(seed, ALL_KINDS, backup_workers=1 + seed % 2)
        check_counts(seed, Async(), ALL_KINDS)
        check_counts(seed, BoundedStaleness(seed % 3), ALL_KINDS)
