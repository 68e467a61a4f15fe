"""Where a worker stands: arguments before the environment, and a sentence for every place that makes no sense."""

import pytest

from ps_proto.errors import InvalidRequest
from ps_worker.place import Place, find_job, find_place

ADDRESS = "127.0.0.1:7070"


def found(address: str | None = None, rank: int | None = None, world_size: int | None = None, **environment: str) -> Place:
    return find_place(address, rank, world_size, environment)


def test_alone_it_is_rank_0_of_1() -> None:
    assert found() == Place(None, 0, 1)
    assert found(ROWSTEAD_COORDINATOR="", RANK="", WORLD_SIZE="") == Place(None, 0, 1)  # empty is not set


def test_the_environment_says_it() -> None:
    assert found(ROWSTEAD_COORDINATOR=ADDRESS, RANK="1", WORLD_SIZE="2", LOCAL_RANK="0") == Place(ADDRESS, 1, 2)
    assert found(RANK="0", WORLD_SIZE="1") == Place(None, 0, 1)  # torchrun with one process


def test_arguments_win_over_the_environment() -> None:
    environment = {"ROWSTEAD_COORDINATOR": "10.0.0.1:1", "RANK": "broken", "WORLD_SIZE": "also"}
    assert found(ADDRESS, 2, 4, **environment) == Place(ADDRESS, 2, 4)
    assert found(None, 2, 4, **environment).address == "10.0.0.1:1"


def test_a_place_becomes_the_environment_that_says_it() -> None:
    for place in (Place(ADDRESS, 1, 2), Place(None, 0, 1)):
        assert find_place(None, None, None, place.variables()) == place


def test_the_environment_says_in_which_job_to_go_on() -> None:
    assert [find_job(environment) for environment in ({}, {"ROWSTEAD_JOB": ""}, {"ROWSTEAD_JOB": "7"})] == [0, 0, 7]
    with pytest.raises(InvalidRequest, match="ROWSTEAD_JOB is 'seven'"):
        find_job({"ROWSTEAD_JOB": "seven"})


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({"RANK": "0"}, "WORLD_SIZE is missing"),
        ({"WORLD_SIZE": "1"}, "RANK is missing"),
        ({"ROWSTEAD_COORDINATOR": ADDRESS}, "RANK is missing"),  # else two workers might both take themselves for the only one
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK is 'one'"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK is '-1'"),
        ({"RANK": "0", "WORLD_SIZE": "2.0"}, "WORLD_SIZE is '2.0'"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE is 0"),
        ({"RANK": "2", "WORLD_SIZE": "2", "ROWSTEAD_COORDINATOR": ADDRESS}, "RANK is 2, but must be a whole number from 0 to 1"),
        ({"ROWSTEAD_COORDINATOR": "7070", "RANK": "0", "WORLD_SIZE": "1"}, "ROWSTEAD_COORDINATOR is '7070', but must be host:port"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "ROWSTEAD_COORDINATOR is missing.*rowstead coordinator.*rowstead launch --workers 2"),
    ],
)
def test_a_place_that_makes_no_sense_names_the_variable(environment: dict[str, str], names: str) -> None:
    with pytest.raises(InvalidRequest, match=names):
        find_place(None, None, None, environment)


@pytest.mark.parametrize(
    ("address", "rank", "world_size", "names"),
    [
        ("localhost", 0, 1, "the coordinator's address is 'localhost'"),
        ("localhost:0", 0, 1, "the coordinator's address is 'localhost:0'"),
        (ADDRESS, 1, 1, "rank is 1"),
        (ADDRESS, True, 2, "rank is True"),
        (ADDRESS, 0, 0, "world_size is 0"),
        (ADDRESS, 0, None, "WORLD_SIZE is missing"),
    ],
)
def test_a_place_that_makes_no_sense_names_the_argument(address: str, rank: int, world_size: int | None, names: str) -> None:
    with pytest.raises(InvalidRequest, match=names):
        find_place(address, rank, world_size, {})
