"""Barriers of ranks that die anywhere and go on behind their last step, with the coordinator's and the workers' own counting."""

import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest

from ps_server.coordinator.generations import Generations
from ps_server.coordinator.stand import Stand
from ps_worker.protocol.barrier_count import BarrierCount, BarriersAsked

Label = tuple[int, str, int]


@dataclass
class Rank:
    """One that makes a step in each turn, and asks for barriers `ahead` of it and `behind` it.

    place   the turn, and how many of its barriers are passed.     captured   what its successor goes on with, and in which turn.
    """

    rank: int
    ahead: list[int]
    behind: list[int]
    place: tuple[int, int] = (0, 0)
    count: BarrierCount = field(default_factory=lambda: BarrierCount(nullcontext()))
    captured: tuple[int, BarriersAsked] = (0, BarriersAsked())
    number: int | None = None  # of the barrier that it asks for

    @property
    def is_done(self) -> bool:
        return self.place[0] == len(self.ahead)

    @property
    def label(self) -> Label:
        """Which barrier of the script is next, after the steps that come before it."""
        while True:
            turn, passed = self.place
            if passed < self.ahead[turn]:
                return turn, "ahead", passed
            if self.captured[0] == turn:
                self.captured = (turn + 1, self.count.behind(turn + 1))
            if passed < self.ahead[turn] + self.behind[turn]:
                return turn, "behind", passed
            self.place = (turn + 1, 0)
            self.captured = (turn + 1, self.count.asked)
            if self.is_done:
                return turn + 1, "end", 0

    def stand(self, barriers: Generations) -> None:
        """Come to the next barrier, or ask again."""
        turn, where, _ = self.label
        if self.is_done:
            return
        if self.number is None:
            self.number = self.count.take()
        generation = self.count.generation(self.number)
        barriers.stand(self.rank, Stand(generation, turn, turn + 1 if where == "behind" else 0, self.count.skipped))

    def die(self, barriers: Generations) -> None:
        """Be started again."""
        turn, asked = self.captured
        self.place, self.number, self.count = (turn, 0), None, BarrierCount(nullcontext())
        self.count.go_on(asked)
        barriers.forget(self.rank)
        if asked.passed or asked.skipped:
            barriers.stand(self.rank, Stand(self.count.generation(asked.passed), None, skipped=self.count.skipped))


@pytest.mark.parametrize("seed", range(300))
def test_ranks_meet_at_the_same_barriers_whoever_dies(seed: int) -> None:
    rng = random.Random(seed)
    turns, size = rng.randrange(1, 8), rng.randrange(2, 5)
    ahead, behind = ([rng.choice([0, 0, 1, 1, 2, 3]) for _ in range(turns)] for _ in range(2))
    ranks = [Rank(rank, ahead, behind) for rank in range(size)]
    barriers, asked, passed, deaths = Generations(), set[int](), dict[Label, int](), 0
    for _ in range(10_000):
        inside = [rank for rank in ranks if not rank.is_done]
        if not inside:
            break
        rank = rng.choice(inside)
        chance = rng.random()
        if chance < 0.05:
            barriers = Generations(barriers.next, barriers.minima(), barriers.earlier(), barriers.stands())  # who waits asks again
            asked.clear()
        elif chance < 0.2 and deaths < 20:
            deaths += 1
            rank.die(barriers)
            asked.discard(rank.rank)
        else:
            rank.stand(barriers)
            asked.add(rank.rank)
        for each in inside:
            if each.number is None or each.is_done or each.rank not in asked:
                continue
            own = each.count.generation(each.number)
            number = barriers.number(each.rank, own)
            assert not barriers.is_forgotten(number)
            agreed = barriers.opened(number)
            if agreed is None:
                agreed = barriers.try_open(number, [one.rank for one in ranks if not one.is_done])
            if agreed is not None:
                assert passed.setdefault(each.label, number) == number
                assert agreed == each.place[0]
                each.count.was_passed(each.number, number)
                each.number, each.place = None, (each.place[0], each.place[1] + 1)
                if each.label[1] == "end":
                    barriers.forget(each.rank)  # it leaves
    assert all([rank.is_done for rank in ranks])
    assert len(set(passed.values())) == len(passed)


class Meanwhile:
    """Lets another thread have the count first, once."""

    def __init__(self) -> None:
        self.other: Callable[[], object] | None = None

    def __enter__(self) -> None:
        other, self.other = self.other, None
        if other is not None:
            other()

    def __exit__(self, *error: object) -> None:
        pass


@pytest.mark.parametrize("is_asked_first", [False, True])
def test_one_that_is_asked_for_while_another_is_passed_has_a_number_of_its_own(is_asked_first: bool) -> None:
    """As a barrier of the loop's body is, while the question whether all have a next batch is answered."""
    meanwhile = Meanwhile()
    count = BarrierCount(meanwhile)
    count.go_on(BarriersAsked(5, 5, 0, ((5, 9),)))
    first = count.take()
    pair: list[Callable[[], object]] = [count.take, lambda: count.was_passed(first, first + 2)]
    meanwhile.other, last = pair if is_asked_first else pair[::-1]
    last()
    assert count.asked == BarriersAsked(7, 6, 2, ())
