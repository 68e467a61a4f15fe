"""A rank that comes to a job that runs, or comes back: from which step on it counts, on every server alike (R6, R8)."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from conversation import Conversation, map_of, rows
from ps_proto.errors import InvalidRequest, Recovering, StaleIncarnation, StaleOrder, StaleTimeline
from ps_proto.orders import AdmitRank, FenceRank, InstallTable, RankFenced, ResolveRank
from ps_proto.requests import NEVER, Decision, Fence, Finish, Finished, Push, StepDecided, StepOrder
from ps_proto.values import Async, BoundedStaleness, Mode, Sync
from rollbacks import job_of, order, restore
from saved_parts import begin, open_part, read_part, save, work_of

NEXT = StepOrder(1, "admit", 2, 1)  # the next rank of a job of two


def fenced(talk: Conversation, rank: int, incarnation: int) -> RankFenced:
    answer = talk.get(FenceRank(1, rank, incarnation))
    assert isinstance(answer, RankFenced)
    return answer


def finish(talk: Conversation, rank: int, clock: int, *orders: StepOrder, incarnation: int = 0, leave: bool = False) -> None:
    talk.get(Finish(talk.fence(rank, clock + 1, incarnation), Finished(clock, orders=orders), leave))


def push(talk: Conversation, rank: int, clock: int, value: float, incarnation: int = 0) -> None:
    talk.get(Push(talk.fence(rank, clock, incarnation), 1, (rows("user", {7: value}),)))


# --- with synchronous tables: an order in a finished step ------------------------------------------------------------------------


def test_a_rank_counts_from_the_step_after_the_one_that_brought_the_order() -> None:
    talk = Conversation(Sync())
    fenced(talk, 2, 1)
    finish(talk, 0, 0, NEXT)
    assert fenced(talk, 2, 1) == RankFenced(None, NEVER, 0, finished=NEVER, since=NEVER), "nothing holds before the fold"
    with pytest.raises(InvalidRequest, match="rank is 2"):
        push(talk, 2, 1, 3.0, incarnation=1)
    push(talk, 1, 0, 4.0)
    push(talk, 0, 1, 3.0)
    finish(talk, 1, 0)
    assert talk.read(7) == [-2.0], "step 0 is the mean of two"
    assert fenced(talk, 2, 1) == RankFenced(None, NEVER, 0, finished=0, since=1)
    push(talk, 2, 1, 3.0, incarnation=1)
    finish(talk, 0, 1)
    finish(talk, 1, 1)
    assert talk.step() == 1, "it is waited for"
    finish(talk, 2, 1, incarnation=1)
    assert (talk.read(7), talk.step()) == ([-4.0], 2), "step 1 is the mean of three"
    talk.shard.check_invariants()


def test_a_rank_that_was_admitted_writes_to_no_step_before() -> None:
    talk = Conversation(Async())
    fenced(talk, 2, 1)
    talk.get(AdmitRank(1, 0, 2, 1, 3))
    with pytest.raises(InvalidRequest, match="clock is 2, but must be at least 3, with which rank 2 begins"):
        push(talk, 2, 2, 1.0, incarnation=1)
    push(talk, 2, 3, 1.0, incarnation=1)


def test_an_order_that_rides_again_is_followed_once() -> None:
    talk = Conversation(Sync(), world_size=1)
    admit = StepOrder(5, "admit", 1, 1)
    finish(talk, 0, 0, admit)
    assert talk.shard.clocks.roster(1) == [0, 1]
    fenced(talk, 1, 1)
    finish(talk, 1, 1, incarnation=1, leave=True)
    finish(talk, 0, 1, admit)  # the coordinator has not heard that all followed it
    assert talk.shard.clocks.roster(2) == [0]
    finish(talk, 0, 2, StepOrder(6, "admit", 1, 2))
    assert talk.shard.clocks.roster(3) == [0, 1]
    assert fenced(talk, 1, 2).since == 3


def test_an_order_that_one_server_heard_reaches_the_others_with_the_fact() -> None:
    """Its carrier finished the step at one server, and died."""
    talks = [Conversation(Sync(), server=name, shard_map=map_of(1, "server-0", "server-1")) for name in ("server-0", "server-1")]
    finish(talks[0], 0, 0, NEXT)
    facts = [fenced(talk, 0, 1).fact for talk in talks]
    assert facts == [Finished(0, orders=(NEXT,)), None]
    for talk in talks:
        talk.get(ResolveRank(1, 0, 1, facts[0], 1))
        finish(talk, 1, 0)
        assert (talk.step(), talk.shard.clocks.roster(1)) == (1, [0, 1, 2])


def test_orders_of_several_steps_that_are_folded_in_one_turn_hold_from_the_step_after_each() -> None:
    talk = Conversation(Sync())
    finish(talk, 0, 0, NEXT)
    finish(talk, 0, 1, StepOrder(2, "admit", 3, 1))
    talk.get(FenceRank(1, 1, 1))
    talk.get(ResolveRank(1, 1, 1, Finished(2), 3))
    assert talk.step() == 1, "rank 2 is waited for"
    talk.get(FenceRank(1, 2, 1))
    finish(talk, 2, 1, incarnation=1)
    assert talk.step() == 2
    assert [talk.shard.clocks.first_of(rank) for rank in (2, 3)] == [1, 2]


def test_a_rank_that_left_ahead_comes_back_after_what_it_has_done() -> None:
    talk = Conversation(Sync())
    for step in (0, 1):
        push(talk, 1, step, 2.0)
        finish(talk, 1, step, leave=step == 1)
    fenced(talk, 1, 1)
    push(talk, 0, 0, 2.0)
    finish(talk, 0, 0, StepOrder(1, "admit", 1, 1))
    assert fenced(talk, 1, 1).since == 2
    push(talk, 0, 1, 2.0)
    finish(talk, 0, 1)
    assert talk.read(7) == [-4.0], "its gradient of step 1 counts"
    finish(talk, 0, 2)
    assert talk.step() == 2, "it is waited for"


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (StepOrder(1, "move", 0, 0), "kind of an order is 'move'"),
        (StepOrder(1, "admit", 4, 0), "rank of an order is 4, but must be from 0 to 2"),
    ],
)
def test_an_order_that_cannot_be_followed_ends_no_step(given: StepOrder, match: str) -> None:
    talk = Conversation(Sync())
    with pytest.raises(InvalidRequest, match=match):
        finish(talk, 0, 0, given)
    assert talk.shard.clocks.finished[0] == NEVER


# --- with backup workers: an order in a decision -----------------------------------------------------------------------------------

PAIR = map_of(1, "server-0", "server-1")  # server-0 decides
THIRD = replace(NEXT, rank=3)  # the next rank of a job of three


def of_three(server: str = "server-0") -> Conversation:
    return Conversation(Sync(1), 3, server=server, shard_map=PAIR)


def decided(step: int, *orders: StepOrder, ranks: tuple[int, ...] = (0, 1), count: int = 2) -> StepDecided:
    return StepDecided(Fence(1), 1, Decision(step, ranks, count, (), orders))


def test_the_one_that_decides_puts_orders_into_its_next_decision_and_one_more_rank_is_enough_from_then_on() -> None:
    talk = of_three()
    finish(talk, 0, 0, THIRD)
    assert (talk.told, talk.shard.clocks.world_size) == ([], 3)
    finish(talk, 1, 0)
    assert [tell.body for tell in talk.told] == [decided(0, THIRD)]
    assert (fenced(talk, 3, 1).since, talk.shard.clocks.roster(1)) == (1, [0, 1, 2, 3])
    for rank in (0, 1):
        finish(talk, rank, 1)
    assert talk.step() == 1, "of four ranks three are waited for"
    finish(talk, 3, 1, incarnation=1)
    assert [tell.body for tell in talk.told][-1] == decided(1, ranks=(0, 1, 3), count=3)
    talk.shard.check_invariants()


def test_an_order_may_come_with_a_step_that_is_over_and_holds_from_the_next_one_that_is_decided() -> None:
    """Whoever brings it is late."""
    talk = of_three()
    for step in range(3):
        for rank in (0, 1):
            finish(talk, rank, step)
    finish(talk, 2, 0, THIRD)
    assert (talk.step(), talk.shard.clocks.world_size) == (3, 3)
    for rank in (0, 1):
        finish(talk, rank, 3, THIRD)
    assert (talk.step(), fenced(talk, 3, 1).since) == (4, 4)
    finish(talk, 3, 4, incarnation=1, leave=True)
    finish(talk, 2, 1, THIRD)
    finish(talk, 0, 4)
    finish(talk, 1, 4)
    assert (talk.step(), talk.shard.clocks.roster(5)) == (5, [0, 1, 2]), "it has been followed"


def test_two_orders_go_into_one_decision_in_their_order() -> None:
    talk = of_three()
    fourth = StepOrder(2, "admit", 4, 1)
    finish(talk, 0, 0, THIRD, fourth)
    finish(talk, 1, 0, THIRD)
    assert [tell.body for tell in talk.told] == [decided(0, THIRD, fourth)]
    assert talk.shard.clocks.roster(1) == [0, 1, 2, 3, 4]


def test_a_server_that_does_not_decide_follows_what_it_is_told_and_nothing_else() -> None:
    talk = of_three("server-1")
    finish(talk, 0, 0, THIRD)
    finish(talk, 1, 0, replace(THIRD, rank=77))  # it may not know yet of the ranks before
    assert fenced(talk, 0, 1).fact == Finished(0), "what nobody may follow is no part of the fact"
    talk.get(decided(0))
    assert (talk.step(), talk.shard.clocks.world_size) == (1, 3)
    talk.get(decided(1, THIRD))
    assert (talk.step(), fenced(talk, 3, 1).since) == (2, 2)
    talk.get(decided(1, THIRD))
    assert talk.shard.clocks.world_size == 4
    talk.shard.check_invariants()


def test_a_decision_of_ranks_that_one_before_it_admits_is_for_later() -> None:
    talk = of_three("server-1")
    later = decided(1, StepOrder(2, "admit", 4, 1), ranks=(0, 1, 3), count=3)
    with pytest.raises(Recovering, match="it is at step 0 and knows of 3 ranks, of which step 1 is not"):
        talk.get(later)
    talk.get(decided(0, THIRD))
    talk.get(later)
    assert (talk.step(), talk.shard.clocks.roster(2)) == (2, [0, 1, 2, 3, 4])


def test_a_decision_that_comes_before_the_one_before_it_waits_with_its_orders() -> None:
    talk = of_three("server-1")
    talk.get(decided(1, THIRD))
    assert talk.shard.clocks.world_size == 3
    talk.get(decided(0))
    assert (talk.step(), fenced(talk, 3, 1).since) == (2, 2)


def test_an_order_that_cannot_be_followed_is_refused_by_who_decides_and_by_who_is_told() -> None:
    talk = of_three()
    with pytest.raises(InvalidRequest, match="rank of an order is 4, but must be from 0 to 3"):
        finish(talk, 0, 0, replace(THIRD, rank=4))
    told = of_three("server-1")
    with pytest.raises(InvalidRequest, match="rank of an order is 4, but must be from 0 to 3"):
        told.get(decided(0, replace(THIRD, rank=4)))
    with pytest.raises(InvalidRequest, match="kind of an order is 'move'"):
        told.get(decided(0, replace(THIRD, kind="move")))
    assert (talk.step(), told.step()) == (0, 0)


def test_a_rank_that_leaves_before_it_begins_is_in_no_step() -> None:
    talk = of_three()
    finish(talk, 0, 0, THIRD)
    finish(talk, 1, 0)
    fenced(talk, 3, 1)
    talk.get(Finish(talk.fence(3, 1, 1), None, leave=True))
    for rank in (0, 1):
        finish(talk, rank, 1)
    assert (talk.step(), talk.shard.clocks.roster(1)) == (2, [0, 1, 2])


# --- checkpoints -----------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_the_step_with_which_a_rank_begins_has_it() -> None:
    talk = Conversation(Sync())
    begin(talk, 1, 1)
    finish(talk, 0, 0, NEXT)
    finish(talk, 1, 0)
    head = open_part(talk, 1)
    assert (head.step, head.clocks, head.left) == (1, {0: 0, 1: 0, 2: 0}, {})
    part = read_part(talk, work_of(talk))
    restore(talk, [part], order(1, job_of([part], 3, Sync())))
    assert talk.shard.clocks.roster(1) == [0, 1, 2]
    with pytest.raises(InvalidRequest, match="rank is 3"):
        finish(talk, 3, 1)
    for rank in (0, 1):
        finish(talk, rank, 1)
    assert talk.step() == 1
    finish(talk, 2, 1)
    assert talk.step() == 2


def test_after_a_rollback_the_same_order_holds_again() -> None:
    talk = Conversation(Sync(), world_size=1)
    part = save(talk, 1)
    admit = StepOrder(1, "admit", 1, 1)
    finish(talk, 0, 0, admit)
    restore(talk, [part], order(1, job_of([part], 1, Sync())))
    assert talk.shard.clocks.roster(0) == [0]
    finish(talk, 0, 0, admit)
    assert talk.shard.clocks.roster(1) == [0, 1]


# --- without: an order of its own ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Async(), BoundedStaleness(1)], ids=str)
def test_a_rank_is_admitted_at_a_step_beyond_every_other(mode: Mode) -> None:
    talk = Conversation(mode)
    for clock in (0, 1, 2):
        finish(talk, 0, clock)
    finish(talk, 1, 0)
    first = fenced(talk, 2, 1).clock_max + 1
    talk.get(AdmitRank(1, 0, 2, 1, first))
    assert fenced(talk, 2, 1) == RankFenced(None, NEVER, 2, finished=2, since=3)
    push(talk, 2, 3, 1.0, incarnation=1)
    assert talk.shard.clocks.finished == {0: 2, 1: 0, 2: 2}
    assert talk.step() == 1, "nobody waits for it at steps before its first"
    talk.shard.check_invariants()


def test_a_rank_is_waited_for_from_its_first_step_on() -> None:
    talk = Conversation(BoundedStaleness(0), world_size=1)
    finish(talk, 0, 0)
    fenced(talk, 1, 1)
    talk.get(AdmitRank(1, 0, 1, 1, 1))
    finish(talk, 0, 1)
    waiting = talk.pull(0, 2, 7)
    assert waiting.is_waiting
    finish(talk, 1, 1, incarnation=1)
    assert waiting.rows == [0.0]


def test_an_admission_that_comes_late_does_not_bring_back_who_has_left_since() -> None:
    talk = Conversation(Async())
    fenced(talk, 2, 1)
    admit = AdmitRank(1, 0, 2, 1, 0)
    talk.get(admit)
    talk.get(admit)
    finish(talk, 2, 0, incarnation=1, leave=True)
    talk.get(admit)
    assert (talk.shard.clocks.present, talk.shard.clocks.first_of(2)) == ([0, 1], NEVER)
    fenced(talk, 2, 2)
    with pytest.raises(StaleIncarnation):
        talk.get(admit)
    talk.get(AdmitRank(1, 0, 2, 2, 4))
    assert (talk.shard.clocks.present, talk.shard.clocks.first_of(2)) == ([0, 1, 2], 4)


def test_a_job_that_all_have_left_goes_on_with_the_one_that_comes() -> None:
    talk = Conversation(Async(), world_size=1)
    finish(talk, 0, 0, leave=True)
    talk.get(AdmitRank(1, 0, 0, 1, 4))
    assert (talk.step(), talk.shard.clocks.present) == (4, [0])
    talk.shard.check_invariants()


@pytest.mark.parametrize(
    ("talk", "rank", "match"),
    [
        (lambda: Conversation(Sync()), 2, "the admission is of rank 2 by an order of its own"),
        (lambda: Conversation(None), 0, "the admission is of rank 0 before there is a job"),
        (lambda: Conversation(Async()), 3, "rank is 3, but must be from 0 to 2, which is the next one"),
        (lambda: Conversation(Async()), -1, "rank is -1"),
    ],
)
def test_an_admission_that_cannot_be_is_refused(talk: Callable[[], Conversation], rank: int, match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        talk().get(AdmitRank(1, 0, rank, 1, 5))


def test_an_admission_of_another_coordinator_cluster_or_timeline_is_refused() -> None:
    talk = Conversation(Async())
    part = save(talk, 1)
    talk.get(InstallTable(2, talk.shard.tables["user"].spec, cluster=7))
    for order_given in (AdmitRank(1, 7, 2, 1, 5), AdmitRank(2, 8, 2, 1, 5)):
        with pytest.raises(StaleOrder):
            talk.get(order_given)
    assert part.head.clocks == {0: NEVER, 1: NEVER}
    other = Conversation(Async())
    restore(other, [part], order(1, job_of([part], 2, Async())))
    with pytest.raises(StaleTimeline):
        other.get(AdmitRank(1, 0, 2, 1, 5))
    other.get(AdmitRank(1, 0, 2, 1, 5, timeline=1))
    assert other.shard.clocks.present == [0, 1, 2]


# --- removal -----------------------------------------------------------------------------------------------------------------------


def test_a_rank_is_removed_after_the_same_step_everywhere_also_where_that_is_known_without_a_fact() -> None:
    """A start beyond what it finished had reached one server when the coordinator gave up."""
    talks = [Conversation(Sync(), server=name, shard_map=map_of(1, "server-0", "server-1")) for name in ("server-0", "server-1")]
    for talk in talks:
        talk.get(FenceRank(1, 1, 1))
    talks[0].get(ResolveRank(1, 1, 1, None, 3))
    for talk in talks:
        talk.get(FenceRank(1, 1, 2))
        talk.get(ResolveRank(1, 1, 2, None, 3, has_left=True))
        assert talk.shard.clocks.left_after == {1: 2}
        assert [talk.shard.clocks.roster(step) for step in (2, 3)] == [[0, 1], [0]]


def test_a_rank_that_was_removed_is_not_waited_for() -> None:
    talk = Conversation(Sync())
    push(talk, 0, 0, 2.0)
    push(talk, 1, 0, 2.0)
    finish(talk, 0, 0)
    talk.get(FenceRank(1, 1, 1))
    talk.get(ResolveRank(1, 1, 1, None, 0, has_left=True))
    assert (talk.read(7), talk.step()) == ([-2.0], 1), "what it had pushed is dropped, and the mean is over the others"
    with pytest.raises(StaleIncarnation):
        push(talk, 1, 0, 2.0)
    assert fenced(talk, 1, 1) == RankFenced(None, NEVER, 0, has_left=True, finished=NEVER, since=NEVER)
