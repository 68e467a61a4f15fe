"""A coordinator that dies at any instant and goes on from what it stored (R13), with servers that are real."""

from dataclasses import replace
from typing import Any

import pytest

from driven import REFUSED, SPEC, Driver, driven, join, register, restarted
from mortal import Script, World, finish, lived
from ps_proto.errors import InvalidRequest, ParameterServerError, StaleIncarnation, Unreachable
from ps_proto.orders import FenceRank, InstallMap, RankFenced
from ps_proto.requests import (
    Barrier,
    BarrierPassed,
    CreateTable,
    Finished,
    GetCluster,
    JobJoined,
    JoinJob,
    LeaseRenewed,
    LeaveJob,
    RegisterServer,
    RenewLease,
    ServerRegistered,
    SkippedTurn,
    TableCreated,
)
from ps_proto.values import Async, BoundedStaleness, Mode, Sync, TableSpec
from ps_server.coordinator.core import CoordinatorCore
from ps_server.coordinator.core_settings import CoreSettings
from ps_server.coordinator.stored import Stored

ITEM = TableSpec("item", 2)


def train(world: World) -> Script:
    """Let two workers join, meet, be started again, leave; and another job begin."""

    def joined(outcome: Any, rank: int, nonce: int, clock: int, barrier: int) -> JobJoined:
        joined = world.joined(outcome, nonce)
        assert (joined.clock, joined.barrier, joined.rank) == (clock, barrier, rank)
        return joined

    registered = yield [RegisterServer(f"server-{index}", f"host-{index}", nonce=index) for index in range(2)]
    assert registered == [ServerRegistered(f"server-{index}", 1, False, 77) for index in range(2)]
    (cluster,) = yield [GetCluster(wait_s=50.0)]
    assert cluster.shard_map.version >= 1
    created = yield [CreateTable(SPEC), CreateTable(ITEM)]
    assert created == [TableCreated(SPEC), TableCreated(ITEM)]
    first, second = yield [JoinJob(rank, 2, Sync(), 100 + rank) for rank in range(2)]
    zero, one = joined(first, 0, 100, 0, 0), joined(second, 1, 101, 0, 0)
    passed = yield [Barrier(0, zero.incarnation, 0, 50.0, -4), Barrier(1, one.incarnation, 0, 50.0, 9)]
    assert passed == [BarrierPassed(-4)] * 2
    for each in (zero, one):
        finish(world, each, 0)
    (again,) = yield [JoinJob(1, 2, None, 102, resume=True)]
    one = joined(again, 1, 102, 1, 1)
    skipped = (SkippedTurn(1, 9),)
    yield [Barrier(1, one.incarnation, 1, 0.0, is_between=True, skipped=skipped)]
    for generation in (1, 2):  # in the turn that the rank skipped
        passed = yield [Barrier(0, zero.incarnation, generation, 50.0, 7, turn=9)]
        assert passed == [BarrierPassed(7, generation)]
    passed = yield [Barrier(1, one.incarnation, 1, 50.0, 3, skipped=skipped), Barrier(0, zero.incarnation, 3, 50.0, 5)]
    assert passed == [BarrierPassed(3, 3)] * 2
    (old,) = yield [Barrier(0, zero.incarnation, 0, 50.0, 1)]
    assert old == BarrierPassed(-4)
    for each in (zero, one):
        finish(world, each, 1, leave=True)
    yield [LeaveJob(0, zero.incarnation), LeaveJob(1, one.incarnation)]
    (third,) = yield [JoinJob(0, 1, Sync(), 103)]
    zero = joined(third, 0, 103, 2, 0)
    finish(world, zero, 2)
    (cluster,) = yield [GetCluster()]
    assert (cluster.tables, cluster.world_size, cluster.ranks) == ((ITEM, SPEC), 1, {0: zero.incarnation})


class Crew:
    """Workers that renew their leases, and finish steps, each time that somebody waits."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clocks: dict[int, int] = {}
        self.workers: dict[int, JobJoined] = {}
        world.meanwhile = self.work

    def add(self, outcome: Any, nonce: int) -> JobJoined:
        joined = self.workers[outcome.rank] = self.world.joined(outcome, nonce)
        self.clocks[joined.rank] = joined.clock
        return joined

    def work(self) -> None:
        for rank, worker in self.workers.items():
            renewed = self.world.tell(RenewLease(rank, worker.incarnation, self.clocks[rank]))
            orders = renewed.orders if isinstance(renewed, LeaseRenewed) else ()
            finish(self.world, worker, self.clocks[rank], orders=orders, resume=b"of %d" % rank)
            self.clocks[rank] += 1


def grow(world: World, mode: Mode) -> Script:
    """Let workers join a running job, be lost, be removed and come back."""
    yield [RegisterServer(f"server-{index}", f"host-{index}", nonce=index) for index in range(2)]
    yield [GetCluster(wait_s=50.0)]
    first, second = yield [JoinJob(rank, 2, mode, 100 + rank, on_lost_worker="continue") for rank in range(2)]
    crew = Crew(world)
    crew.add(first, 100)
    crew.add(second, 101)
    (third,) = yield [JoinJob(-1, 0, None, 102, name="spot")]
    assert crew.add(third, 102).rank == 2
    shards = [shard.steps.clocks for shard in world.shards.values()]
    assert [clocks.first_of(2) for clocks in shards] == [third.clock] * 2
    del crew.workers[1]  # it is killed
    while world.core.job is None or 1 not in world.core.job.left:
        yield [GetCluster()]
    (cluster,) = yield [GetCluster()]
    assert cluster.ranks == {rank: worker.incarnation for rank, worker in crew.workers.items()}
    left = {clocks.left_after[1] for clocks in shards}
    assert left == {crew.clocks[1] - 1}
    (back,) = yield [JoinJob(1, 2, None, 103, resume=True)]
    assert (back.is_resumed, back.resume, back.world_size) == (True, b"of 1", 3)
    assert crew.add(back, 103).clock > crew.clocks[1] - 1
    assert [clocks.first_of(1) for clocks in shards] == [back.clock] * 2
    for shard in world.shards.values():
        shard.check_invariants()


def test_a_coordinator_that_dies_between_any_two_effects_goes_on_as_if_it_had_not() -> None:
    effects = lived(None, train).carried
    assert effects > 50
    for death in range(1, effects + 1):
        assert lived(death, train).deaths == 1, death


@pytest.mark.parametrize("mode", [Sync(), BoundedStaleness(2)], ids=str)
def test_so_it_does_while_a_job_grows_and_loses_workers(mode: Mode) -> None:
    effects = lived(None, lambda world: grow(world, mode)).carried
    assert effects > 50
    for death in range(1, effects + 1):
        assert lived(death, lambda world: grow(world, mode)).deaths == 1, death


# --- what a start does -----------------------------------------------------------------------------------------------------------


def test_it_looks_for_every_server_and_shows_the_cluster_meanwhile() -> None:
    before = driven()
    before.get(CreateTable(SPEC))
    join(before, 0)
    cluster = before.get(GetCluster())
    after = restarted(before)
    assert [(tell.address, type(tell.body)) for tell in after.told] == [("host-0", InstallMap), ("host-1", InstallMap)]
    assert after.outcomes[after.ask(GetCluster())] == cluster
    joining = after.ask(JoinJob(1, 2, None, 5, wait_s=5.0))
    after.answer(after.told[0])
    after.answer(after.told[0], REFUSED)
    after.tick(5.0)
    assert isinstance(after.outcomes[joining], Unreachable)
    assert after.outcomes[joining].peer == "server-1"
    after.settle()
    assert join(after, 1).rank == 1


def test_a_map_that_not_every_server_took_is_planned_again() -> None:
    before = Driver(CoordinatorCore(CoreSettings(2)))
    register(before, 0)
    register(before, 1)
    before.answer(before.told[0])
    after = restarted(before)
    assert after.outcomes[after.ask(GetCluster())].shard_map is None
    after.settle()
    assert after.get(GetCluster()).shard_map.version == 2


def test_servers_that_registered_are_known() -> None:
    before = Driver(CoordinatorCore(CoreSettings(2)))
    register(before, 0)
    after = restarted(before)
    assert register(after, 0) == ServerRegistered("server-0", 1)
    register(after, 1)
    after.settle()
    assert set(after.get(GetCluster()).servers) == {"server-0", "server-1"}


def test_a_late_message_of_a_living_worker_fences_nobody() -> None:
    before = driven()
    joined = join(before, 0, nonce=7)
    after = restarted(before)
    after.fenced = lambda server, order: RankFenced(Finished(4), 4, 4, finished=4)
    after.settle()
    again = after.get(JoinJob(0, 2, Sync(), 7))
    assert again.incarnation == joined.incarnation
    assert {body.incarnation for _, body in after.bodies(FenceRank)} == {joined.incarnation}


def test_a_late_message_does_not_take_a_rank_off_its_barrier() -> None:
    before = driven()
    for rank in range(2):
        join(before, rank, nonce=7 + rank)
    after = restarted(before)
    after.settle()
    waiting = after.ask(Barrier(0, 1, 0, 10.0))
    after.get(JoinJob(0, 2, Sync(), 7))
    assert after.get(Barrier(1, 1, 0, 10.0)) == BarrierPassed()
    assert after.outcomes[waiting] == BarrierPassed()


def test_a_late_message_of_a_worker_that_left_begins_nothing() -> None:
    before = driven()
    joined = join(before, 0, 1, nonce=7)
    before.get(LeaveJob(0, joined.incarnation))
    after = restarted(before)
    after.settle()
    with pytest.raises(InvalidRequest, match="nonce is of a try to join that became rank 0, which has left"):
        after.get(JoinJob(0, 1, Sync(), 7))
    assert after.get(GetCluster()).world_size == 0


def test_a_message_from_before_a_takeover_does_not_take_the_rank_back() -> None:
    before = driven()
    join(before, 0, nonce=1)
    join(before, 0, nonce=2)
    after = restarted(before)
    after.settle()
    with pytest.raises(StaleIncarnation, match="Rank 0 has been taken over by incarnation 2; this is incarnation 1"):
        after.get(JoinJob(0, 2, Sync(), 1))
    with pytest.raises(StaleIncarnation):
        after.get(Barrier(0, 1, 0, 1.0))


def test_the_job_is_the_one_that_was() -> None:
    before = driven()
    join(before, 0, 3, Async())
    with_one = join(before, 1, 3, Async())
    before.get(LeaveJob(1, with_one.incarnation))
    after = restarted(before)
    after.settle()
    cluster = after.get(GetCluster())
    assert (cluster.world_size, cluster.mode, cluster.ranks) == (3, Async(), {0: 1})
    with pytest.raises(InvalidRequest, match=r"TableSpec.mode is Sync\(backup_workers=2\) in a job of Async"):
        after.get(CreateTable(TableSpec("user", 4, mode=Sync(2))))
    with pytest.raises(ParameterServerError, match="rank 1 has left it"):
        join(after, 1, 3, Async())


def test_a_table_that_was_refused_is_not_there_and_one_under_way_binds_later_ones() -> None:
    before = driven()
    before.ask(CreateTable(SPEC))
    before.answer(before.told[0], InvalidRequest("optimizer", "'half'", "one that this server can run"))
    before.told.clear()
    before.ask(CreateTable(ITEM))
    after = restarted(before)
    after.settle()
    assert after.core.tables == {"item": ITEM}
    assert after.get(GetCluster()).tables == ()
    with pytest.raises(ParameterServerError, match="exists with dim 2"):
        after.get(CreateTable(replace(ITEM, dim=3)))
    assert after.get(CreateTable(ITEM)) == TableCreated(ITEM)
    assert after.get(GetCluster()).tables == (ITEM,)


def test_another_number_of_servers_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="servers is 3, but must be 2"):
        CoordinatorCore(CoreSettings(3), Stored.of(driven().stored))
