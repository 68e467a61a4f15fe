"""Tasks of a core, each in a thread of its own: they ask the core in its turns, and end with it."""

import asyncio
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from dict_shard import DictShard, shards_of
from made_checkpoints import map_of
from polling import poll_until
from ps_proto.errors import CorruptFile, InternalError, ParameterServerError, Recovering, StorageFailed
from ps_proto.orders import PartWritten, Source
from ps_proto.requests import Done, Fence, GetStats
from ps_server.edge import workbench
from ps_server.edge.loop import Answer, CoreLoop
from ps_server.edge.workbench import STOP_GRACE_S, Workbench
from ps_server.events import Asked, Body, Effect, Event, Refuse, Reply, Work, Worked
from ps_server.storage.folder import Folder
from ps_server.storage.layout import part_of
from ps_server.storage.program import Ask, Await, Begin, Get, Program, Put
from ps_server.storage.programs import PROGRAMS
from ps_server.storage.roots import open_store
from ps_server.storage.store import Data
from ps_server.tasks import AbandonCheckpoint, FindCheckpoint, LoadPart, OpenPart, ReadPiece, SavePart
from scripted_core import ScriptedCore

TIMEOUT_S = 20.0


async def nobody(server: str, address: str, body: Body) -> Body:
    raise AssertionError("no order is sent here")


class Saving(ScriptedCore):
    """Orders `task` once it is asked for stats, answers what a program asks as `shard` does, and keeps what came of the task."""

    def __init__(self, task: object, shard: DictShard | None = None) -> None:
        super().__init__()
        self.outcomes: list[Any] = []
        self.worked = asyncio.Event()
        self.threads: set[threading.Thread] = set()
        self._shard = shard
        self.scripts[GetStats] = lambda asked: [Work(7, task), Reply(asked.request, Done())]

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        self.threads.add(threading.current_thread())
        if isinstance(event, Worked):
            self.outcomes.append(event.outcome)
            self.worked.set()
        if isinstance(event, Asked) and type(event.body) not in self.scripts and self._shard is not None:
            self.events.append(event)
            return [Reply(event.request, self._shard.ask(event.body))]
        return super().handle(event, now_s)

    async def outcome(self) -> Any:
        await asyncio.wait_for(self.worked.wait(), TIMEOUT_S)
        (outcome,) = self.outcomes
        return outcome


def looped(core: Saving, stop_grace_s: float = TIMEOUT_S) -> CoreLoop:
    return CoreLoop(core, nobody, do_task=Workbench("server-0", {}, stop_grace_s=stop_grace_s).do)


async def begin(loop: CoreLoop) -> None:
    assert await loop.submit(GetStats(Fence(1))) == Done()


@pytest.fixture
def shard() -> DictShard:
    (shard,) = shards_of(map_of(1))
    for key in range(50):
        shard.set("user", key, (key, 1, 2, 3))
    shard.save()
    return shard


def saving(root: Path) -> SavePart:
    return SavePart(str(root), 4, 0, "server-0")


async def test_a_task_is_done_aside_and_asks_in_turns_of_the_loop(tmp_path: Path, shard: DictShard) -> None:
    core = Saving(saving(tmp_path), shard)
    loop = looped(core)
    with capture_logs() as logs:
        await begin(loop)
        written = await core.outcome()
    assert isinstance(written, PartWritten)
    assert (tmp_path / part_of(4, 0)).stat().st_size == written.size_bytes
    assert core.threads == {threading.current_thread()}
    assert [(line["event"], line["task"]) for line in logs] == [("did a task", "SavePart")]
    await loop.close()


async def test_others_are_answered_while_a_task_waits_for_its_own_answer(tmp_path: Path, shard: DictShard) -> None:
    core = Saving(saving(tmp_path), shard)
    opened = asyncio.Event()

    def park(asked: Asked) -> list[Effect]:
        opened.set()
        return []

    core.scripts[OpenPart] = park
    loop = looped(core)
    await begin(loop)
    await asyncio.wait_for(opened.wait(), TIMEOUT_S)
    core.scripts[GetStats] = lambda asked: [Reply(asked.request, Done(3))]
    assert await loop.submit(GetStats(Fence(1))) == Done(3)
    (parked,) = [asked.request for asked in core.asked() if isinstance(asked.body, OpenPart)]
    core.scripts[GetStats] = lambda asked: [Reply(parked, shard.ask(OpenPart(4))), Reply(asked.request, Done())]
    await begin(loop)
    assert isinstance(await core.outcome(), PartWritten)
    await loop.close()


async def test_a_core_that_refuses_ends_the_task_with_its_refusal(tmp_path: Path, shard: DictShard) -> None:
    core = Saving(saving(tmp_path), shard)
    core.scripts[ReadPiece] = lambda asked: [Refuse(asked.request, Recovering("server-0", "it was rolled back"))]
    loop = looped(core)
    with capture_logs() as logs:
        await begin(loop)
        outcome = await core.outcome()
    assert isinstance(outcome, Recovering)
    assert str(outcome) in logs[0]["cause"]
    assert not (tmp_path / part_of(4, 0)).exists()
    await loop.close()


async def test_what_the_store_refuses_comes_back_too(tmp_path: Path, shard: DictShard) -> None:
    (tmp_path / "file").write_text("no folder")
    core = Saving(saving(tmp_path / "file"), shard)
    loop = looped(core)
    await begin(loop)
    assert isinstance(await core.outcome(), StorageFailed)
    await loop.close()


async def test_a_missing_checkpoint_is_an_error_that_travels(tmp_path: Path, shard: DictShard) -> None:
    core = Saving(LoadPart(Source(str(tmp_path), 4), "server-0", map_of(1), 0), shard)
    loop = looped(core)
    await begin(loop)
    assert isinstance(await core.outcome(), CorruptFile)
    await loop.close()


class Fake:
    """A task of the test's own, and the program that does it."""

    root = ""


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the program of Fake."""
    return lambda made: monkeypatch.setitem(PROGRAMS, Fake, made)


async def test_a_bug_of_a_program_is_logged_with_its_traceback(program: Any) -> None:
    def stumbles(task: Fake) -> Program[None]:
        yield Ask(OpenPart(4))
        raise ZeroDivisionError

    program(stumbles)
    core = Saving(Fake())
    core.reply(OpenPart, Done())
    loop = looped(core)
    with capture_logs() as logs:
        await begin(loop)
        assert isinstance(await core.outcome(), InternalError)
    assert isinstance(logs[0]["exc_info"], ZeroDivisionError)
    await loop.close()


async def test_what_a_program_begins_is_done_beside_it(program: Any, tmp_path: Path) -> None:
    root = str(tmp_path)

    def overlaps(task: Fake) -> Program[bytes]:
        yield Begin(Put(root, "a", b"hello"))
        yield Ask(OpenPart(4))
        yield Await()
        yield Begin(Get(root, "a"))
        return bytes((yield Await()))

    program(overlaps)
    core = Saving(Fake())
    core.reply(OpenPart, Done())
    loop = looped(core)
    await begin(loop)
    assert await core.outcome() == b"hello"
    await loop.close()


async def test_a_failure_of_what_was_begun_is_the_tasks(program: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")

    def fails(task: Fake) -> Program[None]:
        yield Begin(Put(str(tmp_path / "file"), "a", b"hello"))
        yield Await()

    program(fails)
    core = Saving(Fake())
    loop = looped(core)
    await begin(loop)
    assert isinstance(await core.outcome(), StorageFailed)
    await loop.close()


# --- a stop meanwhile ------------------------------------------------------------------------------------------------------------


def threads_of(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


async def test_a_stop_ends_a_task_that_waits_for_its_core(tmp_path: Path, shard: DictShard) -> None:
    core = Saving(saving(tmp_path), shard)
    opened = asyncio.Event()
    core.scripts[OpenPart] = lambda asked: opened.set() or []  # type: ignore[func-returns-value]  # is parked
    loop = looped(core)
    await begin(loop)
    await asyncio.wait_for(opened.wait(), TIMEOUT_S)
    await loop.close()
    assert core.outcomes == []  # a closed core hears of nothing
    poll_until(lambda: not threads_of("SavePart"))


async def test_a_stop_ends_a_task_with_its_next_question(program: Any) -> None:
    is_working, may_ask = threading.Event(), threading.Event()
    met: list[ParameterServerError] = []

    def works(task: Fake) -> Program[None]:
        is_working.set()
        assert may_ask.wait(TIMEOUT_S)
        try:
            yield Ask(OpenPart(4))
        except ParameterServerError as error:
            met.append(error)
            raise

    program(works)
    core = Saving(Fake())
    loop = looped(core)
    await begin(loop)
    assert await asyncio.to_thread(is_working.wait, TIMEOUT_S)
    closing = asyncio.create_task(loop.close())
    await asyncio.sleep(0)
    assert not closing.done()  # it lets what is under way end
    may_ask.set()
    await asyncio.wait_for(closing, TIMEOUT_S)
    assert isinstance(met[0], Recovering)
    assert not [asked for asked in core.asked() if isinstance(asked.body, OpenPart)]


async def test_a_stop_does_not_wait_for_a_store_that_hangs(program: Any) -> None:
    is_hanging, may_end = threading.Event(), threading.Event()

    def hangs(task: Fake) -> Program[None]:
        is_hanging.set()
        assert may_end.wait(TIMEOUT_S)
        yield Ask(OpenPart(4))

    program(hangs)
    core = Saving(Fake())
    loop = looped(core, stop_grace_s=0.01)
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    await begin(loop)
    assert await asyncio.to_thread(is_hanging.wait, TIMEOUT_S)
    await asyncio.wait_for(loop.close(), TIMEOUT_S)
    may_end.set()
    poll_until(lambda: not threads_of("Fake"))
    await asyncio.sleep(0)
    assert complaints == []


# --- a store that hangs ----------------------------------------------------------------------------------------------------------


class Hanging(Folder):
    """A folder whose puts hang until one may end, each. `puts`: their paths, as they begin."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.is_hanging, self.may_end = threading.Event(), threading.Semaphore(0)
        self.puts: list[str] = []

    def put(self, path: str, data: Data) -> None:
        self.puts.append(path)
        self.is_hanging.set()
        assert self.may_end.acquire(timeout=TIMEOUT_S)
        super().put(path, data)


@dataclass
class Clock:
    """Stands still until the test moves it. `looks`: how often it was looked at."""

    now_s: float = 100.0
    looks: int = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.now_s

    async def be_looked_at(self) -> None:
        """Wait until the time as it is has been seen, and what follows from it done."""
        enough = self.looks + 3
        await asyncio.to_thread(poll_until, lambda: self.looks >= enough)


def two_puts(task: Any) -> Program[str]:
    yield Put(task.root, "first", b"1")
    yield Put(task.root, "second", b"2")
    return "both"


def ask_nobody(body: Body, answer: Answer) -> int | None:
    raise AssertionError("this program asks nothing")


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hanging:
    """The store at tmp_path; every other root is a folder."""
    store = Hanging(tmp_path)
    monkeypatch.setattr(workbench, "open_store", lambda root, options: store if root == str(tmp_path) else open_store(root, options))
    monkeypatch.setitem(PROGRAMS, AbandonCheckpoint, two_puts)
    monkeypatch.setitem(PROGRAMS, LoadPart, lambda task: two_puts(task.source))
    return store


async def give_up(bench: Workbench, clock: Clock, task: object, store: Hanging) -> ParameterServerError:
    """Have a task done until it hangs, let 300 s pass, and return what it is given up with."""
    doing = asyncio.create_task(bench.do(task, ask_nobody))
    assert await asyncio.to_thread(store.is_hanging.wait, TIMEOUT_S)
    clock.now_s += 299.0
    await clock.be_looked_at()
    assert not doing.done()
    clock.now_s += 1.0
    with pytest.raises(StorageFailed) as raised:
        await asyncio.wait_for(doing, TIMEOUT_S)
    return raised.value


async def test_a_task_whose_store_hangs_is_given_up_and_others_there_fail_until_it_answers(tmp_path: Path, hanging: Hanging) -> None:
    clock, root = Clock(), str(tmp_path)
    bench = Workbench("server-0", {}, now_s=clock, look_s=0.001)
    with capture_logs() as logs:
        error = await give_up(bench, clock, AbandonCheckpoint(root, 4), hanging)
        assert "/first cannot be read or written: it has not answered for 300 s. " in str(error)
        for task in (AbandonCheckpoint(root, 5), FindCheckpoint(("/other", root))):
            with pytest.raises(StorageFailed, match="has not answered for 300 s"):
                await bench.do(task, ask_nobody)
        assert len(threads_of("AbandonCheckpoint")) == 1  # no other came to hang
        other = tmp_path / "other"
        assert await asyncio.wait_for(bench.do(AbandonCheckpoint(str(other), 4), ask_nobody), TIMEOUT_S) == "both"
        hanging.may_end.release(3)
        await asyncio.to_thread(poll_until, lambda: logs[-1]["event"] == "a store answers again")
    assert hanging.puts == ["first"]  # what was given up does nothing more
    assert await asyncio.wait_for(bench.do(AbandonCheckpoint(root, 6), ask_nobody), TIMEOUT_S) == "both"
    assert len([line for line in logs if line["event"] == "a store does not answer"]) == 1


async def test_a_slow_store_that_ends_each_operation_in_time_is_waited_for(tmp_path: Path, hanging: Hanging) -> None:
    clock = Clock()
    bench = Workbench("server-0", {}, now_s=clock, look_s=0.001)
    doing = asyncio.create_task(bench.do(AbandonCheckpoint(str(tmp_path), 4), ask_nobody))
    for count in (1, 2):
        assert await asyncio.to_thread(hanging.is_hanging.wait, TIMEOUT_S)
        hanging.is_hanging.clear()
        clock.now_s += 299.0
        await clock.be_looked_at()
        assert len(hanging.puts) == count
        assert not doing.done()
        hanging.may_end.release()
    assert await asyncio.wait_for(doing, TIMEOUT_S) == "both"


async def test_a_part_that_is_loaded_is_waited_for_and_the_log_says_for_what(tmp_path: Path, hanging: Hanging) -> None:
    clock = Clock()
    bench = Workbench("server-0", {}, now_s=clock, look_s=0.001)
    task = LoadPart(Source(str(tmp_path), 4), "server-0", map_of(1), 0)
    with capture_logs() as logs:
        doing = asyncio.create_task(bench.do(task, ask_nobody))
        assert await asyncio.to_thread(hanging.is_hanging.wait, TIMEOUT_S)
        clock.now_s += 300.0
        await asyncio.to_thread(poll_until, lambda: bool(logs))
        clock.now_s += 300.0
        await clock.be_looked_at()
        assert not doing.done()
    assert [(line["event"], line["path"]) for line in logs] == [("a store does not answer", "first")]  # once
    hanging.may_end.release(2)
    assert await asyncio.wait_for(doing, TIMEOUT_S) == "both"


async def test_a_stop_does_not_wait_for_a_task_that_was_given_up(tmp_path: Path, hanging: Hanging) -> None:
    clock, core = Clock(), Saving(AbandonCheckpoint(str(tmp_path), 4))
    loop = CoreLoop(core, nobody, do_task=Workbench("server-0", {}, now_s=clock, look_s=0.001).do)
    await begin(loop)
    assert await asyncio.to_thread(hanging.is_hanging.wait, TIMEOUT_S)
    clock.now_s += 300.0
    assert isinstance(await core.outcome(), StorageFailed)
    begun_s = time.monotonic()
    await loop.close()
    assert time.monotonic() - begun_s < STOP_GRACE_S
    assert all([thread.daemon for thread in threads_of("AbandonCheckpoint")])
    hanging.may_end.release(2)
    poll_until(lambda: not threads_of("AbandonCheckpoint"))
    await asyncio.sleep(0)
