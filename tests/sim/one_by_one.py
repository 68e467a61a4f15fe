"""Programs that wait for each operation: so that a simulation may let time pass, or a process die, between any two of them."""

from collections.abc import Generator
from contextlib import closing
from typing import Any, TypeVar

from ps_proto.errors import ParameterServerError
from ps_server.storage.program import Ask, AskAll, Await, Begin, Program, StoreOperation
from ps_server.storage.store import NotThere

T = TypeVar("T")

OneByOne = Generator[StoreOperation | Ask, Any, T]  # a program that begins nothing, and asks one question at a time


def one_by_one(program: Program[T]) -> OneByOne[T]:
    """Return the same program as one that waits for each operation where it would have begun it, and for each answer before it asks on."""
    answer: Any = None
    error: Exception | None = None
    begun: tuple[Any, Exception | None] = (None, None)
    with closing(program):
        while True:
            try:
                operation = program.send(answer) if error is None else program.throw(error)
            except StopIteration as end:
                value: T = end.value
                return value
            answer, error = None, None
            match operation:
                case Await():
                    answer, error = begun
                case Begin(inner):
                    begun = yield from _outcome(inner)
                case AskAll(bodies):
                    answer = []
                    for body in bodies:
                        reply, error = yield from _outcome(Ask(body))
                        if error is not None:
                            break
                        answer.append(reply)
                case _:
                    answer, error = yield from _outcome(operation)


def _outcome(operation: StoreOperation | Ask) -> OneByOne[tuple[Any, Exception | None]]:
    """Return what comes back, or is raised."""
    try:
        return (yield operation), None
    except (ParameterServerError, NotThere) as raised:
        return None, raised
