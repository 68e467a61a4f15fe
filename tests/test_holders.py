"""Whose the ranks are that were given to those who joined."""

from dataclasses import replace

from ps_proto.orders import JobState, RankState
from ps_proto.requests import NEVER
from ps_proto.values import Async
from ps_server.coordinator.holders import HOLDERS_KEPT, Holders
from ps_server.coordinator.job import Job
from ps_server.tasks import FoundCheckpoint


def held(*taken: tuple[int, str, int]) -> Holders:
    holders = Holders()
    for rank, name, since in taken:
        holders.take(rank, name)
        holders.begin(rank, since)
    return holders


def test_a_rank_is_its_last_holders() -> None:
    holders = held((2, "a", 3), (1, "b", 5), (2, "c", 9))
    assert [holders.name_of(rank) for rank in range(4)] == ["", "b", "c", ""]
    assert [holders.since(rank) for rank in range(3)] == [NEVER, 5, 9]
    assert (holders.ranks_of("a"), holders.ranks_of("b"), holders.ranks_of("nobody")) == ([], [1], [])


def test_who_joins_again_holds_the_rank_that_it_took_last() -> None:
    assert held((3, "a", 3), (1, "a", 7)).ranks_of("a") == [1, 3]


def test_only_who_has_yet_to_begin_begins() -> None:
    holders = held((2, "a", 3))
    holders.begin(2, 8)  # it was removed, and is admitted again
    holders.begin(1, 8)  # of one that says its number
    assert (holders.since(2), holders.since(1)) == (3, NEVER)


def test_a_rollback_gives_each_rank_to_who_had_it_at_the_checkpoint() -> None:
    holders = held((2, "a", 3), (1, "b", 5), (2, "c", 9), (3, "d", 10))
    holders.take(4, "e")  # its admission is under way
    assert holders.go_back({0: 8, 1: 8, 2: 8, 3: 8}, {}) == {3, 4}
    assert [holders.name_of(rank) for rank in range(5)] == ["", "b", "c", "", ""], "rank 2 was to begin with step 9, which is the next one"
    assert holders.go_back({0: 7, 1: 7, 2: 7}, {}) == {2}
    assert holders.name_of(2) == "a"
    assert holders.go_back({0: 3, 1: 3}, {}) == {1, 2}
    assert [holders.name_of(rank) for rank in range(3)] == ["", "", ""]


def test_a_rank_that_all_servers_had_admitted_by_the_checkpoint_is_its_holders() -> None:
    """The coordinator had yet to hear of it."""
    holders = Holders()
    holders.take(2, "a")
    assert holders.go_back({0: 8, 1: 8, 2: 8}, {2: 9}) == set()
    assert (holders.name_of(2), holders.since(2)) == ("a", 9)
    holders.take(2, "b")  # once "a" has left
    assert holders.go_back({0: 8, 1: 8, 2: 8}, {}) == {2}
    assert holders.name_of(2) == "a"
    holders.take(2, "b")
    assert holders.go_back({0: 20, 1: 20, 2: 20}, {2: 15}) == set()
    assert (holders.name_of(2), holders.since(2)) == ("b", 15)


def test_a_rank_that_was_admitted_again_to_its_holder_is_not_the_next_ones() -> None:
    """It was removed, came back, and left: whoever takes it then is not the one of whom a checkpoint tells."""
    job = Job(1, 2, Async())
    job.holders.take(1, "a")
    for since in (9, 15):
        job.admit(1, since)
    job.holders.take(1, "b")
    again = Job.of(job.stored(), {})
    found = FoundCheckpoint(None, 0, (), JobState(1, 2, Async(), 0, 20, tuple([RankState(rank, None, 20, False) for rank in range(2)])), ())
    assert again.go_back(replace(found, admitted={1: 15})) == {1}
    assert again.holders.name_of(1) == "a"
    again.holders.take(1, "b")
    assert again.go_back(replace(found, admitted={1: 15})) == {1}, "the second time, too"
    again.holders.take(1, "b")
    assert again.go_back(replace(found, admitted={1: 21})) == set()
    assert again.holders.name_of(1) == "b"


def test_a_checkpoint_of_an_earlier_admission_tells_nothing_of_one_under_way() -> None:
    job = Job(1, 2, Async())
    job.holders.take(1, "a")
    for since in (9, 15):
        job.admit(1, since)
    job.holders.take(1, "b")
    found = FoundCheckpoint(None, 0, (), JobState(1, 2, Async(), 0, 12, tuple([RankState(rank, None, 12, False) for rank in range(2)])), ())
    assert job.go_back(replace(found, admitted={1: 9})) == {1}
    assert job.holders.name_of(1) == "a"


def test_it_is_stored_and_keeps_the_last_of_each_rank() -> None:
    taken = [(2, f"{number}", number) for number in range(HOLDERS_KEPT + 3)]
    holders = held((1, "other", 0), *taken)
    again = Holders(holders.stored())
    assert [(one.rank, one.name, one.since) for one in again.stored()] == [(1, "other", 0), *taken[3:]]
