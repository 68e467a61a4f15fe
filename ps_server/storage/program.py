"""Work on stores as a value: a generator that yields what it wants done and is sent what came of it.

So the same program runs in a thread against a disk (`run`), and in a simulation that lets time pass, or a process die, between any two of
its operations. A store's errors (StorageFailed, NotThere) and those that the core answers with are raised at the `yield`.
"""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from functools import partial
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
    """Read an object. Comes back as memoryview, once `check` has looked at it and raised nothing: with what is begun, that is begun too."""

    root: str
    path: str
    check: Callable[[memoryview], None] | None = None


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


class AskAll(NamedTuple):
    """Ask the core all of these in order, each in a turn of its own, between which it answers others. Comes back as the list of replies.

    The first refusal is raised, and what follows it is not asked. One such question in place of many spares as many changes of threads.
    """

    bodies: Sequence[object]


StoreOperation = Put | Get | List | Delete


class Begin(NamedTuple):
    """Begin an operation of a store, and go on. Comes back as None, at once; there is one at a time."""

    operation: StoreOperation


class Await(NamedTuple):
    """Wait for the operation that was begun. Comes back, or is raised, as that one does."""


Operation = StoreOperation | Ask | AskAll | Begin | Await
Program = Generator[Operation, Any, T]
AskMany = Callable[[Sequence[object]], list[Any]]
Start = Callable[[Callable[[], Any]], Callable[[], Any]]  # (work) -> what waits for its end, and returns or raises what came of it


def run(program: Program[T], open_store: Callable[[str], Store], ask: Callable[[object], object], start: Start | None = None) -> T:
    """Carry out all of a program and return its value. It blocks, as the stores and `ask` do.

    `open_store`: the store at a root; it is called once for each. `start`: does what the program begins; None: it is done at once.
    """
    return run_beside(program, open_store, lambda bodies: [ask(body) for body in bodies], start or _at_once)


def run_beside(program: Program[T], open_store: Callable[[str], Store], ask: AskMany, start: Start) -> T:
    """As `run`, with a core that takes several questions at a time, and replies to all or raises the first refusal."""
    hands = _Hands(open_store, ask, start)
    answer: Any = None
    error: Exception | None = None
    try:
        with closing(program):
            while True:
                try:
                    operation = program.send(answer) if error is None else program.throw(error)
                except StopIteration as end:
                    value: T = end.value
                    return value
                answer, error = None, None
                try:
                    answer = hands.do(operation)
                except (ParameterServerError, NotThere) as raised:
                    error = raised
    finally:
        hands.rest()


class _Hands:
    """Do a program's operations."""

    def __init__(self, open_store: Callable[[str], Store], ask: AskMany, start: Start) -> None:
        self._open_store = open_store
        self._ask = ask
        self._start = start
        self._stores: dict[str, Store] = {}
        self._begun: Callable[[], Any] | None = None

    def do(self, operation: Operation) -> Any:
        match operation:
            case Ask(body):
                return self._ask([body])[0]
            case AskAll(bodies):
                return self._ask(bodies)
            case Begin(inner):
                assert self._begun is None, "one operation is begun at a time"
                self._begun = self._start(partial(perform, inner, self._store(inner.root)))
                return None
            case Await():
                assert self._begun is not None, "nothing was begun"
                wait, self._begun = self._begun, None
                return wait()
            case _:
                return perform(operation, self._store(operation.root))

    def rest(self) -> None:
        """Wait for what was begun, whatever comes of it: nothing is written once a program has ended."""
        if self._begun is not None:
            with suppress(Exception):
                self._begun()

    def _store(self, root: str) -> Store:
        if root not in self._stores:
            self._stores[root] = self._open_store(root)
        return self._stores[root]


def _at_once(work: Callable[[], Any]) -> Callable[[], Any]:
    done: Future[Any] = Future()
    try:
        done.set_result(work())
    except Exception as error:
        done.set_exception(error)
    return done.result


def perform(operation: StoreOperation, store: Store) -> Any:
    """Do one operation on the store at its root, and return what comes back to the program."""
    match operation:
        case Put(_, path, data):
            return store.put(path, data)
        case Get(_, path, check):
            data = store.get(path)
            if check is not None:
                check(data)
            return data
        case List(_, prefix):
            return store.list(prefix)
        case Delete(_, paths):
            return store.delete(paths)
