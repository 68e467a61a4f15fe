"""Processes of ours, started by hand as a user would."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from polling import poll_until

ROWSTEAD = (sys.executable, "-m", "ps_worker.cli")


class Started:
    """A running `rowstead` verb; `log` is what it says on stderr so far."""

    def __init__(self, folder: Path, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        self._announced = folder / f"{name}.address"
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen([*ROWSTEAD, *arguments, f"--announce={self._announced}"], stdin=subprocess.DEVNULL, stderr=log)

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def address(self) -> str:
        """Return where it listens, once it does."""
        poll_until(lambda: self._announced.exists() or self.process.poll() is not None)
        assert self._announced.exists(), f"{self.name} ended with {self.process.returncode}: {self.log}"
        return self._announced.read_text().strip()

    def wait_for_log(self, text: str, timeout_s: float = 60.0) -> None:
        """Wait until it has said `text`; the first start ever compiles the kernels."""
        poll_until(lambda: text in self.log or self.process.poll() is not None, timeout_s)
        assert text in self.log, f"{self.name} ended with {self.process.returncode}: {self.log}"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def started(folder: Path, name: str, *arguments: str) -> Iterator[Started]:
    """Run `rowstead ARGUMENTS` for the length of the block."""
    process = Started(folder, name, arguments)
    try:
        yield process
    finally:
        process.end()


def rowstead(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `rowstead ARGUMENTS` to its end."""
    return subprocess.run([*ROWSTEAD, *arguments], capture_output=True, text=True, timeout=60, check=False)
