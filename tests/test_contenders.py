"""Two servers of one name: which of them is there, and which of them gets it."""

import pytest

from driven import Driver, register
from ps_proto.errors import InvalidRequest, ParameterServerError, Recovering, Unreachable
from ps_proto.orders import AskProcess, ProcessNamed
from ps_proto.requests import GetCluster, RegisterServer, ServerRegistered
from ps_server.coordinator.core import CoordinatorCore
from ps_server.coordinator.core_settings import CoreSettings
from ps_server.events import Dropped, Tell

HERE = RegisterServer("server-0", "host-0", nonce=77)
ELSEWHERE = RegisterServer("server-0", "elsewhere", nonce=77)
THIRD = RegisterServer("server-0", "third", nonce=78)
OLD, NEW, ANOTHER = ProcessNamed(0), ProcessNamed(77), ProcessNamed(79)
GONE = Unreachable("server-0", "host-0", 0.1, "connection refused")
NO_SERVER = InvalidRequest("the call to server-0 at host-0", "refused with UNIMPLEMENTED: Method not found!", "one that it serves")
IS_TAKEN_IN = ServerRegistered("server-0", 2)


@pytest.fixture
def driver() -> Driver:
    """Return a coordinator that waits for one more server than server-0, which listens at host-0."""
    driver = Driver(CoordinatorCore(CoreSettings(2)))
    assert register(driver, 0) == ServerRegistered("server-0", 1)
    return driver


def questions(driver: Driver) -> dict[str, Tell]:
    """Return those that are open, by the address at which they are asked."""
    return {tell.address: tell for tell in driver.told if isinstance(tell.body, AskProcess)}


def outcome_of(driver: Driver, body: RegisterServer, **answers: ProcessNamed | ParameterServerError) -> object:
    """Return what a server is told that asks for the name of another; `answers`: address, with _ for -, -> who answers there."""
    request = driver.ask(body)
    for address, outcome in answers.items():
        assert request not in driver.outcomes
        driver.answer(questions(driver)[address.replace("_", "-")], outcome)
    assert driver.told == []
    return driver.outcomes[request]


@pytest.mark.parametrize("at_old", [GONE, ANOTHER, NO_SERVER], ids=["nobody", "another", "another program"])
def test_one_that_is_there_gets_the_name_of_one_that_is_gone(driver: Driver, at_old: ProcessNamed | ParameterServerError) -> None:
    assert outcome_of(driver, ELSEWHERE, host_0=at_old, elsewhere=NEW) == IS_TAKEN_IN
    assert driver.get(GetCluster()).servers == {"server-0": "elsewhere"}
    assert outcome_of(driver, ELSEWHERE) == IS_TAKEN_IN


def test_it_does_not_matter_who_answers_first(driver: Driver) -> None:
    assert outcome_of(driver, ELSEWHERE, elsewhere=NEW, host_0=GONE) == IS_TAKEN_IN


@pytest.mark.parametrize("at_old", [OLD, Recovering("server-0", "it is of another release")], ids=["itself", "an error"])
@pytest.mark.parametrize("at_new", [NEW, GONE], ids=["there", "not there"])
def test_one_that_lives_keeps_its_name(
    driver: Driver, at_old: ProcessNamed | ParameterServerError, at_new: ProcessNamed | ParameterServerError
) -> None:
    requests = [driver.ask(ELSEWHERE), driver.ask(ELSEWHERE)]
    assert len(driver.told) == 2, "the same is asked once"
    driver.answer(questions(driver)["elsewhere"], at_new)
    driver.answer(questions(driver)["host-0"], at_old)
    for request in requests:
        assert isinstance(driver.outcomes[request], InvalidRequest)
        assert "'server-0', which the server at host-0 has" in str(driver.outcomes[request])
        assert "another --name" in str(driver.outcomes[request])
    assert driver.told == []
    assert driver.get(GetCluster()).servers == {"server-0": "host-0"}


def test_one_that_was_started_again_at_its_address_replaces_itself(driver: Driver) -> None:
    assert outcome_of(driver, HERE, host_0=NEW) == IS_TAKEN_IN


@pytest.mark.parametrize(
    ("found", "says"), [(GONE, "nobody answers \\(connection refused\\)"), (OLD, "another process answers"), (ANOTHER, "another process")]
)
def test_a_late_message_of_one_that_is_gone_changes_nothing(driver: Driver, found: ProcessNamed | ParameterServerError, says: str) -> None:
    stored = dict(driver.stored)
    refusal = outcome_of(driver, HERE, host_0=found)
    assert isinstance(refusal, Recovering), "which is tried again, in case it lives after all"
    with pytest.raises(Recovering, match=f"at host-0, where server-0 says that it listens, {says}"):
        raise refusal
    assert isinstance(outcome_of(driver, ELSEWHERE, host_0=GONE, elsewhere=found), Recovering)
    assert driver.stored == stored
    assert register(driver, 0) == ServerRegistered("server-0", 1)


def test_one_who_comes_back_is_admitted_although_its_call_was_given_up_meanwhile(driver: Driver) -> None:
    driver.turn(Dropped(driver.ask(ELSEWHERE)))
    driver.answer(questions(driver)["host-0"], GONE)
    driver.answer(questions(driver)["elsewhere"], NEW)
    assert outcome_of(driver, ELSEWHERE) == IS_TAKEN_IN


def test_of_two_that_want_the_name_of_a_crashed_server_one_gets_it(driver: Driver) -> None:
    first, second = driver.ask(ELSEWHERE), driver.ask(THIRD)
    for question in list(driver.told):
        driver.answer(question, {"host-0": GONE, "elsewhere": NEW, "third": ProcessNamed(78)}[question.address])
    assert driver.outcomes[first] == IS_TAKEN_IN
    assert set(questions(driver)) == {"elsewhere", "third"}, "the second one's rival is another now"
    driver.answer(questions(driver)["elsewhere"], NEW)
    driver.answer(questions(driver)["third"], ProcessNamed(78))
    assert "which the server at elsewhere has" in str(driver.outcomes[second])
