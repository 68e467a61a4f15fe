"""The coordinator's state on the disk: durable, whole, and one coordinator's alone."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ps_proto.errors import CorruptFile, StorageFailed
from ps_server.coordinator.sqlite_store import FILE, SqliteStore
from ps_server.coordinator.state_store import Unkept

NONE: frozenset[str] = frozenset()


def loaded(folder: Path) -> dict[str, bytes]:
    with closing(SqliteStore(folder)) as store:
        return store.load()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path)) as store:
        yield store


def test_what_was_committed_is_there_at_the_next_start(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "at need"
    with closing(SqliteStore(folder)) as store:
        assert store.load() == {}
        store.commit({"map": b"1", "job": b"", "rank/0": bytes(range(256))}, NONE)
        store.commit({"map": b"2", "naïve/\N{SNOWMAN}": b"3"}, frozenset({"job", "was never there"}))
        assert store.load() == {"map": b"2", "rank/0": bytes(range(256)), "naïve/\N{SNOWMAN}": b"3"}
    assert loaded(folder) == {"map": b"2", "rank/0": bytes(range(256)), "naïve/\N{SNOWMAN}": b"3"}


def test_it_is_synced_at_each_commit(store: SqliteStore) -> None:
    ask = store._connection.execute
    assert [ask(f"PRAGMA {name}").fetchone() for name in ("journal_mode", "synchronous", "locking_mode")] == [
        ("wal",),
        (2,),
        ("exclusive",),
    ]


def test_a_commit_that_fails_changes_nothing(store: SqliteStore, tmp_path: Path) -> None:
    store.commit({"map": b"1"}, NONE)
    with pytest.raises(StorageFailed):
        store.commit({"map": b"2", "bad": None}, frozenset({"map"}))  # type: ignore[dict-item]  # no bytes, so that it fails midway
    assert store.load() == {"map": b"1"}
    store.commit({"job": b"2"}, NONE)
    store.close()
    assert loaded(tmp_path) == {"map": b"1", "job": b"2"}


def test_a_full_disk_is_told_of_and_what_was_there_stands(store: SqliteStore, tmp_path: Path) -> None:
    store.commit({"map": b"1"}, NONE)
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StorageFailed, match=r"coordinator\.sqlite3 cannot be read or written: database or disk is full"):
        store.commit({"map": b"2", "big": bytes(100_000)}, NONE)
    store.close()
    assert loaded(tmp_path) == {"map": b"1"}


def test_a_second_coordinator_is_told_of_the_first(store: SqliteStore, tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="another coordinator is using it"):
        SqliteStore(tmp_path, lock_wait_s=0.0)
    store.close()
    assert loaded(tmp_path) == {}


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed, match="file/below cannot be read or written: Not a directory"):
        SqliteStore(tmp_path / "file" / "below")


@pytest.mark.parametrize("where", [0, 4096], ids=["header", "page"])
def test_a_damaged_file_is_named(tmp_path: Path, where: int) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        store.commit({f"table/{number}": bytes(1000) for number in range(100)}, NONE)
    data = bytearray((tmp_path / FILE).read_bytes())
    data[where : where + 3000] = b"\xa5" * 3000
    (tmp_path / FILE).write_bytes(data)
    with pytest.raises(CorruptFile, match=r"coordinator\.sqlite3 is not as it was written"):
        SqliteStore(tmp_path)


def test_a_file_of_another_layout_is_refused(tmp_path: Path) -> None:
    SqliteStore(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        connection.execute("PRAGMA user_version = 7")
    with pytest.raises(CorruptFile, match="its layout is of version 7, and this release reads version 1"):
        SqliteStore(tmp_path)


COUNTING = """
import sys
from pathlib import Path
from ps_server.coordinator.sqlite_store import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
number = int(store.load().get("even", b"0"))
while True:
    number += 2
    store.commit({"even": b"%d" % number, "odd": b"%d" % (number + 1), f"of/{number}": bytes(5000)}, frozenset({f"of/{number - 2}"}))
    print(number, flush=True)
"""


def test_after_a_kill_it_has_every_commit_that_returned_whole(tmp_path: Path) -> None:
    for count in (1, 3, 40):
        counting = subprocess.Popen([sys.executable, "-c", COUNTING, tmp_path], stdout=subprocess.PIPE, text=True)
        assert counting.stdout is not None
        told = [int(counting.stdout.readline()) for _ in range(count)]
        os.kill(counting.pid, signal.SIGKILL)
        told += [int(line) for line in counting.stdout.read().split()]
        counting.wait()
        counting.stdout.close()
        state = loaded(tmp_path)
        number = int(state["even"])
        assert number in (told[-1], told[-1] + 2)  # the last one may have returned before it could say so
        assert state.keys() == {"even", "odd", f"of/{number}"}
        assert int(state["odd"]) == number + 1


def test_without_a_place_nothing_is_kept() -> None:
    with closing(Unkept()) as store:
        store.commit({"map": b"1"}, NONE)
        assert store.load() == {}
