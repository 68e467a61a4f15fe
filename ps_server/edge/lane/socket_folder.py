"""The folder of a server's unix socket. Only its user may enter it, and it does not outlive the server for long.

A server that is killed removes nothing, but the system takes its lock away. So the next server of this user that starts in the same place
removes every such folder that nobody has locked.
"""

import fcntl
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PREFIX = "rowstead-lane-"
SOCKET = "lane"


@dataclass(frozen=True, slots=True)
class SocketFolder:
    """A folder that this process has locked, until `close` or its own end. `descriptor`: of the folder; the lock is on it."""

    path: Path
    descriptor: int

    @classmethod
    def make(cls) -> "SocketFolder":
        """Make one, and remove those whose servers are gone. Raises OSError where there can be none."""
        _remove_abandoned(Path(tempfile.gettempdir()))
        while True:
            path = Path(tempfile.mkdtemp(prefix=PREFIX))  # 0700
            it = _try_lock(path)
            if it is not None:  # else another server, which starts too, has just found it without a lock, and removes it
                return it

    @property
    def socket_path(self) -> str:
        """Where the socket is to lie."""
        return str(self.path / SOCKET)

    def close(self) -> None:
        """Remove the folder and its socket; with anything else in it, it stays."""
        with suppress(OSError):
            (self.path / SOCKET).unlink()
        with suppress(OSError):
            self.path.rmdir()
        os.close(self.descriptor)


def _remove_abandoned(parent: Path) -> None:
    """Remove this user's folders whose servers are gone: not those of another one, nor what only has such a name."""
    for path in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # it was removed meanwhile, or we may not look at it
            abandoned = _try_lock(path) if path.lstat().st_uid == os.geteuid() else None
            if abandoned is not None:
                abandoned.close()


def _try_lock(path: Path) -> SocketFolder | None:
    """Return the folder at `path`, locked; None where it is gone, or another has the lock. Raises OSError where there are no locks."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):  # who had the lock before may have removed it
            return SocketFolder(path, descriptor)
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
