"""What each rank finished: the newest fact, and those of earlier steps for as long as they are wanted."""

from ps_proto.requests import Finished
from ps_server.shard.facts import Facts


def facts(*clocks: int, rank: int = 0, since: int = 0) -> Facts:
    """Return the facts of a rank that finished these steps."""
    made = Facts()
    for clock in clocks:
        made.keep(rank, Finished(clock), since)
    return made


def test_the_newest_fact_is_known_without_its_step_and_each_by_its_step() -> None:
    known = facts(3, 4, 7)  # a late rank leaves steps out
    assert known.newest == {0: Finished(7)}
    assert [known.at(0, clock) for clock in (3, 4, 5, 7, 8)] == [Finished(3), Finished(4), None, Finished(7), None]
    assert known.at(1, 3) is None
    assert known.earlier_clocks == [3, 4]


def test_earlier_facts_are_forgotten_when_a_new_one_comes_or_when_asked_and_the_newest_never_is() -> None:
    known = facts(3, 4, 5)
    known.keep(1, Finished(3), since=9)
    known.keep(0, Finished(6), since=4)
    assert known.earlier_clocks == [4, 5]
    known.forget_before(6)
    assert known.earlier_clocks == []
    known.forget_before(10)
    assert known.newest == {0: Finished(6), 1: Finished(3)}
    known.clear()
    assert known.newest == {}
    assert known.at(0, 6) is None


def test_a_resume_state_goes_to_the_fact_of_its_step_and_nowhere_else() -> None:
    known = facts(3, 4)
    known.keep(1, Finished(4), since=0)
    known.add_resume(0, 3, b"three")
    known.add_resume(0, 4, b"four")
    known.add_resume(0, 5, b"not finished")
    known.add_resume(2, 4, b"of nobody")
    assert (known.at(0, 3), known.at(0, 4), known.at(0, 5)) == (Finished(3, resume=b"three"), Finished(4, resume=b"four"), None)
    assert known.newest == {0: Finished(4, resume=b"four"), 1: Finished(4)}
