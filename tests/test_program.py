"""Programs: what they yield is done in order, and what fails is raised where they wait for it."""

from collections.abc import Generator
from typing import Any

import pytest

from dict_store import DictStore
from ps_proto.errors import Recovering, StorageFailed
from ps_server.storage.program import Ask, Delete, Get, List, Program, Put, run
from ps_server.storage.store import NotThere


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
