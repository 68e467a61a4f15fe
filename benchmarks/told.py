"""A process that does what it is told, line by line, and answers in lines."""

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self


class Told:
    """`python -m MODULE ARGUMENTS`, for the length of a `with` block: it ends at the end of its input, or is killed after an error."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-W", "ignore", "-m", module, *arguments]

    def __enter__(self) -> Self:
        folder = Path(__file__).parents[1]
        self.process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self.process.kill()  # it may wait for one that has ended
        self.process.communicate(timeout=60.0)

    def hear(self) -> str:
        """Return the next line that it prints; RuntimeError where it has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"A process has ended: {' '.join(self._command)}")
        return line

    def tell(self, order: str) -> None:
        """Let it do this."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
