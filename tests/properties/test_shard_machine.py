"""A shard against a model of dicts, under any sequence of pulls, pushes, finishes, leaves and repetitions by three ranks, in each mode.

Gradients are multiples of 6 and SGD has lr 1, so that every mean over one, two or three ranks is a whole number, and exact.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from conversation import Conversation, Question, rows
from ps_proto.errors import StepPassed
from ps_proto.requests import OBSERVER, Finish, Finished, Push
from ps_proto.values import Async, BoundedStaleness, Mode, Sync

RANKS = range(3)
IDS = [0, 1, 2**63, 2**64 - 1]
Values = dict[int, int]
values = st.dictionaries(st.sampled_from(IDS), st.integers(-5, 5).map(lambda number: 6 * number), max_size=len(IDS))


@dataclass
class Model:
    """What the rows are, told by the rules: R5, R6, R10."""

    mode: Mode
    clock: dict[int, int] = field(default_factory=lambda: dict.fromkeys(RANKS, 0))  # rank -> steps finished
    left: dict[int, int] = field(default_factory=dict)  # rank -> how many steps it took part in
    staged: list[tuple[int, int, Values]] = field(default_factory=list)  # (step, rank, gradient)
    rows: Values = field(default_factory=lambda: dict.fromkeys(IDS, 0))
    step: int = 0

    def roster(self) -> list[int]:
        return [rank for rank in RANKS if self.step < self.left.get(rank, self.step + 1)]

    def push(self, rank: int, gradient: Values) -> None:
        if isinstance(self.mode, Sync):
            self.staged.append((self.clock[rank], rank, gradient))
        else:
            self._apply(gradient, 1)

    def fold(self) -> None:
        while self.roster() and all(self.clock[rank] > self.step for rank in self.roster()):
            for step, rank, gradient in self.staged:
                if step == self.step and rank in self.roster():
                    self._apply(gradient, len(self.roster()))
            self.step += 1

    def may_read(self, clock: int) -> bool:
        if isinstance(self.mode, Sync):
            return clock == self.step
        if isinstance(self.mode, BoundedStaleness):
            return all(self.clock[rank] >= clock - self.mode.bound for rank in RANKS if rank not in self.left)
        return True

    def _apply(self, gradient: Values, ranks_count: int) -> None:
        for id, number in gradient.items():
            assert number % ranks_count == 0
            self.rows[id] -= number // ranks_count


class ShardMachine(RuleBasedStateMachine):
    mode: Mode

    @initialize()
    def start(self) -> None:
        self.talk = Conversation(self.mode, world_size=len(RANKS))
        self.model = Model(self.mode)
        self.seq = dict.fromkeys(RANKS, 0)
        self.sent: list[Push | Finish] = []
        self.pulls: dict[int, Question] = {}  # rank -> the pull it waits for

    def free(self) -> list[int]:
        """The ranks that may act: a worker does one thing at a time."""
        return [rank for rank in RANKS if rank not in self.model.left and rank not in self.pulls]

    @precondition(lambda self: self.free())
    @rule(data=st.data(), gradient=values)
    def push(self, data: st.DataObject, gradient: Values) -> None:
        rank = data.draw(st.sampled_from(self.free()))
        self.seq[rank] += 1
        part = rows("user", {id: float(number) for id, number in gradient.items()})
        push = Push(self.talk.fence(rank, self.model.clock[rank]), self.seq[rank], (part,))
        self.talk.get(push)
        self.sent.append(push)
        self.model.push(rank, gradient)

    @precondition(lambda self: self.free())
    @rule(data=st.data(), leaves=st.sampled_from([False, False, False, True]))
    def finish(self, data: st.DataObject, leaves: bool) -> None:
        rank = data.draw(st.sampled_from(self.free()))
        clock = self.model.clock[rank]
        finish = Finish(self.talk.fence(rank, clock + 1), Finished(clock), leaves)
        self.talk.get(finish)
        self.sent.append(finish)
        self.seq[rank], self.model.clock[rank] = 0, clock + 1
        if leaves:
            self.model.left[rank] = clock + 1
        self.model.fold()
        self.settle()

    @precondition(lambda self: self.free())
    @rule(data=st.data())
    def pull(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(self.free()))
        self.pulls[rank] = self.talk.pull(rank, self.model.clock[rank], *IDS, wait_s=1e9)
        self.settle()

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """The network delivers something again; what it says is known, so nothing changes."""
        sent = data.draw(st.sampled_from(self.sent))
        outcome = self.talk.ask(sent).outcome
        is_late = isinstance(sent, Push) and isinstance(self.mode, Sync) and sent.fence.clock < self.model.step
        assert isinstance(outcome, StepPassed) == is_late
        self.settle()

    def settle(self) -> None:
        """Check that every pull that may read now has been answered in this very turn, and no other."""
        for rank, question in list(self.pulls.items()):
            may_read = self.model.may_read(self.model.clock[rank])
            assert question.is_waiting != may_read, f"rank {rank} at clock {self.model.clock[rank]}, the shard at {self.model.step}"
            if may_read:
                assert question.rows == [float(self.model.rows[id]) for id in IDS]
                del self.pulls[rank]

    @invariant()
    def an_observer_reads_the_model(self) -> None:
        assert self.talk.pull(OBSERVER, 0, *IDS).rows == [float(self.model.rows[id]) for id in IDS]
        assert self.talk.step() == self.model.step
        self.talk.shard.check_invariants()


@pytest.mark.parametrize("mode", [Sync(), Async(), BoundedStaleness(0), BoundedStaleness(2)], ids=str)
def test_a_shard_is_what_its_model_says(mode: Mode) -> None:
    machine = type("Machine", (ShardMachine,), {"mode": mode})
    run_state_machine_as_test(machine, settings=settings(max_examples=50, stateful_step_count=40))
