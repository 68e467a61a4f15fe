"""What was done when, in which thread: spans, which may lie within each other, of one worker.

    thread of the training   ──pull──────────────        ──push──
                               └─calls of pull─┘
    rowstead-pull_0                                  ──pull────────    what runs beside it

A span's `own_s` is its time less that of the spans within it: so in one thread nothing counts twice, and all of them add up.
"""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import get_ident
from types import TracebackType
from typing import NamedTuple, TypeVar

SPANS_KEPT_MAX = 100_000  # the newest, of a profile's trace and since the last step's end, which may never come: some 20 MB

# What spans in the thread of the training are called; those of the client's calls are in taps.py.
LOAD = "load"  # a loader gives its next batch
PLAN = "plan"  # repeats among the ids of a forward
PLACE = "place"  # rows become tensors
POOL = "pool"
POOL_BACK = "pool back"
GRADIENTS = "gradients"  # from wherever they are to arrays of this host


Item = TypeVar("Item")


class Ended(NamedTuple):
    """A span that is over. `kind`: as it was given, else of the first calls within it; "" where there were none."""

    name: str
    kind: str
    thread: int
    begin_s: float
    end_s: float
    own_s: float


class Carried(NamedTuple):
    """A call to a peer, there and back. Bytes are those of the ids and rows."""

    kind: str
    peer: str
    thread: int
    begin_s: float
    end_s: float
    sent_bytes: int
    received_bytes: int


class _UnderWay:
    """A span that was entered."""

    __slots__ = ("begin_s", "inner_s", "kind", "name")

    def __init__(self, name: str, kind: str, begin_s: float) -> None:
        self.name = name
        self.kind = kind
        self.begin_s = begin_s
        self.inner_s = 0.0


class Stopwatch:
    """Records spans of any thread. `now_s`: a monotonic time in seconds. `thread`: that of the training."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self.thread = get_ident()
        self.ended: deque[Ended] = deque(maxlen=SPANS_KEPT_MAX)  # since they were taken last; appending is safe in any thread
        self.carried: deque[Carried] = deque(maxlen=SPANS_KEPT_MAX)
        self.trace: deque[Ended | Carried] = deque(maxlen=SPANS_KEPT_MAX)
        self.threads: dict[int, str] = {}  # those that spans ended in, by name
        self._local = threading.local()

    def span(self, name: str, kind: str = "") -> "Span":
        """Return a span, to be entered once or again and again; `kind`: of the calls that it makes."""
        return Span(self, name, kind)

    def stack(self) -> "list[_UnderWay]":
        """Return this thread's spans that are under way, the innermost last."""
        stack: list[_UnderWay] | None = getattr(self._local, "stack", None)
        if stack is None:
            stack = self._local.stack = []
            self.threads[get_ident()] = threading.current_thread().name
        return stack

    def end(self, ended: Ended) -> None:
        self.ended.append(ended)
        self.trace.append(ended)

    def carry(self, carried: Carried) -> None:
        """Record a call."""
        self.stack()
        self.carried.append(carried)
        self.trace.append(carried)

    def take(self) -> tuple[list[Ended], list[Carried]]:
        """Return what has ended since this was asked last."""
        return _emptied(self.ended), _emptied(self.carried)


class Span:
    """A name for what is done from entering to leaving; it may be entered by several threads, and again within itself."""

    __slots__ = ("_kind", "_name", "_watch")

    def __init__(self, watch: Stopwatch, name: str, kind: str) -> None:
        self._watch = watch
        self._name = name
        self._kind = kind

    def __enter__(self) -> None:
        self._watch.stack().append(_UnderWay(self._name, self._kind, self._watch.now_s()))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        end_s = self._watch.now_s()
        stack = self._watch.stack()
        it = stack.pop()
        took_s = end_s - it.begin_s
        outer = stack[-1] if stack else None
        if outer is not None:
            outer.inner_s += took_s
            outer.kind = outer.kind or it.kind
        self._watch.end(Ended(it.name, it.kind, get_ident(), it.begin_s, end_s, took_s - it.inner_s))


def _emptied(items: deque[Item]) -> list[Item]:
    """Return what is in it and take that out; another thread may append meanwhile."""
    return [items.popleft() for _ in range(len(items))]


# The stopwatch of a profile, by the thread whose training it looks at.
_running: dict[int, Stopwatch] = {}
_NOT_WATCHED: AbstractContextManager[None] = nullcontext()


def span(name: str) -> AbstractContextManager[None]:
    """Return a span of the profile that looks at this thread, or nothing to speak of where there is none."""
    if not _running:
        return _NOT_WATCHED
    watch = _running.get(get_ident())
    return _NOT_WATCHED if watch is None else watch.span(name)


def is_watched() -> bool:
    """Return whether a profile looks at this thread."""
    return get_ident() in _running


def begin(watch: Stopwatch) -> None:
    """Let `span` record there, in the thread that the stopwatch was made in."""
    _running[watch.thread] = watch


def end(watch: Stopwatch) -> None:
    """Let `span` record nothing there any more."""
    _running.pop(watch.thread, None)
