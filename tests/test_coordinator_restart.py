"""A coordinator that dies at any instant and goes on from what it stored (R13), with servers that are real."""

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from driven import REFUSED, SPEC, Driver, driven, join, register, restarted
from ps_proto.errors import InvalidRequest, ParameterServerError, Recovering, StaleIncarnation, Unreachable
from ps_proto.requests import (
    Barrier,
    BarrierPassed,
    CreateTable,
    Fence,
    FenceRank,
    Finish,
    Finished,
    GetCluster,
    InstallMap,
    InstallTable,
    JobJoined,
    JoinJob,
    LeaveJob,
    RankFenced,
    RegisterServer,
    ResolveRank,
    ServerRegistered,
    StartJob,
    TableCreated,
)
from ps_proto.values import Async, Sync, TableSpec
from ps_server.coordinator.core import CoordinatorCore
from ps_server.coordinator.core_settings import CoreSettings
from ps_server.coordinator.plans import ORDER_AGAIN_S
from ps_server.coordinator.stored import Stored
from ps_server.events import Answered, Asked, Effect, Event, Persist, Refuse, Reply, Tell, Ticked
from ps_server.shard.shard import Shard
from stored import store

ITEM = TableSpec("item", 2)
SETTINGS = CoreSettings(2, cluster=77)
Script = Generator[list[Any], list[Any], None]


class Died(Exception):
    """The coordinator's end."""


class World:
    """A coordinator that dies ahead of the effect numbered `death` and at once is started again, and two servers.

    Effects are numbered from 1 in the order in which they are carried out, over all turns.
    """

    def __init__(self, death: int | None) -> None:
        self.stored: dict[str, bytes] = {}
        self.shards = {name: Shard(name) for name in ("server-0", "server-1")}
        self.terms: list[int] = []
        self.deaths = 0
        self.carried = 0
        self._death = death
        self._now_s = 0.0
        self._requests = 0
        self._open: dict[int, Any] = {}  # request -> its body
        self._outcomes: dict[int, Any] = {}
        self._events: list[Event] = []
        self._start()

    def _start(self) -> None:
        self.core = CoordinatorCore(SETTINGS, Stored.of(self.stored))
        self._events = [Ticked(), *[Asked(request, body) for request, body in self._open.items()]]

    def ask(self, bodies: list[Any]) -> list[Any]:
        """Ask all of these at once; return what came of them. Who gets no answer, or is told to wait, asks again."""
        outcomes: list[Any] = [None] * len(bodies)
        while None in outcomes:
            requests = {}
            for place, body in enumerate(bodies):
                if outcomes[place] is None:
                    self._requests += 1
                    requests[self._requests] = place
                    self._open[self._requests] = body
                    self._events.append(Asked(self._requests, body))
            self._run()
            for request, place in requests.items():
                self._open.pop(request, None)
                outcome = self._outcomes.pop(request, None)
                outcomes[place] = None if isinstance(outcome, Recovering) else outcome
            self._now_s += ORDER_AGAIN_S
            assert self._now_s < 100.0, f"still waiting: {bodies}"
            self._events.append(Ticked())
        return outcomes

    def _run(self) -> None:
        while self._events:
            event = self._events.pop(0)
            try:
                self._carry_out(self.core.handle(event, self._now_s))
            except Died:
                self.deaths += 1
                self._start()

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.carried += 1
            if self.carried == self._death:
                raise Died
            match effect:
                case Persist():
                    store(self.stored, effect)
                case Reply(request, outcome) | Refuse(request, outcome):
                    self._open.pop(request, None)
                    self._outcomes[request] = outcome
                case Tell(order, server, _, body):
                    if not isinstance(body, InstallMap):
                        assert isinstance(body, InstallTable | StartJob | FenceRank | ResolveRank)
                        assert body.cluster == 77
                        self.terms.append(body.term)
                    self._events.append(Answered(order, answer_of(self.shards[server], body)))


def answer_of(shard: Shard, body: Any) -> Any:
    ((effect),) = [effect for effect in shard.handle(Asked(1, body), 0.0) if isinstance(effect, Reply | Refuse)]
    return effect.body if isinstance(effect, Reply) else effect.error


def finish(world: World, joined: JobJoined, clock: int, leave: bool = False) -> None:
    """Let a worker tell every server that it finished a step."""
    fence = Fence(joined.shard_map.version, joined.rank, joined.incarnation, clock + 1)
    for shard in world.shards.values():
        outcome = answer_of(shard, Finish(fence, Finished(clock), leave))
        assert not isinstance(outcome, ParameterServerError), outcome


def life(world: World, given: dict[tuple[int, int], set[int]]) -> Script:
    """Let two servers and two workers do all that they can; `given`: (rank, incarnation) -> the nonces that it was given to."""

    def joined(outcome: Any, rank: int, nonce: int, clock: int, barrier: int) -> JobJoined:
        assert isinstance(outcome, JobJoined), outcome
        assert (outcome.clock, outcome.barrier, outcome.rank) == (clock, barrier, rank)
        given.setdefault((rank, outcome.incarnation), set()).add(nonce)
        return outcome

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
    passed = yield [Barrier(1, one.incarnation, 1, 50.0, 3), Barrier(0, zero.incarnation, 1, 50.0, 5)]
    assert passed == [BarrierPassed(3)] * 2
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


def lived(death: int | None) -> World:
    """Return the world after a whole life with a death ahead of that effect."""
    world = World(death)
    given: dict[tuple[int, int], set[int]] = {}
    script = life(world, given)
    wanted = next(script)
    while True:
        try:
            wanted = script.send(world.ask(wanted))
        except StopIteration:
            break
    assert all(len(nonces) == 1 for nonces in given.values()), given
    assert world.terms == sorted(world.terms), "no server hears of a lower term"
    return world


def test_a_coordinator_that_dies_between_any_two_effects_goes_on_as_if_it_had_not() -> None:
    effects = lived(None).carried
    assert effects > 50
    for death in range(1, effects + 1):
        world = lived(death)
        assert world.deaths == 1, death


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
