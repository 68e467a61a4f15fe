"""The coordinator's state in a SQLite database, which one coordinator at a time has."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from ps_proto.errors import CorruptFile, ParameterServerError, StorageFailed

FILE = "coordinator.sqlite3"
VERSION = 1  # of the layout
LOCK_WAIT_S = 2.0  # a coordinator that was just killed lets go when the system has ended it
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_HELD = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class SqliteStore:
    """A table of keys and values in `folder`/coordinator.sqlite3. One connection, used by one thread.

    A commit is in the write-ahead log and synced when it returns (synchronous=FULL), so that a crash between any two system calls leaves
    the state before it or after it. locking_mode=EXCLUSIVE keeps a second coordinator out for as long as the first one lives.
    """

    def __init__(self, folder: Path, lock_wait_s: float = LOCK_WAIT_S) -> None:
        self.path = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageFailed(str(folder), error.strerror or str(error)) from None
        with self._errors():
            self._connection = sqlite3.connect(self.path, timeout=lock_wait_s, isolation_level=None)
        try:
            with self._errors():
                self._open()
        except ParameterServerError:
            self._connection.close()
            raise

    def _open(self) -> None:
        ask = self._connection.execute
        ask("PRAGMA locking_mode = EXCLUSIVE")
        ask("PRAGMA journal_mode = WAL")
        ask("PRAGMA synchronous = FULL")
        ask("BEGIN IMMEDIATE")  # takes the lock, to the end of this connection
        (version,) = ask("PRAGMA user_version").fetchone()
        is_new = ask("SELECT count(*) FROM sqlite_schema").fetchone() == (0,)
        if version == 0 and is_new:
            ask("CREATE TABLE state (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
            ask(f"PRAGMA user_version = {VERSION}")
        ask("COMMIT")
        if version != VERSION and not is_new:
            raise CorruptFile(str(self.path), f"its layout is of version {version}, and this release reads version {VERSION}")
        (verdict,) = ask("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise CorruptFile(str(self.path), verdict)

    def load(self) -> dict[str, bytes]:
        """Return all that is kept."""
        with self._errors():
            return dict(self._connection.execute("SELECT key, value FROM state"))

    def commit(self, puts: Mapping[str, bytes], deletes: frozenset[str]) -> None:
        """Keep `puts` and drop `deletes`, both or neither; durable on return."""
        with self._errors(), closing(self._connection.cursor()) as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            try:
                cursor.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", puts.items())
                cursor.executemany("DELETE FROM state WHERE key = ?", [(key,) for key in deletes])
                cursor.execute("COMMIT")
            except sqlite3.Error:
                if self._connection.in_transaction:  # SQLite may have rolled back already, as where the disk is full
                    cursor.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Let go of the database."""
        self._connection.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise ours where SQLite raises its own."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the extended part
            if code in _DAMAGED:
                raise CorruptFile(str(self.path), str(error)) from None
            reason = "another coordinator is using it" if code in _HELD else str(error)
            raise StorageFailed(str(self.path), reason) from None
