"""The operations of one task's stores, watched from outside: which has been under way for how long, and that no other follows it."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from ps_proto.errors import ParameterServerError
from ps_server.storage.store import Data, Store


class Begun(NamedTuple):
    """An operation under way: below which root, on which path there, and since when."""

    root: str
    path: str
    since_s: float


class Watch:
    """What a task's threads do to stores. They note it here; the event loop's thread looks, and may end it."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._begun: dict[int, Begun] = {}  # by thread; each thread changes its own entry only
        self._error: ParameterServerError | None = None

    def longest(self) -> Begun | None:
        """Return the operation that has been under way for the longest time."""
        return min(list(self._begun.values()), key=lambda begun: begun.since_s, default=None)

    def end(self, error: ParameterServerError) -> None:
        """Let every operation that is begun from now on raise this in place of being done."""
        self._error = error

    @contextmanager
    def during(self, root: str, path: str) -> Iterator[None]:
        """Note an operation of this thread."""
        if self._error is not None:
            raise self._error
        thread = threading.get_ident()
        self._begun[thread] = Begun(root, path, self._now_s())
        try:
            yield
        finally:
            del self._begun[thread]


class WatchedStore(Store):
    """The store at `root`, whose operations `watch` sees."""

    def __init__(self, root: str, store: Store, watch: Watch) -> None:
        self._root = root
        self._store = store
        self._watch = watch

    def put(self, path: str, data: Data) -> None:
        with self._watch.during(self._root, path):
            self._store.put(path, data)

    def get(self, path: str) -> memoryview:
        with self._watch.during(self._root, path):
            return self._store.get(path)

    def list(self, prefix: str) -> dict[str, int]:
        with self._watch.during(self._root, prefix):
            return self._store.list(prefix)

    def delete(self, paths: Sequence[str]) -> None:
        with self._watch.during(self._root, paths[0] if paths else ""):
            self._store.delete(paths)
