"""The coordinator's core: a table is created on every server or on none, and orders are given again."""

import pytest

from driven import REFUSED, SPEC, UNREACHED, Driver, driven
from ps_proto.errors import InternalError, InvalidRequest, ParameterServerError, Recovering, StaleOrder, TableMismatch, Unreachable
from ps_proto.orders import FenceRank, InstallTable
from ps_proto.requests import CreateTable, GetCluster, JobJoined, JoinJob, TableCreated
from ps_proto.values import Adagrad, Adam, Async, Constant, Sync, TableSpec
from ps_server.coordinator.plans import ORDER_AGAIN_S, ORDERS_S_MIN
from ps_server.events import Dropped, Ticked

CANNOT_RUN = InvalidRequest("optimizer", "'half'", "one that this server can run")


@pytest.fixture
def driver() -> Driver:
    return driven()


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
