"""The coordinator takes the cluster back to its last checkpoint: which one, who is told what, and what may go wrong meanwhile."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from driven import REFUSED, SPEC, SYNC, Driver, join, leave, register, restart
from made_checkpoints import map_of
from ps_proto.errors import (
    CheckpointFailed,
    InvalidRequest,
    JobMismatch,
    Recovering,
    RolledBack,
    StorageFailed,
)
from ps_proto.orders import (
    AskCheckpoint,
    AskRestore,
    BeginCheckpoint,
    CheckpointState,
    FenceRank,
    InstallMap,
    JobState,
    PartWritten,
    ProcessNamed,
    RankState,
    ResolveRank,
    RestoreState,
    RollBack,
    Source,
)
from ps_proto.requests import (
    Barrier,
    BarrierPassed,
    CheckpointTaken,
    Cluster,
    CreateTable,
    Done,
    Finished,
    GetCluster,
    JoinJob,
    LeaveJob,
    RegisterServer,
    RenewLease,
    ServerRegistered,
    SkippedTurn,
    TakeCheckpoint,
)
from ps_proto.values import Async, TableSpec
from ps_server.coordinator.core import CoordinatorCore
from ps_server.coordinator.core_settings import CoreSettings, Restore
from ps_server.coordinator.plans import ORDER_AGAIN_S, Do, Plan
from ps_server.coordinator.rollbacks import AGAIN_S, POLL_S
from ps_server.coordinator.schedule import Schedule
from ps_server.coordinator.stored import Stored, StoredOrigin, StoredRemoval, StoredRollback
from ps_server.coordinator.taking import POLL_S_MAX
from ps_server.events import Tell, Ticked
from ps_server.tasks import BarrierRun, FindCheckpoint, FoundCheckpoint, PublishCheckpoint

ROOT = "/checkpoints"
OWN = 7  # the id of the cluster
DENSE = TableSpec("dense", 8)
NOTHING = FoundCheckpoint(None, 0, (), None, ())


@dataclass
class Fleet:
    """Two servers that load what they are told to.

    `phases`: how far each is, "loaded" where nothing is said; `whys`: of those that failed; `silent`: those that answer nothing.
    """

    driver: Driver
    phases: dict[str, str] = field(default_factory=dict)
    whys: dict[str, str] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.driver.follow = self._answer

    def run(self) -> None:
        """Let the servers that live answer every order."""
        while tells := [tell for tell in self.driver.told if tell.server not in self.silent]:
            self.driver.answer(tells[0])

    def restart(self, index: int, nonce: int = 100) -> Any:
        """Start a server again, on another port; the old one is gone. Return what it is told."""
        self.silent.discard(f"server-{index}")
        return self.driver.outcomes[restart(self.driver, index, f"host-{index}-{nonce}", nonce)]

    def find(self, found: Any) -> FindCheckpoint:
        """End the search for a checkpoint; return what was searched for."""
        (work,) = [work for work in self.driver.at_work if isinstance(work.task, FindCheckpoint)]
        task: FindCheckpoint = work.task  # type: ignore[assignment]  # selected by its class
        self.driver.end(work, found)
        self.run()
        return task

    def poll(self) -> None:
        self.driver.tick(POLL_S)
        self.run()

    def orders(self) -> list[RollBack]:
        """What server-0 was told to go back to, one after another."""
        return [body for server, body in self.driver.bodies(RollBack) if server == "server-0"]

    @property
    def is_over(self) -> bool:
        stored = Stored.of(self.driver.stored)
        assert stored is not None
        return stored.rollback is not None and not stored.rollback.is_pending

    def _answer(self, tell: Tell) -> Any:
        if isinstance(tell.body, AskRestore):
            return RestoreState(tell.body.timeline, self.phases.get(tell.server, "loaded"), 3, self.whys.get(tell.server, ""))
        return None


def found(
    number: int = 12, job: int = 1, clocks: tuple[int, ...] = (7, 7), left: tuple[int, ...] = (), timeline: int = 0
) -> FoundCheckpoint:
    """Return a checkpoint of a job whose ranks have finished `clocks`."""
    ranks = tuple([RankState(rank, Finished(clock), clock, rank in left) for rank, clock in enumerate(clocks)])
    state = JobState(job, len(clocks), SYNC, 0, min(clocks) + 1, ranks)
    return FoundCheckpoint(Source(ROOT, number), timeline, (SPEC,), state, (), number, OWN)


def fleet(*, is_training: bool = True, last_one: bool = True, schedule: Schedule | None = None, lease_s: float = 0.0) -> Fleet:
    """Return two servers with a table, a job of two ranks and, with `last_one`, a checkpoint 12."""
    driver = Driver(CoordinatorCore(CoreSettings(2, cluster=OWN, schedule=schedule or Schedule(ROOT), lease_s=lease_s)))
    register(driver, 0)
    register(driver, 1)
    driver.settle()
    if is_training:
        driver.get(CreateTable(SPEC, 5.0))
        join(driver, 0)
        join(driver, 1)
    if last_one:
        driver.core._taking.begin_from(Source(ROOT, 12), 8)
    driver.turn(Ticked())
    return Fleet(driver)


# --- the way back ------------------------------------------------------------------------------------------------------------


def test_a_server_that_is_started_again_takes_all_back_to_the_last_checkpoint() -> None:
    two = fleet()
    before = two.driver.get(GetCluster())
    assert two.restart(1) == ServerRegistered("server-1", 2, must_recover=True, cluster=OWN)
    task = two.find(found())
    assert task == FindCheckpoint((ROOT,), None, (), ((OWN, 0, 2**63 - 1),))
    (order,) = two.orders()
    assert (order.timeline, order.source, order.tables, order.cluster) == (1, Source(ROOT, 12), (SPEC,), OWN)
    assert order.job == found().job
    assert order.shard_map.version == before.shard_map.version + 1
    assert [(server.address, server.incarnation) for server in order.shard_map.servers] == [("host-0", 1), ("host-1-100", 2)]
    assert [address for address in [tell.address for tell in two.driver.log if isinstance(tell.body, RollBack)]] == ["host-0", "host-1-100"]
    assert two.is_over
    after = two.driver.get(GetCluster())
    assert (after.timeline, after.checkpoint, after.shard_map) == (1, 12, order.shard_map)
    assert after.notice == (
        "Timeline 1 begins, since server-1 was started again, and all servers load the last checkpoint: "
        f"that is checkpoint 12 of {ROOT}, of step 8."
    )
    assert two.driver.notes == [after.notice]
    assert two.driver.mentions == ["All servers have loaded checkpoint 12; workers may go on."]


def test_all_of_it_is_stored_before_any_server_is_told() -> None:
    two = fleet()
    two.restart(1)
    stored = Stored.of(two.driver.stored)
    assert stored is not None
    assert stored.rollback == StoredRollback(0, is_pending=True)
    assert stored.servers["server-1"].must_recover
    two.silent = {"server-0", "server-1"}
    two.find(found())
    stored = Stored.of(two.driver.stored)
    assert stored is not None
    assert stored.cluster.timeline == 1
    assert stored.shard_map is not None
    assert stored.shard_map.shard_map == two.orders()[0].shard_map
    assert stored.rollback is not None
    assert stored.rollback.is_pending


def test_it_lasts_until_all_have_loaded() -> None:
    two = fleet()
    two.restart(1)
    two.phases["server-1"] = "loading"
    two.find(found())
    for _ in range(3):
        two.poll()
        assert not two.is_over
    request = two.driver.ask(CreateTable(DENSE, 5.0))
    assert request not in two.driver.outcomes
    two.phases.clear()
    two.poll()
    assert two.is_over
    assert two.driver.outcomes[request].spec == DENSE


def test_who_asks_meanwhile_waits_and_is_told_why_when_its_time_is_up() -> None:
    two = fleet()
    two.restart(1)
    request = two.driver.ask(CreateTable(DENSE, 5.0))
    two.driver.tick(5.0)
    refusal = two.driver.outcomes[request]
    assert isinstance(refusal, Recovering)
    assert "server-1 was started again" in str(refusal)


def test_without_any_checkpoint_all_begin_anew() -> None:
    two = fleet(last_one=False)
    two.restart(0)
    two.find(NOTHING)
    (order,) = two.orders()
    assert (order.source, order.tables, order.timeline) == (None, (SPEC,), 1)
    assert order.job == JobState(1, 2, SYNC, 0, 0, ())
    assert two.is_over
    assert "there is none, so that all begin anew" in two.driver.notes[0]
    two.restart(0, nonce=101)
    assert two.find(NOTHING).lineage == ((OWN, 0, 2**63 - 1), (OWN, 1, 0)), "whatever timeline 0 wrote is of no time any more"


def test_without_a_root_nothing_is_searched_for() -> None:
    two = fleet(last_one=False, schedule=Schedule())
    two.restart(0)
    assert two.driver.at_work == []
    two.run()
    assert two.orders()[0].source is None


def test_a_checkpoint_that_was_taken_elsewhere_counts_as_the_last() -> None:
    two = fleet(last_one=False)
    two.driver.core._taking.begin_from(Source("/elsewhere", 13), 9)
    two.restart(0)
    assert two.find(found()).roots == ("/elsewhere", ROOT)


def test_a_second_rollback_goes_on_from_the_first() -> None:
    two = fleet()
    two.restart(1)
    two.find(found())
    two.restart(1, nonce=101)
    again = two.find(found())
    assert [order.timeline for order in two.orders()] == [1, 2]
    assert again.lineage == ((OWN, 0, 2**63 - 1), (OWN, 1, 12)), "what timeline 0 wrote beyond is of no time any more"
    assert [server.incarnation for server in two.orders()[-1].shard_map.servers] == [1, 3]


# --- jobs and ranks ------------------------------------------------------------------------------------------------------------


def test_a_rank_that_had_left_comes_back_unless_the_checkpoint_has_it_so() -> None:
    two = fleet()
    joined = join(two.driver, 1, nonce=55)
    leave(two.driver, joined, 1)
    two.restart(0)
    two.find(found())
    assert join(two.driver, 1).timeline == 1
    two.restart(0, nonce=102)
    two.find(found(left=(1,)))
    with pytest.raises(JobMismatch, match="rank 1 has left it"):
        join(two.driver, 1)


def test_a_rank_that_the_checkpoint_has_as_removed_is_admitted_and_nobody_elses() -> None:
    """It had come back since, so that the coordinator would take it for one that left by its own word."""
    two = fleet()
    two.restart(0)
    two.find(replace(found(left=(1,)), removed=frozenset({1})))
    zero = join(two.driver, 0)
    two.driver.ask(JoinJob(-1, 0, None, 78, name="joins"))
    two.driver.ask(JoinJob(1, 2, SYNC, 79, resume=True))
    orders = two.driver.get(RenewLease(0, zero.incarnation, 8)).orders
    assert [order.rank for order in orders] == [2, 1]
    assert two.driver.core.job is not None
    assert two.driver.core.job.removals == [StoredRemoval(1, 7)], "for the next checkpoint"


def test_every_rank_of_before_is_told_with_which_step_it_goes_on() -> None:
    two = fleet()
    joined = join(two.driver, 0, nonce=55)
    at_barrier = two.driver.ask(Barrier(0, joined.incarnation, 0, 60.0))
    two.restart(1)
    two.find(found(clocks=(7, 6)))
    for outcome in (two.driver.outcomes[at_barrier], two.driver.outcomes[two.driver.ask(Barrier(0, joined.incarnation, 0, 60.0))]):
        assert isinstance(outcome, RolledBack)
        assert (outcome.rank, outcome.clock, outcome.timeline) == (0, 8, 1)
    assert two.driver.get(LeaveJob(0, joined.incarnation)) == Done()  # it means the job as it was
    again = join(two.driver, 0)
    assert (again.incarnation, again.timeline) == (joined.incarnation + 1, 1)


def test_a_job_that_goes_on_without_lost_workers_does_so_where_one_does_not_come_back() -> None:
    two = fleet(is_training=False, lease_s=10.0)
    two.driver.get(CreateTable(SPEC, 5.0))
    for rank in range(2):
        two.driver.get(JoinJob(rank, 2, SYNC, rank, on_lost_worker="continue"))
    two.restart(1)
    two.find(found())
    zero = join(two.driver, 0)
    for _ in range(11):
        two.driver.wait(5.0)
        two.driver.get(RenewLease(0, zero.incarnation, 8))
    assert two.driver.get(GetCluster()).lost == (), "it may take a while to start it again"
    two.driver.wait(5.0)
    two.run()
    assert (two.driver.get(GetCluster()).ranks, two.driver.bodies(ResolveRank)[-1][1].has_left) == ({0: zero.incarnation}, True)
    assert "Rank 1 has not been heard of for 60.0 s" in two.driver.notes[-1]


def test_a_job_that_began_after_the_checkpoint_begins_anew_above_its_clocks() -> None:
    two = fleet()
    two.restart(1)
    two.find(found(job=99, clocks=(7, 9, 3)))
    assert two.orders()[0].job == JobState(1, 2, SYNC, 10, 10, ())
    assert two.orders()[0].source == Source(ROOT, 12)


def test_tables_that_were_created_since_are_there_without_rows() -> None:
    two = fleet()
    two.driver.get(CreateTable(DENSE, 5.0))
    two.restart(1)
    two.find(found())
    assert two.orders()[0].tables == (DENSE, SPEC)
    assert two.driver.get(GetCluster()).tables == (DENSE, SPEC)


def test_nobody_has_to_go_on_with_a_job_that_was_taken_up_again() -> None:
    two = fleet()
    two.restart(1)
    two.find(found())
    assert join(two.driver, 0, world_size=1, mode=Async()).world_size == 1
    with pytest.raises(JobMismatch):
        join(two.driver, 0, world_size=2)


def test_who_joins_it_again_keeps_others_from_another_job() -> None:
    two = fleet()
    two.restart(1)
    two.find(found())
    join(two.driver, 0)
    with pytest.raises(JobMismatch):
        join(two.driver, 0, world_size=1)


def test_an_admission_that_waits_for_the_end_of_it_is_no_more() -> None:
    """Its rank would be in the job with nobody behind it: who joined asks anew, and may get another."""
    two = fleet()
    two.driver.ask(JoinJob(0, 2, None, 50))  # the plan that runs, behind which the admission waits
    request = two.driver.ask(JoinJob(-1, 0, None, 60, 30.0, name="spare"))
    two.restart(1)
    two.find(found())
    assert two.is_over
    assert isinstance(two.driver.outcomes[request], Recovering)
    assert [body for _, body in two.driver.bodies(FenceRank) if body.rank == 2] == []
    assert two.driver.get(GetCluster()).world_size == 2


def test_ranks_go_on_with_what_the_checkpoint_tells_of_barriers() -> None:
    """Not with what this coordinator knows: the job may have passed very many since, and gone other ways."""
    two = fleet()
    joined = [join(two.driver, rank) for rank in range(2)]
    for generation in range(3):
        for rank in range(2):
            two.driver.ask(Barrier(rank, joined[rank].incarnation, generation, 60.0, 10 * generation))
    two.restart(1)
    two.find(replace(found(), barriers=(BarrierRun(0, 7, 1, ()), BarrierRun(1, 8, 2, (4,)))))
    joined = [join(two.driver, rank) for rank in range(2)]
    two.driver.get(Barrier(1, joined[1].incarnation, 3, 60.0, is_between=True))
    assert two.driver.get(Barrier(0, joined[0].incarnation, 0, 60.0, 5)) == BarrierPassed(7, 0)
    request = two.driver.ask(Barrier(0, joined[0].incarnation, 1, 60.0, 6, skipped=(SkippedTurn(1, 4),)))
    assert two.driver.get(Barrier(1, joined[1].incarnation, 3, 60.0, 9)) == BarrierPassed(6, 3)
    assert two.driver.outcomes[request] == BarrierPassed(6, 3)


def test_ranks_meet_again_at_the_barriers_that_they_come_to_again() -> None:
    two = fleet()
    joined = [join(two.driver, rank) for rank in range(2)]
    for generation in range(3):
        asked = [two.driver.ask(Barrier(rank, joined[rank].incarnation, generation, 60.0, 10 * generation)) for rank in range(2)]
        assert [two.driver.outcomes[request] for request in asked] == [BarrierPassed(10 * generation, generation)] * 2
    two.restart(1)
    two.find(replace(found(), barriers=tuple([BarrierRun(generation, 10 * generation) for generation in range(3)])))
    joined = [join(two.driver, rank) for rank in range(2)]
    request = two.driver.ask(Barrier(0, joined[0].incarnation, 1, 60.0, 5))
    assert request not in two.driver.outcomes  # not what was agreed upon before: the other has to come there, too
    two.driver.ask(Barrier(1, joined[1].incarnation, 1, 60.0, 7))
    assert two.driver.outcomes[request] == BarrierPassed(5, 1)
    assert two.driver.get(Barrier(1, joined[1].incarnation, 3, 60.0, 0, is_between=True)) == BarrierPassed()
    assert two.driver.get(Barrier(0, joined[0].incarnation, 2, 60.0, 5)) == BarrierPassed(20, 2)


# --- two of one name ---------------------------------------------------------------------------------------------------------


def test_a_server_that_lives_keeps_its_name_and_nothing_is_lost() -> None:
    two = fleet()
    request = two.driver.ask(RegisterServer("server-0", "elsewhere", nonce=77))
    for question, nonce in zip(list(two.driver.told), (0, 77), strict=True):
        two.driver.answer(question, ProcessNamed(nonce))
    refusal = two.driver.outcomes[request]
    assert isinstance(refusal, InvalidRequest)
    assert "which the server at host-0 has" in str(refusal)
    assert two.driver.at_work == []


def test_a_server_that_is_started_again_at_its_address_replaces_itself() -> None:
    two = fleet()
    registered = two.driver.outcomes[restart(two.driver, 0, "host-0", 77)]
    assert (registered.incarnation, registered.must_recover) == (2, True)
    two.find(found())
    assert two.is_over


def test_a_repeated_message_of_one_that_was_started_again_says_the_same() -> None:
    two = fleet()
    registered = two.restart(1)
    two.find(found())
    assert two.driver.outcomes[two.driver.ask(RegisterServer("server-1", "host-1-100", nonce=100))] == registered
    assert len(two.orders()) == 1


# --- meanwhile ---------------------------------------------------------------------------------------------------------------


def test_two_servers_at_once_go_back_once_both_are_there() -> None:
    two = fleet()
    two.silent.add("server-0")
    two.restart(1)
    two.find(found())
    (tell,) = two.driver.told  # to the one that is gone
    two.driver.answer(tell, REFUSED)
    two.driver.tick(ORDER_AGAIN_S)
    assert not two.is_over
    two.restart(0)
    two.find(found())
    assert [order.timeline for order in two.orders()] == [1, 1, 2]  # the first one again, to no avail
    assert [server.incarnation for server in two.orders()[-1].shard_map.servers] == [2, 2]
    two.run()
    assert two.is_over
    assert two.driver.get(GetCluster()).timeline == 2


def test_a_server_that_dies_again_while_it_loads_begins_it_anew() -> None:
    two = fleet()
    two.restart(1)
    two.phases["server-1"] = "loading"
    two.find(found())
    two.poll()
    two.restart(1, nonce=101)
    two.phases.clear()
    assert two.find(found()).lineage == ((OWN, 0, 2**63 - 1),), "nothing was done in timeline 1"
    assert [order.timeline for order in two.orders()] == [1, 2]
    assert two.is_over


def test_what_an_earlier_search_finds_is_not_taken_for_the_later_ones() -> None:
    two = fleet()
    two.restart(1)
    two.restart(0)
    first, second = two.driver.at_work
    two.driver.end(first, found(11))
    assert two.orders() == []
    two.driver.end(second, found(12))
    assert two.orders()[0].source == Source(ROOT, 12)


def test_a_worker_that_was_joining_joins_afterwards() -> None:
    two = fleet()
    request = two.driver.ask(JoinJob(0, 2, SYNC, 500, 60.0))
    two.restart(1)
    assert isinstance(two.driver.outcomes[request], Recovering)  # its client asks again
    request = two.driver.ask(JoinJob(0, 2, SYNC, 500, 60.0))
    two.find(found())
    joined = two.driver.outcomes[request]
    assert (joined.timeline, joined.shard_map.version) == (1, 2)


def test_a_checkpoint_at_work_fails_and_none_begins_meanwhile() -> None:
    two = fleet(schedule=Schedule(ROOT, every_s=60.0))
    at_work, waiting = two.driver.ask(TakeCheckpoint("", False, -1, 60.0)), two.driver.ask(TakeCheckpoint("", True, -1, 60.0))
    (search,) = two.driver.at_work
    two.driver.end(search, NOTHING)
    assert {type(tell.body) for tell in two.driver.told} == {AskCheckpoint}
    two.restart(1)
    assert isinstance(two.driver.outcomes[at_work], CheckpointFailed)
    assert "server-1 was started again" in str(two.driver.outcomes[at_work])
    assert isinstance(two.driver.outcomes[waiting], Recovering)
    with pytest.raises(Recovering):
        two.driver.get(TakeCheckpoint("", False, -1, 60.0))
    two.driver.tick(100.0)
    assert [type(work.task) for work in two.driver.at_work] == [FindCheckpoint]
    deadline_s = two.driver.core.deadline_s()
    assert deadline_s is None or deadline_s > two.driver.now_s  # no turn after turn for what may not begin
    assert not any(isinstance(work.task, PublishCheckpoint) for work in two.driver.at_work)


@pytest.mark.parametrize(("root", "waits"), [(ROOT, True), ("/elsewhere", False)])
def test_one_that_is_being_published_where_the_last_one_may_lie_ends_before_it_is_looked_for(root: str, waits: bool) -> None:
    two = fleet()
    two.driver.core._checkpoint_plans.add_unasked("published", published(root))
    two.driver.tick(0.0)
    (work,) = two.driver.at_work
    two.restart(1)
    assert len(two.driver.at_work) == (1 if waits else 2)
    two.poll()
    said = "All servers go back once a checkpoint that is being completed is so, or has failed."
    assert two.driver.mentions == [said] * waits
    two.driver.end(work, StorageFailed(root, "it has not answered for 300 s"))
    two.poll()
    two.find(found())
    assert two.is_over


def published(root: str) -> Plan:
    yield Do(PublishCheckpoint(root, 13, None, OWN, (), map_of(2), (SPEC,), None, 3))
    return Done()


def test_a_job_that_went_back_behind_its_end_has_a_last_checkpoint_at_its_next_end() -> None:
    two = fleet()
    for rank in range(2):
        leave(two.driver, join(two.driver, rank), rank)
    assert [type(work.task) for work in two.driver.at_work] == [FindCheckpoint]  # of what its last checkpoint is to lie above
    two.restart(1)
    two.driver.at_work.pop(0)
    two.find(found())
    for rank in range(2):
        leave(two.driver, join(two.driver, rank), rank)
    assert [type(work.task) for work in two.driver.at_work] == [FindCheckpoint]


def test_the_end_of_a_job_counts_as_kept_no_more_where_all_go_back() -> None:
    two = fleet()
    for rank in range(2):
        leave(two.driver, join(two.driver, rank), rank)
    two.driver.core._checkpoints._end = CheckpointTaken(ROOT, 13, 20, 1, 1, 0.1, 0.0)
    assert two.driver.get(GetCluster()).end is not None
    two.restart(1)
    assert two.driver.get(GetCluster()).end is None


@pytest.mark.parametrize(("increments", "full"), [(0, False), (8, False), (9, True), (14, True)])
def test_the_next_checkpoint_stands_on_what_was_loaded_or_ends_a_long_row_of_increments(increments: int, full: bool) -> None:
    two = fleet()
    two.restart(1)
    two.find(replace(found(), increments=increments))
    two.driver.ask(TakeCheckpoint("", False, -1, 60.0))
    two.driver.end(two.driver.at_work[0], FoundCheckpoint(None, 0, (), None, (), 15))
    two.silent = {"server-0", "server-1"}
    for tell in list(two.driver.told):
        two.driver.answer(tell, CheckpointState(16, "none", 8, 0))
    begun = two.driver.told[0].body
    assert isinstance(begun, BeginCheckpoint)
    assert (begun.number, begun.base, begun.tracks, begun.full) == (16, 12, True, full)
    two.driver.tick(POLL_S_MAX)


def test_what_lies_beyond_counts_as_none_of_those_that_are_kept() -> None:
    two = fleet()
    two.restart(1)
    two.find(found(11))
    two.driver.ask(TakeCheckpoint("", False, -1, 60.0))
    two.driver.end(two.driver.at_work[0], replace(NOTHING, number_max=12))
    for tell in list(two.driver.told):
        two.driver.answer(tell, CheckpointState(13, "none", 8, 0))
    for tell in list(two.driver.told):
        part = PartWritten(tell.server, f"{tell.server}.json", 1, "0" * 32, 8, 1, 2, 5, 320, 0.25)
        two.driver.answer(tell, CheckpointState(13, "written", 8, 0, part))
    (work,) = two.driver.at_work
    assert isinstance(work.task, PublishCheckpoint)
    assert work.task.lineage == ((OWN, 0, 2**63 - 1), (OWN, 1, 11))


# --- what cannot be loaded -----------------------------------------------------------------------------------------------------


def test_a_checkpoint_that_a_server_cannot_load_is_tried_again_and_then_the_next_older_one() -> None:
    two = fleet()
    two.restart(1)
    two.phases["server-1"], two.whys["server-1"] = "failed", "names.safetensors is not as it was written: it is cut."
    assert two.find(found(12)).bad == ()
    assert two.find(found(12)).bad == ()
    two.phases.clear()
    older = found(11)
    assert two.find(older).bad == ((ROOT, 12),)
    assert [(order.timeline, order.source) for order in two.orders()] == [
        (1, Source(ROOT, 12)),
        (2, Source(ROOT, 12)),
        (3, Source(ROOT, 11)),
    ]
    assert two.is_over
    assert two.driver.get(GetCluster()).checkpoint == 11
    assert two.driver.notes[1] == (
        f"names.safetensors is not as it was written: it is cut. So server-1 could not load checkpoint 12 of {ROOT}."
    )


def test_why_a_newer_checkpoint_was_passed_over_is_told_once() -> None:
    two = fleet()
    two.restart(1)
    why = "Checkpoint 12 was passed over. A file is missing."
    two.phases["server-0"] = "failed"
    for _ in range(2):
        two.find(FoundCheckpoint(Source(ROOT, 11), 0, (SPEC,), found().job, (why,)))
    assert two.driver.notes.count(why) == 1


@pytest.mark.parametrize("gone", [NOTHING, StorageFailed(ROOT, "permission denied")])
def test_where_the_last_checkpoint_is_gone_all_wait_for_it_and_nothing_is_thrown_away(gone: Any) -> None:
    two = fleet()
    two.restart(1)
    two.find(gone)
    assert two.orders() == []
    notice = two.driver.get(GetCluster()).notice
    assert ROOT in notice
    assert "12" in notice or "permission denied" in notice
    request = two.driver.ask(JoinJob(0, 2, SYNC, 9, 2.0))
    two.driver.tick(AGAIN_S)
    assert isinstance(two.driver.outcomes[request], Recovering)
    two.find(found())
    assert two.is_over


def test_where_none_can_be_loaded_all_are_tried_again() -> None:
    two = fleet()
    two.restart(1)
    two.phases["server-1"] = "failed"
    two.find(found(12))
    two.find(found(12))
    assert two.find(NOTHING).bad == ((ROOT, 12),)
    two.driver.tick(AGAIN_S)
    two.phases.clear()
    assert two.find(found(12)).bad == ()  # it was mended
    assert two.is_over


# --- the coordinator dies ------------------------------------------------------------------------------------------------------


def again(two: Fleet, **settings: Any) -> Fleet:
    """Kill the coordinator and start it again from what it stored."""
    core = CoordinatorCore(CoreSettings(2, schedule=Schedule(ROOT), **settings), Stored.of(two.driver.stored))
    driver = Driver(core, stored=dict(two.driver.stored))
    anew = Fleet(driver, two.phases, two.whys, two.silent)
    driver.turn(Ticked())
    return anew


def test_a_coordinator_that_died_meanwhile_goes_back_once_more() -> None:
    two = fleet()
    two.restart(1)
    two.phases["server-1"] = "loading"
    two.find(found())
    later = again(two)
    later.phases.clear()
    later.find(found())
    (order,) = later.orders()
    assert (order.timeline, order.term, order.cluster) == (2, 2, OWN)
    assert order.shard_map.version == 3
    assert later.is_over
    registered = later.driver.outcomes[later.driver.ask(RegisterServer("server-1", "host-1-100", nonce=100))]
    assert registered == ServerRegistered("server-1", 2, must_recover=True, cluster=OWN)


def test_a_coordinator_that_died_afterwards_leaves_all_as_it_is() -> None:
    two = fleet()
    two.restart(1)
    two.find(found())
    later = again(two)
    later.run()
    assert later.orders() == []
    assert later.driver.at_work == []
    cluster: Cluster = later.driver.get(GetCluster())
    assert (cluster.timeline, cluster.checkpoint) == (1, 12)


def test_nobody_has_to_go_on_with_a_job_that_was_taken_up_before_its_coordinator_died() -> None:
    two = fleet()
    two.restart(1)
    two.find(found())
    later = again(two)
    later.run()
    assert join(later.driver, 0, world_size=1, mode=Async()).world_size == 1


def test_what_is_said_of_lost_workers_in_a_job_that_was_taken_up_outlives_its_coordinator() -> None:
    two = fleet()
    two.restart(1)
    two.find(found())
    two.driver.get(JoinJob(0, 2, SYNC, 77, on_lost_worker="continue"))
    later = again(two)
    later.run()
    with pytest.raises(JobMismatch, match="'continue'"):
        later.driver.get(JoinJob(1, 2, SYNC, 78, on_lost_worker="wait"))


# --- a cluster that begins with a checkpoint -----------------------------------------------------------------------------------


def beginning(restore: Restore | None = None) -> Fleet:
    """Return two servers that have registered at a coordinator which begins with a checkpoint."""
    settings = CoreSettings(2, cluster=OWN, schedule=Schedule(ROOT), restore=restore or Restore("/other"))
    driver = Driver(CoordinatorCore(settings))
    two = Fleet(driver)
    register(driver, 0)
    register(driver, 1)
    return two


def other(number: int = 40) -> FoundCheckpoint:
    """A checkpoint of another cluster."""
    job = JobState(3, 1, SYNC, 5, 9, (RankState(0, Finished(8), 8, False),))
    return FoundCheckpoint(Source("/other", number), 6, (SPEC,), job, (), number, 1234)


def test_a_cluster_begins_with_the_rows_the_tables_and_the_job_of_a_checkpoint() -> None:
    two = beginning()
    assert two.driver.bodies(InstallMap) == []  # a map without rows would be one to read from
    assert two.driver.get(GetCluster()).shard_map is None
    with pytest.raises(Recovering, match="the checkpoint of /other"):
        two.driver.get(JoinJob(0, 1, SYNC, 1))
    assert two.find(other()) == FindCheckpoint(("/other",))
    (order,) = two.orders()
    assert (order.timeline, order.source, order.tables, order.job) == (7, Source("/other", 40), (SPEC,), other().job)
    assert order.shard_map.version == 1
    cluster = two.driver.get(GetCluster())
    assert (cluster.timeline, cluster.shard_map, cluster.tables, cluster.checkpoint) == (7, order.shard_map, (SPEC,), 40)
    assert join(two.driver, 0, world_size=1).timeline == 7
    stored = Stored.of(two.driver.stored)
    assert stored is not None
    assert stored.origin == StoredOrigin(Source("/other", 40), 1234, "/other")
    assert stored.cluster.last_job == 3
    assert stored.cluster.last_checkpoint == 40


def test_a_rank_that_was_removed_in_another_cluster_comes_back_in_this_one() -> None:
    two = beginning()
    two.find(replace(found(left=(1,)), source=Source("/other", 40), removed=frozenset({1})))
    request = two.driver.ask(JoinJob(1, 2, SYNC, 79, resume=True, on_lost_worker="continue"))  # first, so it is what the job goes by
    zero = two.driver.get(JoinJob(0, 2, SYNC, 80, resume=True, on_lost_worker="continue"))
    assert request not in two.driver.outcomes
    assert [order.rank for order in two.driver.get(RenewLease(0, zero.incarnation, 8)).orders] == [1]


def test_a_rank_that_was_removed_in_another_cluster_may_begin_another_job_in_this_one() -> None:
    two = beginning()
    two.find(replace(found(left=(1,)), source=Source("/other", 40), removed=frozenset({1})))
    joined = two.driver.get(JoinJob(1, 3, SYNC, 79))
    assert (joined.rank, joined.world_size) == (1, 3)


def test_it_can_be_told_which_checkpoint() -> None:
    two = beginning(Restore("/other", 38))
    assert two.find(other(38)) == FindCheckpoint(("/other",), 38)
    assert two.is_over


def test_one_that_is_not_there_is_waited_for() -> None:
    two = beginning(Restore("/other", 38))
    two.find(NOTHING)
    assert "the checkpoint of /other#38" in two.driver.get(GetCluster()).notice
    two.driver.tick(AGAIN_S)
    two.find(other(38))
    assert two.is_over


def test_one_that_cannot_be_loaded_makes_way_for_an_older_one_with_its_job() -> None:
    two = beginning()
    two.phases["server-0"] = "failed"
    two.find(other(40))
    two.find(other(40))
    two.phases.clear()
    older = FoundCheckpoint(Source("/other", 39), 2, (DENSE,), JobState(2, 4, Async(), 0, 3, ()), (), 40, 1234)
    assert two.find(older).bad == (("/other", 40),)
    assert two.orders()[-1].job == older.job
    assert join(two.driver, 3, world_size=4, mode=Async()).world_size == 4


def test_a_server_that_dies_before_it_has_begun_begins_it_again() -> None:
    two = beginning()
    two.phases["server-1"] = "loading"
    two.find(other())
    registered = two.restart(1)
    assert not registered.must_recover  # nobody has trained yet
    two.phases.clear()
    two.find(other())
    assert [order.timeline for order in two.orders()] == [7, 8]
    assert two.is_over


def test_a_rollback_before_the_first_checkpoint_of_its_own_goes_to_that_of_the_other_cluster() -> None:
    two = beginning()
    two.find(other())
    two.restart(0)
    assert two.find(other()) == FindCheckpoint(("/other", ROOT), None, (), ((OWN, 0, 2**63 - 1), (OWN, 7, 40), (1234, 2**63 - 1, 40)))
    assert two.orders()[-1].job == other().job


def test_a_coordinator_that_is_started_again_with_the_same_words_goes_on() -> None:
    two = beginning()
    two.phases["server-1"] = "loading"
    two.find(other())
    meanwhile = again(two, restore=Restore("/other"))
    meanwhile.phases.clear()
    meanwhile.find(other())
    assert meanwhile.is_over
    later = again(meanwhile, restore=Restore("/other"))
    later.run()
    assert later.orders() == []
    with pytest.raises(InvalidRequest, match="/other, with which this cluster began"):
        again(meanwhile, restore=Restore("/other", 3))
    with pytest.raises(InvalidRequest, match="this cluster began without"):
        again(fleet(), restore=Restore("/other", 3))
