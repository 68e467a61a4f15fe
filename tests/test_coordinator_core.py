"""The coordinator's core, turn by turn: servers that answer when the test says, and time that the test sets."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from ps_proto.errors import (
    BarrierTimeout,
    InternalError,
    InvalidRequest,
    JobMismatch,
    ParameterServerError,
    Recovering,
    StaleIncarnation,
    StaleOrder,
    TableMismatch,
    Unreachable,
)
from ps_proto.requests import (
    NEVER,
    Barrier,
    BarrierPassed,
    Cluster,
    CreateTable,
    Done,
    Fence,
    FenceRank,
    Finished,
    GetCluster,
    GetStats,
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
    Stats,
    TableCreated,
)
from ps_proto.values import Adagrad, Adam, Async, BoundedStaleness, Constant, Sync, TableSpec
from ps_server.coordinator.core import CoordinatorCore
from ps_server.coordinator.plans import ORDER_AGAIN_S, ORDERS_S_MIN
from ps_server.events import Answered, Asked, Dropped, Event, Refuse, Reply, Tell, Ticked

SYNC = Sync()
SPEC = TableSpec("user", 4, Adagrad(0.1))
CANNOT_RUN = InvalidRequest("optimizer", "'half'", "one that this server can run")
REFUSED = Unreachable("server-1", "host-1", 0.0, "connection refused")
UNREACHED = str(Unreachable("server-1", "host-1", 5.0, "connection refused"))  # what one who asked with wait_s=5 is told


@dataclass
class Driver:
    """A coordinator with its servers. `told` are the orders that no server has answered yet."""

    core: CoordinatorCore
    now_s: float = 0.0
    told: list[Tell] = field(default_factory=list)
    log: list[Tell] = field(default_factory=list)
    outcomes: dict[int, Any] = field(default_factory=dict)
    fenced: Callable[[str, FenceRank], RankFenced] = lambda server, order: RankFenced(None, NEVER, NEVER)
    _requests: int = 0

    def turn(self, event: Event) -> None:
        for effect in self.core.handle(event, self.now_s):
            match effect:
                case Reply(request, outcome) | Refuse(request, outcome):
                    assert request not in self.outcomes, "one answer to a request"
                    self.outcomes[request] = outcome
                case Tell():
                    self.told.append(effect)
                    self.log.append(effect)

    def ask(self, body: Any) -> int:
        """Ask, without answering any order; return the request's number."""
        self._requests += 1
        self.turn(Asked(self._requests, body))
        return self._requests

    def answer(self, tell: Tell, outcome: Any = None) -> None:
        """Answer one order, as a server would unless an outcome is given."""
        self.told.remove(tell)
        if outcome is None:
            outcome = self.fenced(tell.server, tell.body) if isinstance(tell.body, FenceRank) else Done()
        self.turn(Answered(tell.order, outcome))

    def settle(self) -> None:
        """Let the servers answer until nothing is open."""
        while self.told:
            self.answer(self.told[0])

    def get(self, body: Any) -> Any:
        """Ask, let the servers answer, return the reply or raise the refusal."""
        request = self.ask(body)
        self.settle()
        outcome = self.outcomes[request]
        if isinstance(outcome, ParameterServerError):
            raise outcome
        return outcome

    def tick(self, seconds: float) -> None:
        self.now_s += seconds
        self.turn(Ticked())

    def bodies(self, kind: type) -> list[tuple[str, Any]]:
        """The orders of a kind given so far: to whom, and what."""
        return [(tell.server, tell.body) for tell in self.log if isinstance(tell.body, kind)]


def register(driver: Driver, index: int) -> Any:
    return driver.outcomes[driver.ask(RegisterServer(f"server-{index}", f"host-{index}", nonce=index))]


@pytest.fixture
def driver() -> Driver:
    """A coordinator whose two servers have registered and hold the map."""
    driver = Driver(CoordinatorCore(2))
    register(driver, 0)
    register(driver, 1)
    driver.settle()
    return driver


def join(driver: Driver, rank: int, world_size: int = 2, mode: Any = SYNC, nonce: int | None = None) -> JobJoined:
    nonce = nonce if nonce is not None else 1000 + driver._requests
    joined: JobJoined = driver.get(JoinJob(rank, world_size, mode, nonce))
    return joined


# --- servers and the map -------------------------------------------------------------------------------------------------------


def test_a_server_that_registers_again_is_the_same_incarnation() -> None:
    driver = Driver(CoordinatorCore(2))
    assert register(driver, 0) == ServerRegistered("server-0", 1)
    assert register(driver, 0) == ServerRegistered("server-0", 1)
    assert driver.log == []  # one server is not two


ELSEWHERE = RegisterServer("server-0", "elsewhere", nonce=77)
GONE = Unreachable("server-0", "host-0", 0.1, "connection refused")


def test_a_server_that_crashed_before_the_map_and_starts_elsewhere_is_the_next_incarnation() -> None:
    driver = Driver(CoordinatorCore(2))
    register(driver, 0)
    request = driver.ask(ELSEWHERE)
    (question,) = driver.told
    assert (question.server, question.address, question.body) == ("server-0", "host-0", GetStats(Fence(0)))
    driver.answer(question, GONE)
    assert driver.outcomes[request] == ServerRegistered("server-0", 2)
    register(driver, 1)
    driver.settle()
    assert driver.get(GetCluster()).servers == {"server-0": "elsewhere", "server-1": "host-1"}


def test_a_server_restarted_on_its_port_before_the_map_is_the_next_incarnation() -> None:
    driver = Driver(CoordinatorCore(2))
    register(driver, 0)
    assert driver.outcomes[driver.ask(RegisterServer("server-0", "host-0", nonce=77))] == ServerRegistered("server-0", 2)
    assert driver.told == []  # at that address there is nobody else to ask


@pytest.mark.parametrize("answer", [Recovering("server-0", "it has no shard map yet"), Stats({}, {})], ids=["no map", "map"])
def test_the_second_of_two_servers_of_one_name_is_refused(answer: Any) -> None:
    driver = Driver(CoordinatorCore(2))
    register(driver, 0)
    requests = [driver.ask(ELSEWHERE), driver.ask(ELSEWHERE)]
    driver.answer(driver.told[0], answer)
    for request in requests:
        assert "'server-0', which the server at host-0 has" in str(driver.outcomes[request])
        assert "another --name" in str(driver.outcomes[request])
    assert driver.told == []
    assert driver.get(GetCluster()).servers == {"server-0": "host-0"}


def test_a_server_that_crashed_before_every_server_had_the_map_may_come_back() -> None:
    driver = Driver(CoordinatorCore(2))
    register(driver, 0)
    register(driver, 1)
    to_first, to_second = driver.told
    driver.answer(to_second)
    driver.answer(to_first, GONE)
    request = driver.ask(ELSEWHERE)
    driver.answer(driver.told[0], GONE)
    assert driver.outcomes[request] == ServerRegistered("server-0", 2)
    assert {(tell.address, tell.body.shard_map.version) for tell in driver.told} == {("elsewhere", 2), ("host-1", 2)}  # type: ignore[attr-defined]
    driver.settle()
    shard_map = driver.get(GetCluster()).shard_map
    assert [(server.address, server.incarnation) for server in shard_map.servers] == [("elsewhere", 2), ("host-1", 1)]


def test_one_who_comes_back_is_admitted_although_its_call_was_given_up_meanwhile() -> None:
    driver = Driver(CoordinatorCore(2))
    register(driver, 0)
    driver.turn(Dropped(driver.ask(ELSEWHERE)))
    driver.answer(driver.told[0], GONE)
    assert driver.outcomes[driver.ask(ELSEWHERE)] == ServerRegistered("server-0", 2)
    assert driver.told == []


def test_of_two_that_want_the_name_of_a_crashed_server_one_gets_it() -> None:
    driver = Driver(CoordinatorCore(2))
    register(driver, 0)
    first, second = driver.ask(ELSEWHERE), driver.ask(RegisterServer("server-0", "third", nonce=78))
    for question in list(driver.told):
        driver.answer(question, GONE)
    assert driver.outcomes[first] == ServerRegistered("server-0", 2)
    (question,) = driver.told  # the second one's rival is another now
    assert question.address == "elsewhere"
    driver.answer(question, Recovering("server-0", "it has no shard map yet"))
    assert "which the server at elsewhere has" in str(driver.outcomes[second])


def test_one_server_too_many_is_refused_with_the_names_of_those_that_are_there(driver: Driver) -> None:
    with pytest.raises(InvalidRequest, match="one of the 2 servers that this cluster was started for: server-0, server-1"):
        driver.get(RegisterServer("server-2", "host-2"))


def test_a_name_of_the_map_cannot_be_taken_from_elsewhere(driver: Driver) -> None:
    with pytest.raises(InvalidRequest, match="which the shard map has at host-0"):
        driver.get(ELSEWHERE)
    assert driver.get(GetCluster()).servers["server-0"] == "host-0"


def test_a_server_restarted_under_its_name_and_port_is_not_taken_for_the_old_one(driver: Driver) -> None:
    with pytest.raises(InvalidRequest, match="the rows of a server that ended are gone"):
        driver.get(RegisterServer("server-0", "host-0", nonce=77))
    assert register(driver, 0) == ServerRegistered("server-0", 1)  # a repeated message of the old one


@pytest.mark.parametrize(("name", "weight"), [("", 1.0), ("server-9", 0.0), ("server-9", -1.0), ("server-9", float("nan"))])
def test_a_server_without_a_name_or_a_weight_is_refused(name: str, weight: float) -> None:
    driver = Driver(CoordinatorCore(1))
    with pytest.raises(InvalidRequest):
        driver.get(RegisterServer(name, "host-9", weight))
    assert register(driver, 0) == ServerRegistered("server-0", 1)


def test_the_map_is_published_only_when_every_server_holds_it() -> None:
    driver = Driver(CoordinatorCore(2))
    register(driver, 0)
    register(driver, 1)
    first, second = driver.told
    assert [type(tell.body) for tell in (first, second)] == [InstallMap, InstallMap]
    driver.answer(first)
    assert driver.outcomes[driver.ask(GetCluster())].shard_map is None
    driver.answer(second)
    assert driver.outcomes[driver.ask(GetCluster())].shard_map == second.body.shard_map  # type: ignore[attr-defined]


def test_the_map_is_given_again_for_as_long_as_it_takes() -> None:
    driver = Driver(CoordinatorCore(1))
    register(driver, 0)
    for _ in range(200):
        driver.answer(driver.told[0], REFUSED)
        assert driver.told == []
        driver.tick(ORDER_AGAIN_S)
    driver.settle()
    assert driver.get(GetCluster()).shard_map is not None


def test_get_cluster_waits_for_the_map() -> None:
    driver = Driver(CoordinatorCore(2))
    request = driver.ask(GetCluster(wait_s=10.0))
    register(driver, 0)
    register(driver, 1)
    assert request not in driver.outcomes
    driver.settle()
    cluster = driver.outcomes[request]
    assert isinstance(cluster, Cluster)
    assert cluster.shard_map is not None
    assert (cluster.servers_expected, cluster.world_size, cluster.mode, cluster.ranks) == (2, 0, None, {})


def test_get_cluster_says_at_its_deadline_how_many_servers_are_there() -> None:
    driver = Driver(CoordinatorCore(3))
    request = driver.ask(GetCluster(wait_s=10.0))
    register(driver, 0)
    assert driver.core.deadline_s() == 10.0
    driver.tick(9.99)
    assert request not in driver.outcomes
    driver.tick(0.01)
    assert "1 of 3 servers have registered" in str(driver.outcomes[request])
    assert driver.core.deadline_s() is None


def test_get_cluster_says_where_only_the_map_is_missing() -> None:
    driver = Driver(CoordinatorCore(1))
    register(driver, 0)
    request = driver.ask(GetCluster(wait_s=1.0))
    driver.tick(1.0)
    assert "not every server has taken the shard map" in str(driver.outcomes[request])


def test_without_a_wait_the_cluster_is_shown_as_it_is() -> None:
    driver = Driver(CoordinatorCore(2))
    register(driver, 1)
    assert driver.outcomes[driver.ask(GetCluster())] == Cluster(2, None, servers={"server-1": "host-1"})


@pytest.mark.parametrize("body", [CreateTable(SPEC), JoinJob(0, 1, Sync(), 1)], ids=lambda body: type(body).__name__)
def test_nothing_begins_before_the_map(body: Any) -> None:
    driver = Driver(CoordinatorCore(2))
    register(driver, 0)
    with pytest.raises(Recovering, match="1 of 2"):
        driver.get(body)


def test_one_who_has_gone_gets_no_answer() -> None:
    driver = Driver(CoordinatorCore(1))
    request = driver.ask(GetCluster(wait_s=10.0))
    driver.turn(Dropped(request))
    register(driver, 0)
    driver.settle()
    driver.tick(20.0)
    assert request not in driver.outcomes


# --- tables ----------------------------------------------------------------------------------------------------------------------


def test_a_table_is_created_once_every_server_has_it(driver: Driver) -> None:
    request = driver.ask(CreateTable(SPEC))
    first, second = driver.told
    driver.answer(first)
    assert request not in driver.outcomes
    assert driver.outcomes[driver.ask(GetCluster())].tables == ()  # nobody is to find it before all servers have it
    driver.answer(second)
    assert driver.outcomes[request] == TableCreated(SPEC)
    assert driver.get(GetCluster()).tables == (SPEC,)
    assert driver.bodies(InstallTable) == [("server-0", InstallTable(1, SPEC, 1)), ("server-1", InstallTable(1, SPEC, 1))]


def test_the_same_table_again_is_fine_and_keeps_the_first_hyperparameters(driver: Driver) -> None:
    driver.get(CreateTable(SPEC))
    assert driver.get(CreateTable(SPEC)) == TableCreated(SPEC)
    assert driver.get(CreateTable(TableSpec("user", 4, Adagrad(0.9)))) == TableCreated(SPEC)


@pytest.mark.parametrize(
    ("other", "field_name", "have", "want"),
    [
        (TableSpec("user", 8, Adagrad(0.1)), "dim", "4", "8"),
        (TableSpec("user", 4, Adam()), "optimizer", "adagrad", "adam"),
        (TableSpec("user", 4, Adagrad(0.1), seed=5), "seed", "0", "5"),
        (TableSpec("user", 4, Adagrad(0.1), Constant(1.0)), "initializer", "Zeros()", "Constant(value=1.0)"),
        (TableSpec("user", 4, Adagrad(0.1), mode=Async()), "mode", "None", "Async()"),
    ],
)
def test_a_differing_table_is_refused_with_the_field(driver: Driver, other: TableSpec, field_name: str, have: str, want: str) -> None:
    driver.get(CreateTable(SPEC))
    with pytest.raises(TableMismatch) as raised:
        driver.get(CreateTable(other))
    assert (raised.value.field, raised.value.have, raised.value.want) == (field_name, have, want)
    assert driver.get(GetCluster()).tables == (SPEC,)


def test_of_two_that_create_at_once_the_first_decides(driver: Driver) -> None:
    first, other, same = driver.ask(CreateTable(SPEC)), driver.ask(CreateTable(TableSpec("user", 8))), driver.ask(CreateTable(SPEC))
    driver.settle()
    assert driver.outcomes[first] == driver.outcomes[same] == TableCreated(SPEC)
    assert isinstance(driver.outcomes[other], TableMismatch)
    assert len(driver.bodies(InstallTable)) == 2


def test_a_table_that_one_server_may_have_binds_later_ones(driver: Driver) -> None:
    request = driver.ask(CreateTable(SPEC, wait_s=5.0))
    driver.answer(driver.told[0])
    driver.now_s += 5.0
    driver.answer(driver.told[0], REFUSED)
    assert str(driver.outcomes[request]) == UNREACHED
    with pytest.raises(TableMismatch):
        driver.get(CreateTable(TableSpec("user", 8)))
    assert driver.get(CreateTable(SPEC)) == TableCreated(SPEC)
    assert len(driver.bodies(InstallTable)) == 4


def test_an_order_is_given_again_after_unreachable(driver: Driver) -> None:
    request = driver.ask(CreateTable(SPEC))
    driver.answer(driver.told[0])
    driver.answer(driver.told[0], REFUSED)
    assert driver.told == []
    assert driver.core.deadline_s() == ORDER_AGAIN_S
    driver.tick(ORDER_AGAIN_S)
    assert [tell.server for tell in driver.told] == ["server-1"]  # the other one has answered
    driver.answer(driver.told[0], Recovering("server-1", "it starts"))
    driver.tick(ORDER_AGAIN_S)
    driver.settle()
    assert driver.outcomes[request] == TableCreated(SPEC)
    assert driver.core.deadline_s() is None


def test_an_order_that_fails_for_too_long_is_given_up_with_the_servers_name(driver: Driver) -> None:
    request = driver.ask(CreateTable(SPEC, wait_s=5.0))
    driver.answer(driver.told[0])
    while driver.told:
        driver.answer(driver.told[0], REFUSED)
        driver.tick(ORDER_AGAIN_S)
    assert str(driver.outcomes[request]) == UNREACHED
    assert driver.now_s == 5.0
    assert driver.core.deadline_s() is None


def test_a_server_that_says_nothing_is_named_as_soon_as_the_time_is_up(driver: Driver) -> None:
    request = driver.ask(JoinJob(0, 1, Sync(), 1, wait_s=5.0))
    driver.answer(driver.told[0])
    assert driver.core.deadline_s() == 5.0
    driver.tick(4.9)
    assert request not in driver.outcomes
    driver.tick(0.1)
    error = driver.outcomes[request]
    assert isinstance(error, Unreachable)
    assert (error.peer, error.address, error.after_s) == ("server-1", "host-1", 5.0)


def test_one_who_waits_behind_another_plan_is_told_of_the_server_that_holds_it_up(driver: Driver) -> None:
    patient, hasty = driver.ask(CreateTable(SPEC, wait_s=9.0)), driver.ask(JoinJob(0, 1, Sync(), 1, wait_s=5.0))
    driver.answer(driver.told[0])
    driver.answer(driver.told[0], REFUSED)
    driver.now_s = 5.0
    driver.turn(Ticked())
    assert str(driver.outcomes[hasty]) == UNREACHED
    assert patient not in driver.outcomes
    driver.settle()
    assert driver.outcomes[patient] == TableCreated(SPEC)
    assert driver.bodies(FenceRank) == []  # the join was given up whole


def test_of_two_who_ask_for_one_table_each_waits_its_own_time(driver: Driver) -> None:
    hasty, patient = driver.ask(CreateTable(SPEC, wait_s=5.0)), driver.ask(CreateTable(SPEC, wait_s=9.0))
    driver.tick(5.0)
    assert isinstance(driver.outcomes[hasty], Unreachable)
    driver.settle()
    assert driver.outcomes[patient] == TableCreated(SPEC)


def test_the_next_plan_begins_when_one_is_given_up(driver: Driver) -> None:
    driver.ask(CreateTable(SPEC))
    driver.now_s = 0.5
    joining = driver.ask(JoinJob(0, 1, Sync(), 1, wait_s=5.0))
    driver.told.clear()
    driver.tick(ORDERS_S_MIN - 0.5)
    assert [type(tell.body) for tell in driver.told] == [FenceRank, FenceRank]
    driver.settle()
    assert isinstance(driver.outcomes[joining], JobJoined)


def test_an_order_that_a_server_refuses_is_not_repeated(driver: Driver) -> None:
    request = driver.ask(CreateTable(SPEC))
    driver.answer(driver.told[1], StaleOrder("server-1", 7, 1))
    assert isinstance(driver.outcomes[request], StaleOrder)


@pytest.mark.parametrize("refusal", [CANNOT_RUN, InternalError("server-1", "ab", "a bug")])
def test_a_table_that_a_server_refuses_leaves_its_name_free(driver: Driver, refusal: ParameterServerError) -> None:
    other = TableSpec("user", 8)
    first, sharing, waiting = driver.ask(CreateTable(SPEC)), driver.ask(CreateTable(SPEC)), driver.ask(CreateTable(other))
    late, refusing = driver.told
    driver.answer(refusing, refusal)
    assert driver.outcomes[first] is driver.outcomes[sharing] is refusal
    driver.answer(late)
    driver.settle()
    assert driver.outcomes[waiting] == TableCreated(other)
    assert driver.core.tables == {"user": other}
    assert driver.get(GetCluster()).tables == (other,)
    assert [body for _, body in driver.bodies(InstallTable)] == [InstallTable(1, SPEC, 1)] * 2 + [InstallTable(1, other, 2)] * 2


def test_a_table_that_is_refused_when_it_is_asked_for_again_leaves_its_name_free(driver: Driver) -> None:
    driver.ask(CreateTable(SPEC, wait_s=5.0))  # the servers compile for longer than that
    driver.tick(5.0)
    late, _ = driver.told
    again = driver.ask(CreateTable(SPEC))
    driver.answer(late, CANNOT_RUN)
    driver.answer(driver.told[-1], CANNOT_RUN)
    assert isinstance(driver.outcomes[again], InvalidRequest)
    assert driver.core.tables == {}


def test_a_refused_creation_takes_no_table_back_that_is_there(driver: Driver) -> None:
    driver.get(CreateTable(SPEC))
    driver.ask(CreateTable(TableSpec("item", 8)))
    driver.answer(driver.told[0], CANNOT_RUN)
    driver.settle()
    assert driver.get(GetCluster()).tables == (SPEC,)
    assert driver.get(CreateTable(SPEC)) == TableCreated(SPEC)


def test_an_answer_to_an_order_of_a_plan_that_was_given_up_is_not_taken_for_another(driver: Driver) -> None:
    driver.ask(CreateTable(SPEC))
    late, refusing = driver.told
    driver.answer(refusing, StaleOrder("server-1", 7, 1))
    request = driver.ask(JoinJob(0, 1, Sync(), 1))
    driver.answer(late)  # Done, to InstallTable, while FenceRank waits for its RankFenced
    assert request not in driver.outcomes
    driver.settle()
    assert isinstance(driver.outcomes[request], JobJoined)


def test_requests_that_are_repeated_while_a_server_is_away_do_not_pile_up(driver: Driver) -> None:
    requests = []
    for _ in range(3):
        requests.append(driver.ask(CreateTable(SPEC)))
        driver.turn(Dropped(requests[-1]))  # the client gave the call up, and asks again
    last = driver.ask(CreateTable(SPEC))
    driver.answer(driver.told[0])
    driver.answer(driver.told[0], REFUSED)
    driver.tick(ORDER_AGAIN_S)
    driver.settle()
    assert driver.outcomes[last] == TableCreated(SPEC)
    assert not driver.outcomes.keys() & set(requests)
    assert len(driver.bodies(InstallTable)) == 3  # two, and one again


# --- joining ---------------------------------------------------------------------------------------------------------------------


def test_the_first_to_join_fixes_world_size_and_mode(driver: Driver) -> None:
    joined = join(driver, 0, 2, BoundedStaleness(3))
    assert (joined.incarnation, joined.clock, joined.barrier, joined.world_size, joined.mode) == (1, 0, 0, 2, BoundedStaleness(3))
    assert joined.shard_map == driver.core.shard_map
    orders = [tell.body for tell in driver.log if tell.server == "server-1" and not isinstance(tell.body, InstallMap)]
    assert orders == [FenceRank(1, 0, 1), StartJob(1, 1, 2, BoundedStaleness(3), 0), ResolveRank(1, 0, 1, None, 0)]
    cluster = driver.get(GetCluster())
    assert (cluster.world_size, cluster.mode, cluster.ranks) == (2, BoundedStaleness(3), {0: 1})


def test_who_differs_is_refused_with_both_values(driver: Driver) -> None:
    join(driver, 0, 2, Sync())
    with pytest.raises(JobMismatch) as raised:
        join(driver, 1, 3, Sync())
    assert (raised.value.field, raised.value.have, raised.value.want) == ("world_size", "2", "3")
    with pytest.raises(JobMismatch) as raised:
        join(driver, 1, 2, Async())
    assert (raised.value.field, raised.value.have, raised.value.want) == ("mode", str(SYNC), str(Async()))
    assert join(driver, 1, 2, None).mode == Sync()  # who does not say takes the job's
    assert len(driver.bodies(StartJob)) == 2


def test_the_first_one_must_name_a_mode(driver: Driver) -> None:
    with pytest.raises(InvalidRequest, match=r"mode=ps\.Sync"):
        join(driver, 0, 1, None)


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0), (0, -1), (0, 2**20 + 1)])
def test_a_rank_outside_the_world_is_refused(driver: Driver, rank: int, world_size: int) -> None:
    with pytest.raises(InvalidRequest):
        join(driver, rank, world_size)
    assert driver.bodies(FenceRank) == []


def test_a_repeated_message_gets_the_same_answer_and_is_no_new_incarnation(driver: Driver) -> None:
    first, repeated = driver.ask(JoinJob(0, 2, Sync(), 77)), driver.ask(JoinJob(0, 2, Sync(), 77))
    driver.settle()
    orders = len(driver.log)
    late = driver.ask(JoinJob(0, 2, Sync(), 77))
    assert driver.outcomes[first] == driver.outcomes[repeated] == driver.outcomes[late]
    assert driver.outcomes[first].incarnation == 1
    assert len(driver.log) == orders


def test_a_message_from_before_a_takeover_does_not_take_the_rank_back(driver: Driver) -> None:
    join(driver, 0, nonce=1)
    new = join(driver, 0, nonce=2)
    with pytest.raises(StaleIncarnation, match="Rank 0 has been taken over by incarnation 2; this is incarnation 1"):
        join(driver, 0, nonce=1)
    assert join(driver, 0, nonce=2) == new
    assert driver.get(GetCluster()).ranks == {0: new.incarnation}


def test_only_the_last_answer_of_a_rank_is_kept(driver: Driver) -> None:
    for nonce in range(1, 50):
        join(driver, nonce % 2, nonce=nonce)
    assert {rank: joined.incarnation for rank, joined in driver.core.ranks.joined.items()} == {0: 24, 1: 25}


def test_a_second_worker_of_a_rank_fences_the_first(driver: Driver) -> None:
    assert join(driver, 1, nonce=1).incarnation == 1
    assert join(driver, 1, nonce=2).incarnation == 2
    assert driver.bodies(FenceRank)[-1] == ("server-1", FenceRank(1, 1, 2))
    with pytest.raises(StaleIncarnation, match="Rank 1 has been taken over by incarnation 2; this is incarnation 1"):
        driver.get(Barrier(1, 1, 0, 1.0))


def test_a_worker_starts_above_everything_that_any_server_knows_of_its_rank(driver: Driver) -> None:
    join(driver, 0)
    driver.fenced = lambda server, order: RankFenced(Finished(4), NEVER, 9) if server == "server-0" else RankFenced(Finished(3), 6, 6)
    assert join(driver, 0).clock == 7  # applied 6 on server-1
    assert driver.bodies(ResolveRank)[-2:] == [(server, ResolveRank(1, 0, 2, Finished(4), 7)) for server in ("server-0", "server-1")]
    driver.fenced = lambda server, order: RankFenced(Finished(8), 6, 9) if server == "server-0" else RankFenced(Finished(7), 6, 9)
    assert join(driver, 0).clock == 9  # finished 8 on server-0


def test_nobody_is_told_of_a_rank_before_every_server_has_settled_it(driver: Driver) -> None:
    request = driver.ask(JoinJob(0, 1, Sync(), 1))
    for kind in (FenceRank, StartJob, ResolveRank):
        assert [type(tell.body) for tell in driver.told] == [kind, kind]
        driver.answer(driver.told[1])
        assert request not in driver.outcomes
        assert len(driver.told) == 1  # the next round waits for the slower server
        driver.answer(driver.told[0])
    assert isinstance(driver.outcomes[request], JobJoined)


def test_two_that_join_at_once_join_one_job(driver: Driver) -> None:
    requests = [driver.ask(JoinJob(rank, 2, Sync(), rank + 1)) for rank in (1, 0)]
    other = driver.ask(JoinJob(0, 2, Async(), 9))
    driver.settle()
    assert [driver.outcomes[request].incarnation for request in requests] == [1, 1]
    assert isinstance(driver.outcomes[other], JobMismatch)
    assert [body.job for _, body in driver.bodies(StartJob)] == [1, 1]


def test_two_of_one_rank_at_once_are_two_incarnations(driver: Driver) -> None:
    first, second = driver.ask(JoinJob(0, 1, Sync(), 1)), driver.ask(JoinJob(0, 1, Sync(), 2))
    driver.settle()
    assert [driver.outcomes[request].incarnation for request in (first, second)] == [1, 2]
    assert driver.get(GetCluster()).ranks == {0: 2}


def test_tables_travel_with_the_answer(driver: Driver) -> None:
    join(driver, 0)
    driver.get(CreateTable(SPEC))
    assert join(driver, 1).tables == (SPEC,)


def test_a_start_that_was_given_up_never_shares_its_number_with_the_next(driver: Driver) -> None:
    request = driver.ask(JoinJob(0, 3, Async(), 1, wait_s=5.0))
    driver.answer(driver.told[0])
    driver.answer(driver.told[0])
    driver.answer(driver.told[0])  # server-0 has started job 1 of 3 ranks
    driver.now_s += 5.0
    driver.answer(driver.told[0], REFUSED)
    assert str(driver.outcomes[request]) == UNREACHED
    joined = join(driver, 0, 2, Sync())
    assert (joined.incarnation, joined.world_size, joined.mode) == (2, 2, Sync())
    starts = driver.bodies(StartJob)[-2:]
    assert [(server, body.world_size) for server, body in starts] == [("server-0", 2), ("server-1", 2)]
    assert starts[0][1].job > 1, "server-0 would take it for the job that it has"


# --- leaving ---------------------------------------------------------------------------------------------------------------------


def leave(driver: Driver, joined: JobJoined, rank: int) -> None:
    assert driver.get(LeaveJob(rank, joined.incarnation)) == Done()


def test_a_job_ends_when_all_have_left_and_the_next_may_differ(driver: Driver) -> None:
    first, second = join(driver, 0), join(driver, 1)
    leave(driver, first, 0)
    assert driver.get(GetCluster()).ranks == {1: 1}
    with pytest.raises(JobMismatch):
        join(driver, 0, 3, Async())
    leave(driver, second, 1)
    assert driver.get(GetCluster()).world_size == 0
    driver.fenced = lambda server, order: RankFenced(Finished(4), 4, 11 if server == "server-1" else 8)
    joined = join(driver, 2, 3, Async())
    assert (joined.incarnation, joined.clock, joined.world_size, joined.mode) == (1, 12, 3, Async())
    assert driver.bodies(StartJob)[-1] == ("server-1", StartJob(1, 2, 3, Async(), 12))
    assert join(driver, 0, 3, Async()).incarnation == 2  # a rank's incarnation never goes down


def test_leaving_twice_or_late_changes_nothing(driver: Driver) -> None:
    joined = join(driver, 0)
    leave(driver, joined, 0)
    leave(driver, joined, 0)
    again = join(driver, 1)
    leave(driver, JobJoined(again.incarnation + 1, 0, 0, 2, Sync(), 0, again.shard_map, ()), 1)
    assert driver.get(GetCluster()).ranks == {1: 1}


def test_a_rank_that_left_a_running_job_is_told_who_goes_on(driver: Driver) -> None:
    first = join(driver, 0, 3)
    join(driver, 1, 3)
    leave(driver, first, 0)
    with pytest.raises(JobMismatch, match="roster 1, 2: rank 0 has left it"):
        join(driver, 0, 3)


def test_a_rank_that_leaves_while_it_is_joined_anew_does_not_join_a_job_that_is_over(driver: Driver) -> None:
    old = join(driver, 0, 1)
    request = driver.ask(JoinJob(0, 1, Sync(), 5))
    leave(driver, old, 0)
    driver.settle()
    assert isinstance(driver.outcomes[request], Recovering)  # it asks again, and that is a new job
    assert join(driver, 0, 1, nonce=5).incarnation == 3
    assert driver.bodies(StartJob)[-1][1].job == 2


# --- backup workers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world_size", "backup_workers"), [(1, 1), (2, 2), (3, 100)])
def test_of_all_ranks_one_at_least_is_no_backup(driver: Driver, world_size: int, backup_workers: int) -> None:
    with pytest.raises(InvalidRequest, match=f"backup_workers is {backup_workers}, but must be at most {world_size - 1}"):
        join(driver, 0, world_size, Sync(backup_workers))
    assert join(driver, 0, world_size, Sync(world_size - 1)).mode == Sync(world_size - 1)


def test_backup_workers_are_part_of_the_mode_that_all_must_agree_on(driver: Driver) -> None:
    join(driver, 0, 3, Sync(1))
    for mode in (Sync(), Sync(2)):
        with pytest.raises(JobMismatch, match="mode"):
            join(driver, 1, 3, mode)
    assert join(driver, 1, 3, None).mode == Sync(1)


@pytest.mark.parametrize("job", [Sync(), Sync(1), Async(), BoundedStaleness(1)], ids=str)
def test_a_table_that_wants_other_backup_workers_than_its_job_is_refused(driver: Driver, job: Any) -> None:
    join(driver, 0, 3, job)
    with pytest.raises(InvalidRequest, match=r"TableSpec.mode is Sync\(backup_workers=2\) in a job of"):
        driver.get(CreateTable(TableSpec("user", 4, mode=Sync(2))))
    assert driver.bodies(InstallTable) == []
    driver.get(CreateTable(TableSpec("follows", 4, mode=Sync())))
    assert [spec.name for spec in driver.get(GetCluster()).tables] == ["follows"]


def test_a_job_that_contradicts_a_table_is_refused(driver: Driver) -> None:
    joined = join(driver, 0, 1 + 1, Sync(1))
    join(driver, 1, 2, Sync(1))
    driver.get(CreateTable(TableSpec("user", 4, mode=Sync(1))))
    for rank in (0, 1):
        driver.get(LeaveJob(rank, joined.incarnation))
    for mode in (Sync(), Async()):
        with pytest.raises(InvalidRequest, match="table 'user' has Sync"):
            join(driver, 0, 2, mode)
    assert join(driver, 0, 2, Sync(1)).mode == Sync(1)


# --- barriers --------------------------------------------------------------------------------------------------------------------


def test_a_barrier_opens_when_all_are_there(driver: Driver) -> None:
    join(driver, 0)
    join(driver, 1)
    first = driver.ask(Barrier(0, 1, 0, 10.0))
    driver.tick(5.0)
    assert first not in driver.outcomes
    second = driver.ask(Barrier(1, 1, 0, 10.0))
    assert driver.outcomes[first] == driver.outcomes[second] == BarrierPassed()
    assert driver.core.deadline_s() is None


def test_the_next_generation_waits_anew_and_a_late_repetition_does_not(driver: Driver) -> None:
    join(driver, 0)
    join(driver, 1)
    driver.ask(Barrier(0, 1, 0, 10.0))
    driver.ask(Barrier(1, 1, 0, 10.0))
    assert driver.outcomes[driver.ask(Barrier(0, 1, 0, 10.0))] == BarrierPassed()  # its answer was lost
    waiting = driver.ask(Barrier(0, 1, 1, 10.0))
    assert waiting not in driver.outcomes
    assert driver.outcomes[driver.ask(Barrier(1, 1, 1, 10.0))] == BarrierPassed()
    assert driver.outcomes[waiting] == BarrierPassed()


def test_one_that_asks_twice_is_one(driver: Driver) -> None:
    join(driver, 0, 3)
    join(driver, 1, 3)
    asked = [driver.ask(Barrier(0, 1, 0, 10.0)), driver.ask(Barrier(0, 1, 0, 10.0)), driver.ask(Barrier(1, 1, 0, 10.0))]
    assert not driver.outcomes.keys() & set(asked)
    driver.tick(10.0)
    assert {str(driver.outcomes[request]) for request in asked} == {"Barrier 0 waited 10.0 s for rank 2. Check that those workers run."}


def test_a_barrier_passes_with_the_least_value_also_for_who_asks_again(driver: Driver) -> None:
    for rank in range(3):
        join(driver, rank, 3)
    asked = [driver.ask(Barrier(rank, 1, 0, 10.0, value)) for rank, value in enumerate((5, -2, 7))]
    assert [driver.outcomes[request] for request in asked] == [BarrierPassed(-2)] * 3
    driver.ask(Barrier(1, 1, 1, 10.0, 4))
    assert driver.outcomes[driver.ask(Barrier(0, 1, 0, 10.0, 5))] == BarrierPassed(-2)  # its answer was lost


def test_what_one_brought_that_leaves_counts_no_more(driver: Driver) -> None:
    for rank in range(3):
        join(driver, rank, 3)
    first = driver.ask(Barrier(0, 1, 0, 10.0, 5))
    driver.ask(Barrier(1, 1, 0, 10.0, -2))
    driver.ask(LeaveJob(1, 1))
    driver.ask(Barrier(2, 1, 0, 10.0, 7))
    assert driver.outcomes[first] == BarrierPassed(5)


def test_a_barrier_that_times_out_names_the_missing_ranks(driver: Driver) -> None:
    join(driver, 1, 4)
    request = driver.ask(Barrier(1, 1, 0, 7.0))
    driver.tick(7.0)
    error = driver.outcomes[request]
    assert isinstance(error, BarrierTimeout)
    assert (error.generation, error.missing_ranks, error.after_s) == (0, "0, 2, 3", 7.0)


def test_one_that_leaves_is_waited_for_no_more(driver: Driver) -> None:
    join(driver, 0)
    join(driver, 1)
    request = driver.ask(Barrier(0, 1, 0, 10.0))
    driver.ask(LeaveJob(1, 1))
    assert driver.outcomes[request] == BarrierPassed()


def test_one_that_joins_again_was_not_at_the_barrier(driver: Driver) -> None:
    join(driver, 0)
    join(driver, 1)
    old = driver.ask(Barrier(0, 1, 0, 10.0))
    joined = join(driver, 0)
    assert isinstance(driver.outcomes[old], StaleIncarnation)
    other = driver.ask(Barrier(1, 1, 0, 10.0))
    assert other not in driver.outcomes  # the new one is not there yet
    driver.ask(Barrier(0, joined.incarnation, joined.barrier, 10.0))
    assert driver.outcomes[other] == BarrierPassed()


def test_one_that_joins_later_starts_at_the_generation_of_the_others(driver: Driver) -> None:
    join(driver, 0, 2)
    join(driver, 1, 2)
    for generation in range(3):
        driver.ask(Barrier(0, 1, generation, 10.0))
        driver.ask(Barrier(1, 1, generation, 10.0))
    assert join(driver, 1, 2).barrier == 3


def test_a_barrier_without_a_job_is_refused(driver: Driver) -> None:
    with pytest.raises(InvalidRequest, match="rank is 0, which has not joined or has left"):
        driver.get(Barrier(0, 1, 0, 10.0))


@pytest.mark.parametrize(("rank", "incarnation"), [(1, 0), (1, 1), (2, 0), (0, 2)])
def test_a_barrier_from_a_rank_that_never_joined_says_so(driver: Driver, rank: int, incarnation: int) -> None:
    join(driver, 0)
    with pytest.raises(InvalidRequest, match=f"rank is {rank}, which has not joined or has left"):
        driver.get(Barrier(rank, incarnation, 0, 10.0))


def test_a_barrier_from_a_rank_that_has_left_says_so(driver: Driver) -> None:
    joined = join(driver, 0)
    join(driver, 1)
    leave(driver, joined, 0)
    with pytest.raises(InvalidRequest, match="rank is 0, which has not joined or has left"):
        driver.get(Barrier(0, joined.incarnation, 0, 10.0))


def test_one_who_has_gone_from_a_barrier_has_been_there_all_the_same(driver: Driver) -> None:
    join(driver, 0)
    join(driver, 1)
    gone = driver.ask(Barrier(0, 1, 0, 10.0))
    driver.turn(Dropped(gone))
    assert driver.outcomes[driver.ask(Barrier(1, 1, 0, 10.0))] == BarrierPassed()
    assert gone not in driver.outcomes
    assert driver.outcomes[driver.ask(Barrier(0, 1, 0, 10.0))] == BarrierPassed()  # it asks again
