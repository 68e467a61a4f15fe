"""Programs: what they yield is done in order, and what fails is raised where they wait for it."""

from collections.abc import Callable, Generator
from typing import Any

import pytest

from dict_store import DictStore
from ps_proto.errors import Recovering, StorageFailed
from ps_server.storage.program import Ask, AskAll, Await, Begin, Delete, Get, List, Program, Put, StoreOperation, run
from ps_server.storage.store import NotThere
from sim.one_by_one import OneByOne, one_by_one


def ask(body: object) -> object:
    if body == "refuse":
        raise Recovering("server-0", "it restarts")
    return f"{body}!"


def run_on(program: Program[Any], **stores: DictStore) -> Any:
    return run(program, stores.__getitem__, ask)


def test_a_program_works_on_the_stores_of_its_roots_and_returns_a_value() -> None:
    near, far = DictStore(), DictStore()

    def program() -> Program[Any]:
        yield Put("near", "a", b"hello")
        yield Put("far", "b/c", b"again")
        listed = yield List("far", "b")
        data = yield Get("near", "a")
        yield Delete("near", ("a",))
        return listed, bytes(data), (yield Ask("well"))

    assert run_on(program(), near=near, far=far) == ({"b/c": 5}, b"hello", "well!")
    assert (near.files, far.files) == ({}, {"b/c": b"again"})


def test_a_store_is_opened_once() -> None:
    opened: list[str] = []

    def open_store(root: str) -> DictStore:
        opened.append(root)
        return DictStore()

    def program() -> Program[None]:
        yield Put("near", "a", b"")
        yield Get("near", "a")

    run(program(), open_store, ask)
    assert opened == ["near"]


def test_what_fails_is_raised_in_the_program_which_may_go_on() -> None:
    full = DictStore()
    full.puts_left = 0
    met: list[Exception] = []

    def program() -> Program[str]:
        for operation in (Get("full", "a"), Put("full", "a", b""), Ask("refuse")):
            try:
                yield operation
            except (NotThere, StorageFailed, Recovering) as error:
                met.append(error)
        return str((yield Ask("done")))

    assert run_on(program(), full=full) == "done!"
    assert [type(error) for error in met] == [NotThere, StorageFailed, Recovering]


def test_what_a_program_does_not_catch_is_raised_to_whoever_runs_it() -> None:
    def program() -> Program[None]:
        yield Get("near", "a")

    with pytest.raises(NotThere):
        run_on(program(), near=DictStore())


def test_a_bug_of_a_store_ends_the_program_too() -> None:
    closed = False

    def program() -> Generator[Get, Any, None]:
        nonlocal closed
        try:
            yield Get("nowhere", "a")
        finally:
            closed = True

    with pytest.raises(KeyError):
        run_on(program())
    assert closed


def test_what_is_read_is_checked_before_it_comes_back() -> None:
    near, seen = DictStore(), list[bytes]()
    near.files = {"a": b"good", "b": b"bad"}

    def check(data: memoryview) -> None:
        seen.append(bytes(data))
        if seen[-1] == b"bad":
            raise StorageFailed("b", "it is bad")

    def program() -> Program[bytes]:
        data = yield Get("near", "a", check)
        with pytest.raises(StorageFailed, match="it is bad"):
            yield Get("near", "b", check)
        yield Begin(Get("near", "b", check))
        with pytest.raises(StorageFailed, match="it is bad"):
            yield Await()
        return bytes(data)

    assert run_on(program(), near=near) == b"good"
    assert seen == [b"good", b"bad", b"bad"]


# --- what is begun, to be waited for later ----------------------------------------------------------------------------------------


def overlapped() -> Program[list[object]]:
    """Begin a put, ask meanwhile, wait for it, then begin a read of what is not there."""
    yield Begin(Put("near", "a", b"hello"))
    answers: list[object] = [(yield Ask("meanwhile")), (yield Await())]
    yield Begin(Get("near", "b"))
    try:
        yield Await()
    except NotThere as error:
        answers.append(error.path)
    return answers


def carried_out(program: OneByOne[Any], store: DictStore) -> tuple[list[type], Any]:
    """Carry out a program that begins nothing; return the kinds of its operations, and its value."""
    kinds: list[type] = []

    def open_store(root: str) -> DictStore:
        return store

    def noted() -> Program[Any]:
        answer, error = None, None
        while True:
            try:
                operation: StoreOperation | Ask = program.send(answer) if error is None else program.throw(error)
            except StopIteration as end:
                return end.value
            kinds.append(type(operation))
            answer, error = None, None
            try:
                answer = yield operation
            except NotThere as raised:
                error = raised

    return kinds, run(noted(), open_store, ask)


def test_what_is_begun_is_done_beside_the_program_and_awaited_once() -> None:
    near, order = DictStore(), list[str]()

    def start(work: Callable[[], Any]) -> Callable[[], Any]:
        order.append("begun")

        def wait() -> Any:
            order.append("awaited")
            return work()

        return wait

    def note(body: object) -> object:
        order.append(f"asked {body}")
        return ask(body)

    assert run(overlapped(), {"near": near}.__getitem__, note, start) == ["meanwhile!", None, "b"]
    assert order == ["begun", "asked meanwhile", "awaited", "begun", "awaited"]


def test_without_a_helper_what_is_begun_is_done_at_once_and_its_error_is_raised_where_it_is_awaited() -> None:
    near = DictStore()
    assert run_on(overlapped(), near=near) == ["meanwhile!", None, "b"]
    assert near.files == {"a": b"hello"}


def test_a_program_may_be_stepped_one_operation_after_another() -> None:
    near = DictStore()
    assert carried_out(one_by_one(overlapped()), near) == ([Put, Ask, Get], ["meanwhile!", None, "b"])
    assert near.files == {"a": b"hello"}


@pytest.mark.parametrize("refused", [True, False])
def test_nothing_goes_on_behind_a_program_that_has_ended(refused: bool) -> None:
    near, waited = DictStore(), list[str]()

    def start(work: Callable[[], Any]) -> Callable[[], Any]:
        def wait() -> Any:
            waited.append("awaited")
            work()
            raise StorageFailed("a", "it comes too late to be heard")

        return wait

    def program() -> Program[None]:
        yield Begin(Put("near", "a", b""))
        if refused:
            yield Ask("refuse")

    if refused:
        with pytest.raises(Recovering):
            run(program(), {"near": near}.__getitem__, ask, start)
    else:
        run(program(), {"near": near}.__getitem__, ask, start)
    assert waited == ["awaited"]
    assert near.files == {"a": b""}


def asking() -> Program[tuple[object, str, object]]:
    """Ask questions, then some of which one is refused, then none."""
    answers = yield AskAll(["a", "b", "c"])
    refusal = ""
    try:
        yield AskAll(["a", "refuse", "c"])
    except Recovering as error:
        refusal = str(error)
    return answers, refusal, (yield AskAll([]))


@pytest.mark.parametrize("is_stepped", [True, False])
def test_questions_are_asked_in_order_until_one_is_refused(is_stepped: bool) -> None:
    asked: list[object] = []

    def note(body: object) -> object:
        asked.append(body)
        return ask(body)

    program = one_by_one(asking()) if is_stepped else asking()
    answers, refusal, none = run(program, dict[str, DictStore]().__getitem__, note)
    assert answers == ["a!", "b!", "c!"]
    assert "it restarts" in refusal
    assert none == []
    assert asked == ["a", "b", "c", "a", "refuse"]


def test_a_program_that_is_stepped_is_closed_with_its_steps() -> None:
    closed = False

    def program() -> Program[None]:
        nonlocal closed
        try:
            yield Begin(Put("near", "a", b""))
        finally:
            closed = True

    steps = one_by_one(program())
    next(steps)
    steps.close()
    assert closed
