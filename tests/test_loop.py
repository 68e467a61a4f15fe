import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from ps_proto.errors import InternalError, NotOwner, Recovering, StaleOrder, Unreachable
from ps_proto.orders import FenceRank, InstallMap, RankFenced
from ps_proto.requests import Done, Fence, GetStats
from ps_server.edge.loop import Ask, CoreLoop
from ps_server.events import Answered, Asked, Body, Dropped, Effect, Event, Note, Persist, Refuse, Reply, Tell, Ticked, Work, Worked
from scripted_core import ScriptedCore
from sharding.wire_format import WireRows

ASK = GetStats(Fence(1))


class Time:
    """A clock that a test sets, in seconds."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def nobody(server: str, address: str, body: Body) -> Body:
    raise AssertionError(f"{server} was told {body}")


async def turns(count: int = 5) -> None:
    """Let the event loop turn, so that whatever can happen has."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_reply_and_a_refusal_reach_whoever_asked() -> None:
    core = ScriptedCore()
    loop = CoreLoop(core, nobody)
    core.reply(GetStats, Done(3))
    assert await loop.submit(ASK) == Done(3)
    refusal = NotOwner("server-0", 4)
    core.scripts[GetStats] = lambda asked: [Refuse(asked.request, refusal)]
    with pytest.raises(NotOwner) as caught:
        await loop.submit(ASK)
    assert caught.value is refusal


async def test_what_is_to_be_prepared_comes_before_the_core_and_holds_nobody_else_up() -> None:
    core, prepared = ScriptedCore(), asyncio.Event()

    async def prepare(body: Body) -> None:
        if isinstance(body, FenceRank):
            await prepared.wait()
            if body.rank == 9:
                raise NotOwner("server-0", 4)

    loop = CoreLoop(core, nobody, prepare=prepare)
    core.reply(GetStats, Done(1))
    core.reply(FenceRank, Done(2))
    slow = [asyncio.create_task(loop.submit(FenceRank(1, rank, 1))) for rank in (0, 9)]
    await turns()
    assert await loop.submit(ASK) == Done(1)
    assert [asked.body for asked in core.asked()] == [ASK]
    prepared.set()
    assert await slow[0] == Done(2)
    with pytest.raises(NotOwner):  # what was raised is the end of the request: the core never hears of it
        await slow[1]
    assert [asked.body for asked in core.asked()] == [ASK, FenceRank(1, 0, 1)]


async def test_a_loop_that_is_closed_meanwhile_refuses_what_was_prepared() -> None:
    core, prepared = ScriptedCore(), asyncio.Event()

    async def prepare(body: Body) -> None:
        await prepared.wait()

    loop = CoreLoop(core, nobody, prepare=prepare)
    slow = asyncio.create_task(loop.submit(ASK))
    await turns()
    await loop.close()
    prepared.set()
    with pytest.raises(Recovering):
        await slow
    assert core.events == []


async def test_a_parked_request_is_answered_by_a_later_one() -> None:
    core = ScriptedCore()
    loop = CoreLoop(core, nobody)
    waiting = asyncio.create_task(loop.submit(ASK))
    await turns()
    assert not waiting.done()
    (parked,) = core.asked()
    core.scripts[InstallMap] = lambda asked: [Reply(parked.request, Done(1)), Reply(asked.request, Done(2))]
    assert await loop.submit(InstallMap(None)) == Done(2)  # type: ignore[arg-type]
    assert await waiting == Done(1)


async def test_the_core_hears_that_nobody_waits_any_more() -> None:
    core = ScriptedCore()
    loop = CoreLoop(core, nobody)
    waiting = asyncio.create_task(loop.submit(ASK))
    await turns()
    waiting.cancel()
    await turns()
    (parked,) = core.asked()
    assert core.events[1:] == [Dropped(parked.request)]
    core.scripts[InstallMap] = lambda asked: [Reply(parked.request, Done(1)), Reply(asked.request, Done(2))]
    assert await loop.submit(InstallMap(None)) == Done(2)  # type: ignore[arg-type]  # the late answer harms nobody


async def test_who_is_answered_and_then_cancelled_is_not_dropped() -> None:
    core = ScriptedCore()
    loop = CoreLoop(core, nobody)
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    waiting = asyncio.create_task(loop.submit(ASK))
    await turns()
    (parked,) = core.asked()
    core.scripts[InstallMap] = lambda asked: [Refuse(parked.request, NotOwner("server-0", 1)), Reply(asked.request, Done())]
    await loop.submit(InstallMap(None))  # type: ignore[arg-type]
    waiting.cancel()
    await turns()
    assert waiting.cancelled()
    assert not [event for event in core.events if isinstance(event, Dropped)]
    del waiting
    gc.collect()
    assert complaints == []  # such as "Future exception was never retrieved"


async def test_who_is_cancelled_and_then_answered_harms_nobody() -> None:
    core = ScriptedCore()
    loop = CoreLoop(core, nobody)
    waiting = asyncio.create_task(loop.submit(ASK))
    await turns()
    (parked,) = core.asked()
    core.scripts[InstallMap] = lambda asked: [Reply(parked.request, Done(1)), Reply(asked.request, Done(2))]
    waiting.cancel()
    assert await loop.submit(InstallMap(None)) == Done(2)  # type: ignore[arg-type]  # in the same turn of the event loop
    await turns()
    assert waiting.cancelled()


async def test_a_bug_fails_its_request_is_logged_and_the_loop_lives_on() -> None:
    core = ScriptedCore()
    loop = CoreLoop(core, nobody, name="server-0")

    def bug(asked: Asked) -> list[Effect]:
        raise ZeroDivisionError("division by zero")

    core.scripts[GetStats] = bug
    with capture_logs() as logs, pytest.raises(InternalError) as caught:
        await loop.submit(ASK)
    assert caught.value.peer == "server-0"
    assert caught.value.summary == "ZeroDivisionError: division by zero"
    assert logs[0]["incident"] == caught.value.incident
    assert isinstance(logs[0]["exc_info"], ZeroDivisionError)
    core.reply(GetStats, Done(1))
    assert await loop.submit(ASK) == Done(1)


async def test_a_tick_comes_when_the_core_wants_one_and_not_before() -> None:
    core, time = ScriptedCore(), Time()
    loop = CoreLoop(core, nobody, now_s=time)
    ticked = asyncio.Event()

    def on_tick(event: Event, now_s: float) -> list[Effect]:
        assert now_s == 103.0
        core.wanted_s = None
        ticked.set()
        return []

    core.on_other = on_tick
    core.reply(GetStats, Done())
    core.wanted_s = 100.0
    await loop.submit(ASK)
    core.wanted_s = 1_000.0  # later than the timer that is set: it must look again, not tick
    await turns()
    assert Ticked() not in core.events
    time.now_s = 103.0
    core.wanted_s = 102.5  # earlier than the timer that is set, and due
    await loop.submit(ASK)
    await asyncio.wait_for(ticked.wait(), 5)
    assert [type(event) for event in core.events] == [Asked, Asked, Ticked]
    await loop.close()


async def test_a_core_that_always_wants_a_tick_does_not_starve_the_rest() -> None:
    core, time = ScriptedCore(), Time()
    loop = CoreLoop(core, nobody, now_s=time)
    core.reply(GetStats, Done())
    core.wanted_s = 0.0
    await loop.submit(ASK)
    for _ in range(200):
        await asyncio.sleep(0)
    assert len(core.events) < 100
    await loop.close()


def answering(reply: Callable[[str, str, Body], Body]) -> Callable[[str, str, Body], Awaitable[Body]]:
    async def send(server: str, address: str, body: Body) -> Body:
        return reply(server, address, body)

    return send


def fails(server: str, address: str, body: Body) -> Body:
    raise Unreachable(server, address, 1.0, "it is gone")


def has_a_bug(server: str, address: str, body: Body) -> Body:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("send", "kind"), [(lambda *order: RankFenced(None, 2, 3), RankFenced), (fails, Unreachable), (has_a_bug, InternalError)]
)
async def test_what_came_of_an_order_comes_back_to_the_core(send: Callable[[str, str, Body], Body], kind: type) -> None:
    core = ScriptedCore()
    loop = CoreLoop(core, answering(send))
    order = FenceRank(1, 0, 2)
    core.scripts[GetStats] = lambda asked: [Tell(9, "server-1", "host:1", order), Reply(asked.request, Done())]
    with capture_logs():
        await loop.submit(ASK)
        await turns()
    (answered,) = core.events[1:]
    assert isinstance(answered, Answered)
    assert answered.order == 9
    assert type(answered.outcome) is kind
    await loop.close()


async def test_closing_refuses_what_waits_and_what_comes() -> None:
    core = ScriptedCore()
    core.scripts[InstallMap] = lambda asked: [Tell(1, "server-1", "host:1", ASK), Reply(asked.request, Done())]
    stuck = asyncio.Event()

    async def send(server: str, address: str, body: Body) -> Body:
        await stuck.wait()
        return Done()

    loop = CoreLoop(core, send)
    waiting = asyncio.create_task(loop.submit(ASK))
    await loop.submit(InstallMap(None))  # type: ignore[arg-type]
    await turns()
    await loop.close()
    with pytest.raises(Recovering):
        await waiting
    with pytest.raises(Recovering):
        await loop.submit(ASK)
    assert len(core.events) == 2  # neither the order's end nor anything else reaches a closed core


# --- tasks ----------------------------------------------------------------------------------------------------------------


async def does(task: object, ask: Ask) -> object:
    return f"{task} is done"


async def cannot(task: object, ask: Ask) -> object:
    raise Unreachable("the store", "s3://bucket", 1.0, "it is gone")


async def stumbles(task: object, ask: Ask) -> object:
    raise ZeroDivisionError


@pytest.mark.parametrize(("do_task", "kind"), [(does, str), (cannot, Unreachable), (stumbles, InternalError)])
async def test_what_came_of_a_task_comes_back_to_the_core(do_task: Callable[[object, Ask], Awaitable[object]], kind: type) -> None:
    core = ScriptedCore()
    loop = CoreLoop(core, nobody, do_task=do_task)
    core.scripts[GetStats] = lambda asked: [Work(9, "saving"), Reply(asked.request, Done())]
    with capture_logs():
        assert await loop.submit(ASK) == Done()
        await turns()
    (worked,) = core.events[1:]
    assert isinstance(worked, Worked)
    assert worked.number == 9
    assert type(worked.outcome) is kind
    await loop.close()


async def test_a_task_asks_its_own_core_while_others_are_answered() -> None:
    core, heard = ScriptedCore(), list[object]()

    async def do_task(task: object, ask: Ask) -> object:
        ask(FenceRank(1, 0, 2), heard.append)
        return None

    loop = CoreLoop(core, nobody, do_task=do_task)
    core.scripts[GetStats] = lambda asked: [Work(1, "saving"), Reply(asked.request, Done())]
    core.reply(FenceRank, RankFenced(None, 2, 3))
    assert await loop.submit(ASK) == Done()
    await turns()
    assert heard == [RankFenced(None, 2, 3)]
    await loop.close()


async def test_a_loop_that_closes_ends_its_tasks_and_the_core_hears_nothing_of_them() -> None:
    core, is_cancelled = ScriptedCore(), asyncio.Event()

    async def do_task(task: object, ask: Ask) -> object:
        try:
            return await asyncio.Event().wait()
        except asyncio.CancelledError:
            is_cancelled.set()
            raise

    loop = CoreLoop(core, nobody, do_task=do_task)
    core.scripts[GetStats] = lambda asked: [Work(1, "saving"), Reply(asked.request, Done())]
    await loop.submit(ASK)
    await turns()
    await loop.close()
    assert is_cancelled.is_set()
    assert [type(event) for event in core.events] == [Asked]


# --- what must be durable -------------------------------------------------------------------------------------------------


async def test_a_persist_is_stored_before_what_follows_it_is_carried_out() -> None:
    core, log = ScriptedCore(), list[object]()
    loop = CoreLoop(core, nobody, store=log.append)
    persist = Persist({"map": b"1"}, frozenset({"table/user"}))
    core.scripts[GetStats] = lambda asked: [persist, Reply(asked.request, Done(3))]
    loop.ask(ASK, log.append)
    assert log == [persist, Done(3)]
    await loop.close()


@pytest.mark.parametrize("cause", [OSError("no space left on device"), Unreachable("the store", "host:1", 1.0, "it is gone")])
async def test_nothing_is_told_that_could_not_be_stored_and_the_loop_is_broken(cause: Exception) -> None:
    core, said = ScriptedCore(), list[str]()

    def store(persist: Persist) -> None:
        raise cause

    loop = CoreLoop(core, nobody, store=store)
    loop.on_broken = lambda: said.append("broken")
    waiting = asyncio.create_task(loop.submit(InstallMap(None)))  # type: ignore[arg-type]  # is parked
    await turns()
    core.scripts[GetStats] = lambda asked: [Persist({"map": b"1"}), Tell(1, "server-1", "host:1", ASK), Reply(asked.request, Done())]
    with capture_logs(), pytest.raises(Recovering, match="stopping"):
        await loop.submit(ASK)
    with pytest.raises(Recovering, match="stopping"):
        await waiting
    with pytest.raises(Recovering, match="stopping"):
        await loop.submit(ASK)
    await turns()  # `nobody` would fail: the order was not given
    assert said == ["broken"]
    assert type(loop.broken_by) is (Unreachable if isinstance(cause, Unreachable) else InternalError)
    assert len(core.events) == 2
    await loop.close()


async def test_a_core_gets_a_turn_before_anybody_asks() -> None:
    core = ScriptedCore()
    loop = CoreLoop(core, nobody)
    loop.begin()
    assert core.events == [Ticked()]
    await loop.close()


async def test_a_loop_that_is_broken_off_says_why_and_hears_of_nothing_more() -> None:
    core, said = ScriptedCore(), list[str]()
    loop = CoreLoop(core, nobody)
    loop.on_broken = lambda: said.append("broken")
    why = StaleOrder("server-0", 7, 1)
    loop.break_off(why)
    with pytest.raises(Recovering, match="stopping"):
        await loop.submit(ASK)
    assert (loop.broken_by, said, core.events) == (why, ["broken"], [])
    await loop.close()


async def test_what_the_operator_must_know_goes_into_the_log() -> None:
    core = ScriptedCore()
    loop = CoreLoop(core, nobody)
    lost, well = Note("rank 1 has not been heard of for 10.0 s"), Note("all is well", is_warning=False)
    core.scripts[GetStats] = lambda asked: [Reply(asked.request, Done(3)), lost, well]
    with capture_logs() as logs:
        assert await loop.submit(ASK) == Done(3)
    assert [(line["log_level"], line["event"]) for line in logs] == [("warning", lost.sentence), ("info", well.sentence)]
    await loop.close()


# --- asking with a callback ---------------------------------------------------------------------------------------------------


async def test_a_callback_gets_the_reply_or_the_refusal_once_now_or_later() -> None:
    core = ScriptedCore()
    loop = CoreLoop(core, nobody)
    outcomes: list[object] = []
    core.reply(GetStats, Done(3))
    assert loop.ask(ASK, outcomes.append) is None
    refusal = NotOwner("server-0", 4)
    core.scripts[GetStats] = lambda asked: [Refuse(asked.request, refusal)]
    assert loop.ask(ASK, outcomes.append) is None
    assert outcomes == [Done(3), refusal]
    del core.scripts[GetStats]
    request = loop.ask(ASK, outcomes.append)
    assert request == core.asked()[-1].request
    assert len(outcomes) == 2
    core.scripts[InstallMap] = lambda asked: [Reply(request or 0, Done(4)), Reply(asked.request, Done(5))]
    await loop.submit(InstallMap(None))  # type: ignore[arg-type]
    assert outcomes[2:] == [Done(4)]


async def test_a_callback_that_is_dropped_is_not_called_and_the_core_hears_it_once() -> None:
    core = ScriptedCore()
    loop = CoreLoop(core, nobody)
    outcomes: list[object] = []
    request = loop.ask(ASK, outcomes.append)
    assert request is not None
    loop.drop(request)
    loop.drop(request)
    assert [event for event in core.events if isinstance(event, Dropped)] == [Dropped(request)]
    await loop.close()
    assert outcomes == []


async def test_a_callback_of_a_bug_gets_the_error_that_stands_for_it() -> None:
    core = ScriptedCore()
    loop = CoreLoop(core, nobody)
    outcomes: list[object] = []

    def bug(asked: Asked) -> list[Effect]:
        raise ZeroDivisionError

    core.scripts[GetStats] = bug
    with capture_logs():
        assert loop.ask(ASK, outcomes.append) is None
    assert isinstance(outcomes[0], InternalError)


async def test_a_loop_that_closes_answers_callbacks_and_then_refuses_new_ones() -> None:
    loop = CoreLoop(ScriptedCore(), nobody)
    outcomes: list[object] = []
    assert loop.ask(ASK, outcomes.append) is not None
    await loop.close()
    assert loop.ask(ASK, outcomes.append) is None
    assert [type(outcome) for outcome in outcomes] == [Recovering, Recovering]


async def test_the_core_is_told_where_rows_are_to_lie() -> None:
    core = ScriptedCore()
    loop = CoreLoop(core, nobody)

    def make(shape: tuple[int, int], dtype: "np.dtype[Any]") -> WireRows:
        return np.empty(shape, dtype)

    loop.ask(ASK, lambda outcome: None, make, is_borrowed=True)
    loop.ask(ASK, lambda outcome: None)
    one, other = core.asked()
    assert (one.make_rows, one.is_borrowed) == (make, True)
    assert not other.is_borrowed
    assert other.make_rows((2, 3), np.dtype(np.uint8)).shape == (2, 3)
    await loop.close()
