"""`rowstead launch`, run as a user runs it."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from polling import poll_until
from procs.started import ROWSTEAD

END_TIMEOUT_S = 60.0


class Launched:
    """A running `rowstead launch`; `out` and `err` are what it printed so far. `environment`: its own, or this process's."""

    def __init__(
        self, folder: Path, script: str, flags: tuple[str, ...], arguments: tuple[str, ...], environment: Mapping[str, str] | None = None
    ) -> None:
        self._files = {stream: folder / f"launch.{stream}" for stream in ("out", "err")}
        path = folder / "script.py"
        path.write_text(script)
        with self._files["out"].open("wb") as out, self._files["err"].open("wb") as err:
            command = [*ROWSTEAD, "launch", *flags, str(path), *arguments]
            self.process = subprocess.Popen(command, stdout=out, stderr=err, env=environment)

    @property
    def out(self) -> str:
        return self._files["out"].read_text()

    @property
    def err(self) -> str:
        return self._files["err"].read_text()

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until it has printed `text`, on either stream."""
        poll_until(lambda: (self.out + self.err).count(text) >= times or self.process.poll() is not None, END_TIMEOUT_S)
        assert (self.out + self.err).count(text) >= times, f"it ended with {self.process.returncode}: {self.err}"

    def wait(self, timeout_s: float = END_TIMEOUT_S) -> int:
        """Wait for its end; return its exit code."""
        return self.process.wait(timeout_s)

    def pids(self) -> dict[str, int]:
        """Return the process ids by name, once all are started; after a restart its new one."""
        self.wait_for("Process ids: ")
        err = self.err
        (listed,) = re.findall(r"Process ids: (.*)\.", err)
        pids = {name: int(pid) for name, pid in (entry.split() for entry in listed.split(", "))}
        return pids | {name: int(pid) for name, pid in re.findall(r"launch \| (\S+) runs again as process (\d+)\.", err)}

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def said(self) -> list[str]:
        """Return the lines of the launcher itself."""
        return [line.removeprefix("launch | ") for line in self.err.splitlines() if line.startswith("launch | ")]


@contextmanager
def launched(
    folder: Path,
    script: str,
    *arguments: str,
    servers: int = 1,
    workers: int = 2,
    max_restarts: int = 0,
    flags: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Launched]:
    """Run the script for the length of the block. Unlike a user's, what fails ends it at once, or a test of it would take minutes."""
    counts = (f"--servers={servers}", f"--workers={workers}", f"--max-restarts={max_restarts}")
    launch = Launched(folder, script, (*counts, *flags), arguments, environment)
    try:
        yield launch
    finally:
        launch.process.kill()
        launch.process.wait()


def wait_until_gone(processes: list[psutil.Process]) -> None:
    """Fail where one of them goes on to run; a process that nobody has reaped (a zombie) has ended."""
    assert processes
    poll_until(lambda: not any(runs(process) for process in processes), timeout_s=10.0)


def runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
