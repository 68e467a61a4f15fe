"""Work on stores as a value: a generator that yields what it wants done and is sent what came of it.

So the same program runs in a thread against a disk (`run`), and in a simulation that lets time pass, or a process die, between any two of
its operations. A store's errors (StorageFailed, NotThere) and those that the core answers with are raised at the `yield`.
"""

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

from ps_proto.errors import ParameterServerError
from ps_server.storage.store import Data, NotThere, Store

T = TypeVar("T")


class Put(NamedTuple):
    """Write an object of the store at `root`. Comes back as None."""

    root: str
    path: str
    data: Data


class Get(NamedTuple):
    """Read an object. Comes back as memoryview."""

    root: str
    path: str


class List(NamedTuple):
    """List objects below a folder, "" for all. Comes back as dict[str, int], sizes in bytes by path."""

    root: str
    prefix: str


class Delete(NamedTuple):
    """Remove objects. Comes back as None."""

    root: str
    paths: tuple[str, ...]


class Ask(NamedTuple):
    """Ask the core whose task this is. Comes back as what it replies."""

    body: object


StoreOperation = Put | Get | List | Delete
Program = Generator[StoreOperation | Ask, Any, T]


def run(program: Program[T], open_store: Callable[[str], Store], ask: Callable[[object], object]) -> T:
    """Carry out all of a program and return its value. It blocks, as the stores and `ask` do.

    `open_store`: the store at a root; it is called once for each.
    """
    stores: dict[str, Store] = {}
    answer: Any = None
    error: Exception | None = None
    with closing(program):
        while True:
            try:
                operation = program.send(answer) if error is None else program.throw(error)
            except StopIteration as end:
                value: T = end.value
                return value
            answer, error = None, None
            try:
                if isinstance(operation, Ask):
                    answer = ask(operation.body)
                else:
                    if operation.root not in stores:
                        stores[operation.root] = open_store(operation.root)
                    answer = perform(operation, stores[operation.root])
            except (ParameterServerError, NotThere) as raised:
                error = raised


def perform(operation: StoreOperation, store: Store) -> Any:
    """Do one operation on the store at its root, and return what comes back to the program."""
    match operation:
        case Put(_, path, data):
            return store.put(path, data)
        case Get(_, path):
            return store.get(path)
        case List(_, prefix):
            return store.list(prefix)
        case Delete(_, paths):
            return store.delete(paths)
