"""The seconds that a server's turns take, with a clock that the test sets."""

import numpy as np
import pytest

from ps_proto.errors import NotOwner
from ps_proto.requests import Done, Fence, Finish, GetStats, Pull, Pulled, Push, Stats
from ps_server.edge.timed_core import TimedCore
from ps_server.events import Asked, Dropped, Effect, Event, Persist, Refuse, Reply, Tell, Work, Worked
from ps_server.tasks import AbandonCheckpoint, ReadStall, SavePart, Stall
from scripted_core import ScriptedCore

PULLED = Pulled((np.zeros((1, 2), np.float32),), 0)


class Timed:
    """A timed core whose turns take what the test says; `turn` begins one at a time."""

    def __init__(self) -> None:
        self.scripted = ScriptedCore()
        self.scripted.scripts[GetStats] = lambda asked: [Reply(asked.request, Stats({"step": 1.0}, {"user": {"rows": 2.0}}))]
        self.end_s = 0.0
        self.core = TimedCore(self.scripted, lambda: self.end_s, lambda: 7.0)

    def turn(self, event: Event, begin_s: float, end_s: float) -> list[Effect]:
        self.end_s = end_s
        return self.core.handle(event, begin_s)

    def stats(self) -> Stats:
        (reply,) = self.turn(Asked(99, GetStats(Fence(1))), 100.0, 100.0)
        assert isinstance(reply, Reply)
        assert isinstance(reply.body, Stats)
        return reply.body


def pull(rank: int) -> Pull:
    return Pull(Fence(1, rank, 1))


@pytest.fixture
def timed() -> Timed:
    return Timed()


def test_a_request_that_is_answered_at_once_takes_its_turn(timed: Timed) -> None:
    timed.scripted.reply(Pull, PULLED)
    timed.scripted.reply(Push, Done())
    assert timed.turn(Asked(1, pull(0)), 10.0, 10.5) == [Reply(1, PULLED)]
    timed.turn(Asked(2, pull(0)), 11.0, 11.25)
    timed.turn(Asked(3, Push(Fence(1, 1, 1), 1, ())), 12.0, 12.125)
    stats = timed.stats()
    assert stats.ranks == {
        0: {"pull_count": 2.0, "pull_turn_s": 0.75, "pull_parked_s": 0.0},
        1: {"push_count": 1.0, "push_turn_s": 0.125, "push_parked_s": 0.0},
    }
    assert stats.server == {"step": 1.0, "turns_s": 0.875, "cpu_s": 7.0, "checkpoint_stall_s": 0.0}  # its own numbers stay
    assert stats.tables == {"user": {"rows": 2.0}}


def test_what_is_parked_waits_until_the_turn_that_answers_it_begins(timed: Timed) -> None:
    timed.turn(Asked(1, pull(0)), 10.0, 10.5)  # no script: it is parked
    timed.scripted.scripts[Finish] = lambda asked: [Reply(asked.request, Done()), Reply(1, PULLED)]
    timed.turn(Asked(2, Finish(Fence(1, 1, 1))), 14.0, 14.25)
    ranks = timed.stats().ranks
    assert ranks[0] == {"pull_count": 1.0, "pull_turn_s": 0.75, "pull_parked_s": 3.5}  # 4.25 in all, as its asker saw it
    assert ranks[1] == {"finish_count": 1.0, "finish_turn_s": 0.25, "finish_parked_s": 0.0}
    assert timed.stats().server["turns_s"] == 0.75  # of the server, each turn once
    assert not timed.core._parked  # what was answered is kept no longer


def test_the_core_gets_its_ticks(timed: Timed) -> None:
    timed.scripted.wanted_s = 12.5
    assert timed.core.deadline_s() == 12.5


def test_what_is_refused_at_once_or_dropped_or_an_observers_counts_for_nobody(timed: Timed) -> None:
    timed.scripted.scripts[Push] = lambda asked: [Refuse(asked.request, NotOwner("server-0", 4))]
    timed.turn(Asked(1, Push(Fence(1, 5, 1), 1, ())), 10.0, 10.5)
    timed.turn(Asked(2, pull(-1)), 11.0, 11.5)
    timed.turn(Asked(3, pull(0)), 12.0, 12.5)
    timed.turn(Dropped(3), 13.0, 13.0)
    others: list[Effect] = [Persist({}), Tell(1, "server-1", "b:1", Done()), Work(2, "save")]
    timed.scripted.scripts[Finish] = lambda asked: [*others, Reply(asked.request, Done()), Reply(3, PULLED)]
    assert len(timed.turn(Asked(4, Finish(Fence(1, -1))), 14.0, 14.0)) == 5
    assert timed.stats().ranks == {0: {"pull_count": 1.0, "pull_turn_s": 0.5, "pull_parked_s": 0.0}}


def test_the_stall_of_a_checkpoint_is_the_longest_turn_from_its_instant_to_its_end(timed: Timed) -> None:
    timed.scripted.reply(Pull, PULLED)
    timed.scripted.reply(ReadStall, Stall())
    tasks = iter([SavePart("/root", 4, 0, "server-0"), SavePart("/root", 5, 0, "server-0"), AbandonCheckpoint("/root", 4)])
    timed.scripted.scripts[Push] = lambda asked: [Work(asked.request, next(tasks)), Reply(asked.request, Done())]

    def stall_s() -> float:
        (reply,) = timed.turn(Asked(98, ReadStall(4)), 0.0, 0.0)
        assert isinstance(reply, Reply)
        assert isinstance(reply.body, Stall)
        assert timed.stats().server["checkpoint_stall_s"] == reply.body.longest_turn_s
        return reply.body.longest_turn_s

    timed.turn(Asked(1, pull(0)), 10.0, 19.0)
    assert stall_s() == 0.0  # before the first
    timed.turn(Asked(2, Push(Fence(1, 0, 1), 1, ())), 20.0, 20.5)  # takes it
    assert stall_s() == 0.5
    timed.turn(Asked(3, pull(0)), 21.0, 21.25)
    timed.turn(Asked(4, pull(0)), 22.0, 22.75)
    timed.turn(Worked(2, None), 23.0, 23.125)
    timed.turn(Asked(5, pull(0)), 24.0, 29.0)
    assert stall_s() == 0.75  # of the last one, until there is a new one
    timed.turn(Asked(6, Push(Fence(1, 0, 1), 2, ())), 30.0, 30.25)
    assert stall_s() == 0.25
    timed.turn(Worked(6, None), 31.0, 32.0)
    assert stall_s() == 1.0  # the last turn counts too: it closes what was open
    timed.turn(Asked(7, Push(Fence(1, 0, 1), 3, ())), 33.0, 39.0)
    assert stall_s() == 1.0  # another task is no save
