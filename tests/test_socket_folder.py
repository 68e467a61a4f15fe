"""Folders of unix sockets: whose servers are alive they stay, whose are gone the next one that starts removes."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ps_server.edge.lane.socket_folder import PREFIX, SOCKET, SocketFolder


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place for temporary files of this test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def names(parent: Path) -> list[str]:
    return sorted([path.name for path in parent.iterdir()])


@pytest.fixture
def abandoned(parent: Path) -> Path:
    """What a server that was killed has left: nobody has the lock."""
    folder = parent / f"{PREFIX}abandoned"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as it:
        it.bind(str(folder / SOCKET))
    return folder


@pytest.fixture
def alive() -> Iterator[SocketFolder]:
    folder = SocketFolder.make()
    yield folder
    folder.close()


def test_only_its_user_may_enter_it_and_it_goes_with_its_socket(parent: Path) -> None:
    folder = SocketFolder.make()
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert folder.path.parent == parent
    with socket.socket(socket.AF_UNIX) as it:
        it.bind(folder.socket_path)
    folder.close()
    assert names(parent) == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(folder.descriptor)


def test_what_was_abandoned_is_removed_and_what_is_in_use_stays(abandoned: Path, alive: SocketFolder, parent: Path) -> None:
    assert not abandoned.exists(), "the first to start has removed it"
    another = SocketFolder.make()
    assert names(parent) == sorted([alive.path.name, another.path.name])
    another.close()
    assert names(parent) == [alive.path.name]


HOLDING = """
import sys
from ps_server.edge.lane.socket_folder import SocketFolder
print(SocketFolder.make().path, flush=True)
sys.stdin.read()
"""


def test_the_folder_of_a_process_that_is_killed_is_removed_by_the_next_and_not_before(parent: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(parent)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDING], env=environment, text=True, **pipes) as process:  # type: ignore[call-overload]
        held = Path(process.stdout.readline().strip())
        SocketFolder.make().close()
        assert held.exists()
        process.kill()
        process.wait()
        assert held.exists()
        SocketFolder.make().close()
        assert not held.exists()


def test_what_only_has_such_a_name_stays(parent: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / SOCKET).touch()
    (parent / f"{PREFIX}link").symlink_to(elsewhere)
    (parent / f"{PREFIX}file").touch()
    (parent / f"{PREFIX}full").mkdir()
    (parent / f"{PREFIX}full" / "diary").touch()
    (parent / "rowstead-of-another-kind").mkdir()
    before = names(parent)
    SocketFolder.make().close()
    assert names(parent) == before
    assert names(elsewhere) == [SOCKET]
    assert names(parent / f"{PREFIX}full") == ["diary"]


def test_what_another_user_left_stays(abandoned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: abandoned.stat().st_uid + 1)
    SocketFolder.make().close()
    assert (abandoned / SOCKET).exists()


def test_one_that_was_removed_before_it_was_locked_is_made_again(alive: SocketFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tempfile.mkdtemp
    made = iter([str(alive.path), str(alive.path / "gone")])
    monkeypatch.setattr(tempfile, "mkdtemp", lambda prefix: next(made, None) or real(prefix=prefix))
    folder = SocketFolder.make()
    assert folder.path != alive.path
    assert folder.path.exists()
    folder.close()


def test_many_that_start_at_once_leave_each_other_theirs(parent: Path) -> None:
    wrong: list[Path] = []

    def start_and_stop() -> None:
        for _ in range(100):
            folder = SocketFolder.make()
            if not os.path.samestat(os.fstat(folder.descriptor), folder.path.stat()):
                wrong.append(folder.path)
            folder.close()

    threads = [threading.Thread(target=start_and_stop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert names(parent) == []
