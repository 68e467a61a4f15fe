"""The coordinator takes checkpoints: asked for, by its schedule and at a job's end; and what goes wrong is told to whom it concerns."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from driven import SPEC, SYNC, Driver, join, leave, register
from ps_proto.errors import CheckpointFailed, InvalidRequest, ParameterServerError, Recovering, StalenessTimeout, StorageFailed, Unreachable
from ps_proto.orders import AskCheckpoint, BeginCheckpoint, CancelCheckpoint, CheckpointState, JobState, PartWritten
from ps_proto.requests import OBSERVER, Barrier, CheckpointTaken, CreateTable, Done, GetCluster, TakeCheckpoint
from ps_proto.values import Async, TableSpec
from ps_server.coordinator.checkpoints import AGAIN_S
from ps_server.coordinator.core import CoordinatorCore
from ps_server.coordinator.core_settings import CoreSettings
from ps_server.coordinator.plans import ORDER_AGAIN_S
from ps_server.coordinator.schedule import Schedule
from ps_server.coordinator.stored import Stored, StoredCheckpoint, StoredCluster
from ps_server.coordinator.taking import ANSWER_S, BOUNDARY_S, CANCEL_S, POLL_S_MAX, POLL_S_MIN
from ps_server.events import Dropped, Tell
from ps_server.storage.layout import NUMBER_MAX
from ps_server.tasks import AbandonCheckpoint, BarrierRun, CheckParts, FindCheckpoint, FoundCheckpoint, PublishCheckpoint, Published

ROOT = "/checkpoints"
ORDERS = (AskCheckpoint, BeginCheckpoint, CancelCheckpoint)


@dataclass
class Parts:
    """Two servers that follow orders about checkpoints. `steps`: where each is; `disks`: whose parts fail, and why; `silent`: who is gone.

    `is_slow`: nothing that was taken gets written. `greatest`: the highest number that lies under each root.
    """

    driver: Driver
    steps: dict[str, int] = field(default_factory=lambda: {"server-0": 0, "server-1": 0})
    disks: dict[str, str] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    is_slow: bool = False
    greatest: int = 0
    orders: dict[str, BeginCheckpoint] = field(default_factory=dict)
    phases: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.driver.follow = self._answer

    def run(self) -> None:
        """Answer every order, and find what is asked for; tasks that publish or abandon are left to the test."""
        while True:
            tells = [tell for tell in self.driver.told if tell.server not in self.silent]
            finds = [work for work in self.driver.at_work if isinstance(work.task, FindCheckpoint)]
            if tells:
                self.driver.answer(tells[0])
            elif finds:
                self.driver.end(finds[0], FoundCheckpoint(None, 0, (), None, (), self.greatest))
            else:
                return

    def poll(self, times: int = 1) -> None:
        """Let the coordinator look again."""
        for _ in range(times):
            self.driver.tick(POLL_S_MAX)
            self.run()

    def step(self, *steps: int) -> None:
        """Let the servers come to these steps, and the coordinator see it."""
        self.steps = {f"server-{index}": step for index, step in enumerate(steps)}
        for server, order in self.orders.items():
            if self.phases[server] == "armed" and order.boundary <= self.steps[server]:
                self.phases[server] = "taken"
        self.poll()

    def task(self, kind: type = PublishCheckpoint) -> Any:
        """The task of this kind at work."""
        (work,) = [work for work in self.driver.at_work if isinstance(work.task, kind)]
        return work.task

    def end(self, kind: type, outcome: Any) -> None:
        (work,) = [work for work in self.driver.at_work if isinstance(work.task, kind)]
        self.driver.end(work, outcome)
        self.run()

    def publish(self) -> int:
        """Let what is to be published be complete; return its number."""
        task = self.task()
        self.end(PublishCheckpoint, Published(task.number, min(part.step for part in task.parts), 10, 640, 0.25, 0))
        number: int = task.number
        return number

    def begun(self) -> list[BeginCheckpoint]:
        """What server-0 was told to begin so far."""
        return [body for server, body in self.driver.bodies(BeginCheckpoint) if server == "server-0"]

    def _answer(self, tell: Tell) -> Any:
        server, step = tell.server, self.steps[tell.server]
        match tell.body:
            case BeginCheckpoint() as order:
                self.orders[server] = order
                passed = "taken" if order.boundary in (-1, step) else "passed"
                self.phases[server] = "armed" if order.boundary > step else passed
            case CancelCheckpoint(_, 7, number) if server in self.orders and self.orders[server].number == number:
                del self.orders[server]
                return Done()
            case AskCheckpoint(_, 7, number):
                own = self.orders.get(server)
                if own is None or own.number != number:
                    return CheckpointState(number, "none", step, OBSERVER)
                if self.phases[server] == "taken" and not self.is_slow:
                    self.phases[server] = "failed" if server in self.disks else "written"
            case _:
                return None
        order, phase = self.orders[server], self.phases[server]
        part = PartWritten(server, f"{server}.json", 1, "0" * 32, step, 0, 1, 5, 320, 0.25) if phase == "written" else None
        return CheckpointState(order.number, phase, step, 1, part, self.disks.get(server, "") if phase == "failed" else "")


def parts(schedule: Schedule | None = None, mode: Any = SYNC, is_training: bool = True, stored: Stored | None = None) -> Parts:
    """Return two servers with a table, and a job of one rank."""
    driver = Driver(CoordinatorCore(CoreSettings(2, cluster=7, schedule=schedule or Schedule(ROOT)), stored))
    register(driver, 0)
    register(driver, 1)
    driver.settle()
    if is_training:
        driver.get(CreateTable(SPEC, 5.0))
        join(driver, 0, world_size=1, mode=mode)
    return Parts(driver)


def taken(parts: Parts, request: int) -> Any:
    return parts.driver.outcomes.get(request)


# --- asked for -------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_taken_at_a_step_that_no_server_has_passed() -> None:
    three = parts()
    three.steps = {"server-0": 8, "server-1": 7}
    request = three.driver.ask(TakeCheckpoint("", False, -1, 60.0))
    three.run()
    assert [(body.boundary, body.shard) for _, body in three.driver.bodies(BeginCheckpoint)] == [(8, 0), (8, 1)]
    assert three.begun()[0] == BeginCheckpoint(1, 7, 1, ROOT, 0, 8, -1, True, False)
    assert taken(three, request) is None
    three.step(8, 8)
    three.poll()
    task = three.task()
    assert [part.server for part in task.parts] == ["server-0", "server-1"]
    assert task == PublishCheckpoint(
        ROOT, 1, None, 7, task.parts, task.shard_map, (SPEC,), JobState(1, 1, SYNC, 0, 0, ()), 3, ((7, 0, 2**63 - 1),)
    )
    assert taken(three, request) is None  # it is no checkpoint before its manifest
    three.publish()
    reply = taken(three, request)
    assert reply == CheckpointTaken(ROOT, 1, 8, 10, 640, reply.took_s, 0.25)
    assert reply.took_s == pytest.approx(three.driver.now_s)
    assert three.driver.mentions == [f"Checkpoint 1 of {ROOT} is complete, of step 8: 10 rows, 0.0 MB."]
    assert three.driver.notes == []
    assert three.driver.get(GetCluster()).checkpoint == 1


def test_it_tells_of_the_barriers_that_were_passed_when_all_had_taken_their_parts() -> None:
    two = parts()
    two.steps = {"server-0": 8, "server-1": 7}
    two.driver.get(Barrier(0, 1, 0, 10.0, 5))
    two.is_slow = True
    two.driver.ask(TakeCheckpoint("", False, -1, 60.0))
    two.run()
    two.driver.get(Barrier(0, 1, 1, 10.0, 6, turn=4))
    two.driver.get(Barrier(0, 1, 2, 10.0, 6, turn=4))
    two.step(8, 8)
    two.driver.get(Barrier(0, 1, 3, 10.0, 7))
    two.is_slow = False
    two.poll()
    assert two.task().barriers == (BarrierRun(0, 5, 1, ()), BarrierRun(1, 6, 2, (4,)))


def test_without_synchronous_tables_each_server_takes_its_part_at_once() -> None:
    two = parts(mode=Async())
    two.steps = {"server-0": 8, "server-1": 5}
    two.driver.ask(TakeCheckpoint("", False, 100, 60.0))
    two.run()
    assert two.begun()[0].boundary == -1
    two.poll()
    assert [part.step for part in two.task().parts] == [8, 5]


def test_a_job_is_synchronous_where_one_table_is() -> None:
    two = parts(mode=Async())
    two.driver.get(CreateTable(TableSpec("dense", 4, mode=SYNC), 5.0))
    two.driver.ask(TakeCheckpoint("", False, -1, 60.0))
    two.run()
    assert two.begun()[0].boundary == 0


def test_without_a_job_a_checkpoint_is_taken_at_once_and_has_none() -> None:
    two = parts(is_training=False)
    request = two.driver.ask(TakeCheckpoint("", False, -1, 60.0))
    two.run()
    assert two.begun()[0].boundary == -1
    two.poll()
    assert two.task().job is None
    two.publish()
    assert isinstance(taken(two, request), CheckpointTaken)


def test_who_asks_after_a_step_gets_a_checkpoint_of_that_step_or_a_later_one() -> None:
    two = parts()
    two.steps = {"server-0": 3, "server-1": 3}
    request = two.driver.ask(TakeCheckpoint("", False, 5, 60.0))
    two.run()
    assert two.begun()[0].boundary == 5
    two.step(4, 4)
    assert two.driver.at_work == []
    two.step(5, 5)
    two.publish()
    assert taken(two, request).step == 5


@pytest.mark.parametrize("passed", [(9, 9), (8, 9)])
def test_a_boundary_that_a_server_passed_meanwhile_is_set_further_ahead(passed: tuple[int, int]) -> None:
    two = parts()
    two.steps = {"server-0": 8, "server-1": 8}
    two.driver.ask(TakeCheckpoint("", False, -1, 60.0))
    boundaries = []
    for ahead in range(3):  # each time the servers go on between the question and the order
        while not any(isinstance(tell.body, BeginCheckpoint) for tell in two.driver.told):
            finds = [work for work in two.driver.at_work if isinstance(work.task, FindCheckpoint)]
            if finds:
                two.driver.end(finds[0], FoundCheckpoint(None, 0, (), None, ()))
            elif two.driver.at_work:
                two.driver.end(two.driver.at_work[0], None)
            else:
                two.driver.answer(two.driver.told[0])
        boundaries.append(two.begun()[-1].boundary)
        base = max(two.steps.values())
        two.steps = {f"server-{index}": base + 10 * (step - 8) for index, step in enumerate(passed)}
        two.run()
        assert two.task(AbandonCheckpoint).number == ahead + 1
    assert boundaries == [8, 18 + 1, 28 + 2]
    assert [body.number for _, body in two.driver.bodies(CancelCheckpoint)] == [1, 1, 2, 2, 3, 3]


def test_others_do_not_keep_what_they_took_for_one_that_does_not_come_to_the_boundary() -> None:
    two = parts()
    two.steps = {"server-0": 8, "server-1": 7}
    two.is_slow = True
    request = two.driver.ask(TakeCheckpoint("", False, -1, math.inf))
    two.run()
    two.poll(math.ceil(BOUNDARY_S / POLL_S_MAX) + 1)
    assert [body.number for _, body in two.driver.bodies(CancelCheckpoint)] == [1, 1]
    two.end(AbandonCheckpoint, None)
    assert [(order.number, order.boundary) for order in two.begun()] == [(1, 8), (2, 8)]
    two.step(8, 8)
    two.is_slow = False
    two.poll()
    assert two.publish() == 2
    assert taken(two, request).number == 2


def test_one_who_waits_in_vain_for_a_step_is_told_the_slowest_rank() -> None:
    two = parts()
    two.steps = {"server-0": 3, "server-1": 2}
    request = two.driver.ask(TakeCheckpoint("", False, 5, 20.0))
    two.run()
    two.poll(21)
    two.end(AbandonCheckpoint, None)
    error = taken(two, request)
    assert isinstance(error, StalenessTimeout)
    assert (error.clock, error.min_clock, error.rank) == (5, 2, 1)
    assert error.after_s == pytest.approx(20.0, abs=POLL_S_MAX)
    assert two.driver.notes == []  # a matter of who asked
    assert two.driver.told == []


def test_two_who_ask_for_the_same_share_a_checkpoint_until_the_servers_begin() -> None:
    two = parts(mode=Async())
    ask = TakeCheckpoint("", False, 3, 60.0)
    first, second = two.driver.ask(ask), two.driver.ask(ask)
    two.run()
    third = two.driver.ask(ask)  # it may have pushed after the servers took their parts
    two.poll()
    assert two.publish() == 1
    assert taken(two, first) == taken(two, second)
    assert taken(two, third) is None
    two.poll()
    assert two.publish() == 2
    assert taken(two, third).number == 2


def test_one_that_nobody_waits_for_any_more_is_taken_all_the_same() -> None:
    two = parts()
    two.driver.turn(Dropped(two.driver.ask(TakeCheckpoint("", False, -1, 60.0))))
    two.run()
    two.poll()
    assert two.publish() == 1
    assert two.driver.get(GetCluster()).checkpoint == 1


def test_workers_join_while_a_checkpoint_is_taken() -> None:
    two = parts(is_training=False)
    two.is_slow = True
    two.driver.ask(TakeCheckpoint("", False, -1, 60.0))
    two.run()
    request = two.driver.ask(CreateTable(SPEC, 5.0))
    two.run()
    assert not isinstance(taken(two, request), ParameterServerError | None)


@pytest.mark.parametrize(("path", "sentence"), [("", "path is missing"), ("here/below", "absolute, or a URL")])
def test_a_root_that_nobody_named_or_that_differs_by_folder_is_refused(path: str, sentence: str) -> None:
    two = parts(Schedule())
    with pytest.raises(InvalidRequest, match=sentence):
        two.driver.get(TakeCheckpoint(path, False, -1, 60.0))


def test_no_checkpoint_is_taken_before_there_is_a_map() -> None:
    driver = Driver(CoordinatorCore(CoreSettings(2)))
    with pytest.raises(Recovering, match="0 of 2 servers"):
        driver.get(TakeCheckpoint(ROOT, False, -1, 60.0))


# --- increments and numbers -----------------------------------------------------------------------------------------------------


def take(parts: Parts, path: str = "", full: bool = False) -> BeginCheckpoint:
    """Take a checkpoint; return what was ordered."""
    parts.driver.ask(TakeCheckpoint(path, full, -1, 60.0))
    parts.run()
    parts.poll()
    parts.publish()
    return parts.begun()[-1]


def test_increments_stand_on_the_last_complete_one_until_one_has_all_rows_again() -> None:
    two = parts(Schedule(ROOT, full_every=3))
    orders = [take(two) for _ in range(7)]
    assert [order.base for order in orders] == [-1, 1, 2, 3, 4, 5, 6]
    assert [order.full for order in orders] == [False, False, False, True, False, False, True]


def test_one_that_is_wanted_with_all_rows_is_the_base_of_the_next() -> None:
    two = parts(Schedule(ROOT, full_every=3))
    assert [(order.base, order.full) for order in (take(two), take(two, full=True), take(two), take(two), take(two))] == [
        (-1, False), (1, True), (2, False), (3, False), (4, True),
    ]  # fmt: skip


def test_one_elsewhere_has_all_rows_and_keeps_none_from_the_next_increment() -> None:
    two = parts()
    take(two)
    order = take(two, "/elsewhere")
    assert (order.root, order.number, order.base, order.tracks, order.full) == ("/elsewhere", 2, -1, False, True)
    assert take(two).base == 1
    assert take(two, f"{ROOT}").tracks


def test_numbers_go_on_above_all_that_lie_under_a_root() -> None:
    two = parts()
    two.greatest = 40
    assert take(two).number == 41
    two.greatest = 7
    assert take(two, "/elsewhere").number == 42
    two.greatest = 1000
    assert take(two).number == 43  # nobody else writes there: it is looked at once


def test_what_is_complete_is_stored_before_it_is_told() -> None:
    two = parts()
    take(two)
    stored = Stored.of(two.driver.stored)
    assert stored is not None
    assert stored.checkpoint == StoredCheckpoint(ROOT, 1, 0)
    assert stored.cluster.last_checkpoint == 1
    assert parts(stored=stored, is_training=False).driver.get(GetCluster()).checkpoint == 1


# --- what fails --------------------------------------------------------------------------------------------------------------


def fail(parts: Parts, request: int) -> CheckpointFailed:
    """Let what failed be cleared away; return what the asker is told."""
    parts.end(AbandonCheckpoint, None)
    error = taken(parts, request)
    assert isinstance(error, CheckpointFailed)
    assert parts.driver.notes == [str(error)]
    assert parts.driver.get(GetCluster()).notice == str(error)
    return error


def test_a_server_that_cannot_write_fails_the_checkpoint_with_its_reason() -> None:
    two = parts()
    two.disks["server-1"] = str(StorageFailed(ROOT, "no space left on device"))
    request = two.driver.ask(TakeCheckpoint("", False, -1, 60.0))
    two.run()
    two.poll()
    assert [(server, body.number) for server, body in two.driver.bodies(CancelCheckpoint)] == [("server-0", 1), ("server-1", 1)]
    assert two.task(AbandonCheckpoint) == AbandonCheckpoint(ROOT, 1)
    error = fail(two, request)
    assert (error.server, error.path) == ("server-1", f"{ROOT}/checkpoint-0000000001")
    assert "no space left on device" in error.reason
    assert ".." not in str(error)
    del two.disks["server-1"]
    order = take(two)
    assert (order.number, order.base) == (2, -1)  # nothing stands on one that failed


def test_the_next_one_after_a_failure_stands_on_the_last_complete_one() -> None:
    two = parts()
    take(two)
    two.disks["server-0"] = "disk full"
    request = two.driver.ask(TakeCheckpoint("", False, -1, 60.0))
    two.run()
    two.poll()
    fail(two, request)
    two.disks.clear()
    assert (take(two).base, two.begun()[-1].number) == (1, 3)


def test_a_server_that_does_not_answer_fails_the_checkpoint_and_is_named() -> None:
    two = parts()
    two.is_slow = True
    request = two.driver.ask(TakeCheckpoint("", False, -1, 60.0))
    two.run()
    two.driver.tick(POLL_S_MIN)
    two.silent.add("server-1")
    two.run()
    (ask,) = two.driver.told
    two.driver.answer(ask, Unreachable("server-1", "host-1", 1.0, "connection refused"))
    two.driver.tick(ORDER_AGAIN_S)
    assert [tell.body for tell in two.driver.told] == [ask.body]
    two.driver.tick(ANSWER_S)
    two.run()
    two.driver.tick(CANCEL_S)
    two.run()
    error = fail(two, request)
    assert error.server == "server-1"
    assert "30" in error.reason
    assert "connection refused" in error.reason


def test_a_server_that_lost_its_part_fails_the_checkpoint() -> None:
    two = parts()
    two.is_slow = True
    request = two.driver.ask(TakeCheckpoint("", False, -1, 60.0))
    two.run()
    del two.orders["server-0"]
    two.poll()
    assert "does not know of its part" in fail(two, request).reason


def test_one_that_is_refused_at_its_end_is_taken_once_more_with_all_rows() -> None:
    two = parts()
    take(two)
    refused = CheckpointFailed(f"{ROOT}/checkpoint-0000000002", "the coordinator", "its base is gone")
    request = two.driver.ask(TakeCheckpoint("", False, -1, 60.0))
    two.run()
    two.poll()
    two.end(PublishCheckpoint, refused)
    two.end(AbandonCheckpoint, None)
    assert (two.begun()[-1].number, two.begun()[-1].full) == (3, True)
    two.poll()
    two.end(PublishCheckpoint, refused)
    assert fail(two, request).reason == "its base is gone"


def test_a_root_that_cannot_be_read_fails_the_checkpoint_before_any_server_is_asked() -> None:
    two = parts()
    request = two.driver.ask(TakeCheckpoint("/gone", False, -1, 60.0))
    two.end(FindCheckpoint, StorageFailed("/gone", "permission denied"))
    error = taken(two, request)
    assert isinstance(error, CheckpointFailed)
    assert (error.server, error.path) == ("the coordinator", "/gone")
    assert "permission denied" in error.reason
    assert two.begun() == []


# --- by itself ---------------------------------------------------------------------------------------------------------------


def test_every_so_many_steps_the_servers_take_one_by_themselves() -> None:
    two = parts(Schedule(ROOT, every_steps=10))
    two.run()
    assert two.begun()[-1].boundary == 10
    two.step(9, 9)
    assert two.driver.at_work == []
    two.step(10, 10)
    two.publish()
    assert two.begun()[-1].boundary == 20  # the next one waits already
    two.step(13, 12)
    two.step(20, 20)
    assert two.publish() == 2


def test_without_synchronous_tables_each_server_counts_its_own_steps() -> None:
    two = parts(Schedule(ROOT, every_steps=10), mode=Async())
    two.run()
    assert two.begun()[-1].boundary == 10


def test_every_so_many_seconds_one_is_taken_while_a_job_runs() -> None:
    two = parts(Schedule(ROOT, every_s=60.0), is_training=False)
    two.run()
    two.driver.tick(1000.0)
    assert two.begun() == []
    joined = join(two.driver, 0, world_size=1)
    assert two.driver.core.deadline_s() == two.driver.now_s + 60.0
    two.driver.tick(59.0)
    assert two.driver.at_work == []
    two.driver.tick(1.0)
    two.run()
    two.poll()
    assert two.publish() == 1
    two.driver.tick(60.0)
    two.run()
    two.poll()
    assert two.publish() == 2
    assert joined.world_size == 1


def test_one_that_is_asked_for_comes_before_one_that_waits_for_its_steps() -> None:
    two = parts(Schedule(ROOT, every_steps=10))
    two.step(4, 4)
    request = two.driver.ask(TakeCheckpoint("", False, -1, 60.0))
    two.run()
    assert two.begun()[-1].boundary == 4
    two.poll()
    number = two.publish()
    assert taken(two, request).number == number
    assert (two.begun()[-1].boundary, two.begun()[-1].base) == (10, number)  # armed again


def test_one_of_the_schedule_that_was_begun_is_not_given_up() -> None:
    two = parts(Schedule(ROOT, every_steps=10))
    two.run()
    two.is_slow = True
    two.step(10, 10)
    request = two.driver.ask(TakeCheckpoint("", False, -1, 60.0))
    two.is_slow = False
    two.poll()
    first = two.publish()
    two.poll()
    assert two.publish() == first + 1
    assert taken(two, request).number == first + 1


def test_a_job_that_ends_leaves_a_last_checkpoint() -> None:
    two = parts(Schedule(ROOT, every_steps=10, every_s=60.0))
    joined = join(two.driver, 0, world_size=1, nonce=5)
    two.step(4, 4)
    leave(two.driver, joined, 0)
    two.run()
    assert two.begun()[-1].boundary == 4
    two.poll()
    two.publish()
    two.driver.tick(1000.0)
    assert two.driver.at_work == []
    assert two.driver.told == []  # nothing changes any more
    assert two.driver.core.deadline_s() is None
    join(two.driver, 0, world_size=1)
    two.run()
    assert two.begun()[-1].boundary == 10


def ended_while_one_is_written() -> Parts:
    """Return servers of a job that has ended while a checkpoint by time was being written, which is to be published now."""
    two = parts(Schedule(ROOT, every_s=60.0))
    joined = join(two.driver, 0, world_size=1, nonce=5)
    two.driver.tick(60.0)
    two.run()
    leave(two.driver, joined, 0)
    two.run()
    two.poll()
    return two


def test_all_are_told_which_one_has_the_end_of_the_job_until_another_begins() -> None:
    two = ended_while_one_is_written()
    first = two.publish()
    assert two.driver.get(GetCluster()).end is None, "that one began before the end"
    two.poll()
    two.publish()
    end = two.driver.get(GetCluster()).end
    assert (end.path, end.number) == (ROOT, first + 1)
    two.driver.tick(1000.0)
    assert two.driver.get(GetCluster()).end == end
    join(two.driver, 0, world_size=1)
    assert two.driver.get(GetCluster()).end is None


def test_a_job_that_ends_while_one_is_written_by_time_leaves_another() -> None:
    two = ended_while_one_is_written()
    first = two.publish()
    two.poll()
    assert two.publish() == first + 1


def test_one_that_fails_after_the_job_has_ended_takes_nothing_from_the_last_one() -> None:
    two = ended_while_one_is_written()
    two.end(PublishCheckpoint, StorageFailed(ROOT, "no space left on device"))
    two.end(AbandonCheckpoint, None)
    two.poll()
    last = two.publish()
    end = two.driver.get(GetCluster()).end
    assert end is not None
    assert end.number == last
    two.driver.tick(AGAIN_S)
    two.run()
    assert two.begun()[-1].number == last, "nothing has changed since"


def test_who_asks_while_the_last_one_of_a_job_is_taken_gets_that() -> None:
    two = parts()
    joined = join(two.driver, 0, world_size=1, nonce=5)
    two.is_slow = True
    leave(two.driver, joined, 0)
    two.run()
    request = two.driver.ask(TakeCheckpoint("", False, -1, 60.0))
    full = two.driver.ask(TakeCheckpoint("", True, -1, 60.0))
    two.is_slow = False
    two.poll()
    last = two.publish()
    assert taken(two, request).number == last
    two.poll()
    assert two.publish() == taken(two, full).number == last + 1


def test_the_last_one_of_a_job_is_tried_again_after_it_failed() -> None:
    two = parts()
    joined = join(two.driver, 0, world_size=1, nonce=5)
    leave(two.driver, joined, 0)
    two.end(FindCheckpoint, StorageFailed(ROOT, "permission denied"))
    assert two.driver.at_work == []
    two.driver.tick(AGAIN_S)
    two.run()
    two.poll()
    assert two.publish() == 1


def test_without_a_root_nothing_is_taken_at_a_jobs_end() -> None:
    two = parts(Schedule(every_steps=10))
    leave(two.driver, join(two.driver, 0, world_size=1, nonce=5), 0)
    assert two.driver.told == []
    assert two.driver.at_work == []


def test_one_of_the_schedule_that_failed_is_told_and_tried_again_after_a_while() -> None:
    two = parts(Schedule(ROOT, every_steps=10))
    two.end(FindCheckpoint, StorageFailed(ROOT, "permission denied"))
    assert len(two.driver.notes) == 1
    assert two.driver.at_work == []
    assert two.driver.core.deadline_s() == two.driver.now_s + AGAIN_S
    two.driver.tick(AGAIN_S)
    two.run()
    assert two.begun()[-1].boundary == 10


def test_a_store_that_does_not_answer_is_told_once_and_no_server_writes_there_until_it_does() -> None:
    hangs = StorageFailed(f"{ROOT}/checkpoint-0000000001/manifest.json", "it has not answered for 300 s")
    two = parts(Schedule(ROOT, every_s=60.0))

    def fail(kind: type) -> None:
        (work,) = [work for work in two.driver.at_work if isinstance(work.task, kind)]
        two.driver.end(work, hangs)

    two.driver.tick(60.0)
    two.run()
    two.poll()
    fail(PublishCheckpoint)
    two.run()  # the servers forget their parts
    fail(AbandonCheckpoint)
    (note,) = two.driver.notes
    assert "the coordinator failed, " + str(hangs).rstrip(".") in note
    assert note == two.driver.get(GetCluster()).notice
    for _ in range(3):
        two.driver.tick(60.0)
        fail(FindCheckpoint)
    assert two.driver.notes == [note]
    assert two.driver.mentions == [note] * 3
    assert [order.number for order in two.begun()] == [1]
    two.driver.tick(60.0)
    two.run()  # it answers again
    two.poll()
    assert two.publish() == 2
    two.driver.tick(60.0)
    two.run()
    two.poll()
    fail(PublishCheckpoint)
    two.run()
    fail(AbandonCheckpoint)
    assert len(two.driver.notes) == 2  # what had been well since is told again


@pytest.mark.parametrize("greatest", [10**10 - 1, 10**10])
def test_numbers_may_grow_beyond_ten_digits(greatest: int) -> None:
    two = parts()
    two.greatest = greatest
    request = two.driver.ask(TakeCheckpoint("", False, -1, 60.0))
    two.run()
    two.poll(2)
    assert two.publish() == greatest + 1
    assert taken(two, request).number == greatest + 1


def test_where_no_number_is_left_a_checkpoint_says_what_lies_there() -> None:
    two = parts()
    two.greatest = NUMBER_MAX
    request = two.driver.ask(TakeCheckpoint("", False, -1, 60.0))
    two.run()
    assert isinstance(taken(two, request), CheckpointFailed)
    assert "checkpoint-999999999999999999 lies there, and there is no number above it" in str(taken(two, request))
    two.greatest = 5  # it was moved away
    two.driver.ask(TakeCheckpoint("", False, -1, 60.0))
    two.run()
    assert [order.number for order in two.begun()] == [6]


# --- the trial at the beginning of a cluster -------------------------------------------------------------------------------------------


def tried(settings: CoreSettings, stored: Stored | None = None) -> Parts:
    """Return two servers that have just shared out the rows, of a cluster that tries its root."""
    driver = Driver(CoordinatorCore(settings, stored))
    two = Parts(driver)
    register(driver, 0)
    register(driver, 1)
    two.run()
    two.poll(2)
    return two


TRIES = CoreSettings(2, cluster=7, schedule=Schedule(ROOT), tries_root=True)


def test_a_cluster_that_begins_tries_its_root_and_keeps_nothing_of_it() -> None:
    two = tried(TRIES)
    assert two.begun() == [BeginCheckpoint(1, 7, 0, ROOT, 0, -1, -1, False, True)]
    task = two.task(CheckParts)
    assert (task.root, task.number, [part.server for part in task.parts]) == (ROOT, 0, ["server-0", "server-1"])
    two.end(CheckParts, None)
    assert two.orders == {}  # cancelled
    assert two.task(AbandonCheckpoint) == AbandonCheckpoint(ROOT, 0)
    two.end(AbandonCheckpoint, None)
    assert two.driver.mentions == [f"All servers can write checkpoints to {ROOT}."]
    assert two.driver.notes == []
    two.driver.ask(TakeCheckpoint("", False, -1, 60.0))
    two.run()
    assert two.begun()[1:] == [BeginCheckpoint(1, 7, 1, ROOT, 0, -1, -1, True, False)]  # the first one is number 1 all the same
    assert two.driver.get(GetCluster()).checkpoint == 0


def test_a_server_that_cannot_write_under_the_root_is_named_at_once() -> None:
    two = Parts(Driver(CoordinatorCore(TRIES)), disks={"server-1": "/checkpoints/x cannot be read or written: Permission denied."})
    register(two.driver, 0)
    register(two.driver, 1)
    two.run()
    two.poll(2)
    two.end(AbandonCheckpoint, None)
    why = "/checkpoints/x cannot be read or written: Permission denied"
    said = f"Checkpoints to {ROOT} will fail, as a trial has shown: of server-1 it is said that {why}."
    assert two.driver.notes == [said]
    assert two.driver.get(GetCluster()).notice == said
    assert two.driver.mentions == []


def test_a_server_whose_part_the_coordinator_does_not_find_is_named_at_once() -> None:
    two = tried(TRIES)
    two.end(CheckParts, CheckpointFailed(ROOT, "server-0", "what it wrote is elsewhere"))
    two.end(AbandonCheckpoint, StorageFailed(ROOT, "Permission denied"))
    assert two.driver.notes == [
        f"Checkpoints to {ROOT} will fail, as a trial has shown: of server-0 it is said that what it wrote is elsewhere."
    ]


def test_a_server_that_does_not_answer_to_the_trial_is_named_and_keeps_no_part_of_it() -> None:
    two = Parts(Driver(CoordinatorCore(TRIES)), is_slow=True)
    register(two.driver, 0)
    register(two.driver, 1)
    two.run()
    two.silent.add("server-1")
    two.poll()
    two.driver.tick(ANSWER_S)
    two.silent.clear()
    two.run()
    assert two.orders == {}  # cancelled
    two.end(AbandonCheckpoint, None)
    why = f"it did not answer for {ANSWER_S:.1f} s (no answer to the coordinator)"
    assert two.driver.notes == [f"Checkpoints to {ROOT} will fail, as a trial has shown: of server-1 it is said that {why}."]


def test_a_trial_keeps_nobody_from_joining() -> None:
    two = Parts(Driver(CoordinatorCore(TRIES)), is_slow=True)
    register(two.driver, 0)
    register(two.driver, 1)
    two.run()
    two.driver.get(CreateTable(SPEC, 5.0))
    join(two.driver, 0, world_size=1, mode=SYNC)
    two.is_slow = False
    two.poll(2)
    assert two.task(CheckParts).number == 0


@pytest.mark.parametrize(
    "settings",
    [
        replace(TRIES, tries_root=False),
        replace(TRIES, schedule=Schedule()),
    ],
)
def test_what_is_not_tried(settings: CoreSettings) -> None:
    assert tried(settings).begun() == []


def test_a_coordinator_that_is_started_again_tries_nothing() -> None:
    assert tried(TRIES, Stored(StoredCluster(7, 1, 2))).begun() == []
