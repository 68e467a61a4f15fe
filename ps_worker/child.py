"""A process that this one started, and how it ended."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ps_proto.errors import ClusterFailed
from ps_worker.process_log import ProcessLog

POLL_S = 0.02
SIGNALLED = 128  # a shell's exit code for a process that a signal ended is this and the signal's number


@dataclass(eq=False)
class ProcessEnded(ClusterFailed):
    """A process that has ended and should not have. `exit_code`: as a shell has it, so 137 for one that SIGKILL ended."""

    exit_code: int


class Child:
    """The process of `command` under the name `name`. All it prints goes to `log`. Raises ClusterFailed where it cannot be started.

    It has its own session, so that a Ctrl-C at the terminal reaches only this process, which then decides, and so that all it starts
    itself can be ended with it: nothing of that outlives it.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: ProcessLog, pass_fds: Sequence[int] = ()
    ) -> None:
        self.name = name
        self._log = log
        try:
            self._process = _start(command, environment, log, pass_fds)
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started, as one is for each pipe
            why = (isinstance(error, OSError) and error.strerror) or str(error)
            raise ClusterFailed(name, f"could not be started: {why}", "") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code once the process has ended, negative for a signal's number; else None.

        It is 0 for one whose code was lost, because this process ignores SIGCHLD.
        """
        if self._process.returncode is None:
            try:
                has_ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            except ChildProcessError:  # it was reaped already, as happens where SIGCHLD is ignored: its number may be somebody else's
                self._process.wait()
            else:
                if has_ended:
                    self._kill_group()  # before it is reaped: until then its group's number is nobody else's
                    self._process.wait()
        return self._process.returncode

    def how_it_ended(self) -> str | None:
        """Return what is said of a process that has ended, as "was killed by SIGKILL"; None while it runs."""
        code = self.poll()
        if code is None:
            return None
        return f"was killed by {_name_of(-code)}" if code < 0 else f"ended with exit code {code}"

    def check(self) -> None:
        """Raise ProcessEnded if the process has ended."""
        how, code = self.how_it_ended(), self.poll()
        if how is not None and code is not None:
            raise ProcessEnded(self.name, how, self._last_lines(), SIGNALLED - code if code < 0 else code)

    def failed(self, reason: str) -> ClusterFailed:
        """Return the error that says `reason` of this process and shows the end of its log."""
        return ClusterFailed(self.name, reason, self._last_lines())

    def signal(self, number: int) -> None:
        """Send it a signal, which is fine for one that has ended."""
        if self.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it and all that it started, without waiting."""
        if self._process.returncode is None:
            self._kill_group()

    def wait_or_kill(self, timeout_s: float) -> None:
        """Wait for the end of the process; kill it after `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while self.poll() is None:
            if time.monotonic() >= deadline_s:
                self.kill()
            time.sleep(POLL_S)

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _last_lines(self) -> str:
        return "\n".join(self._log.last_lines())


def _start(command: Sequence[str], environment: Mapping[str, str], log: ProcessLog, pass_fds: Sequence[int]) -> "subprocess.Popen[bytes]":
    stdout, stderr = log.open()
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    finally:
        os.close(stdout)
        os.close(stderr)


def _name_of(number: int) -> str:
    return signal.Signals(number).name if number in {*signal.Signals} else f"signal {number}"
