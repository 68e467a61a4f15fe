"""A peer's client process, as the process that measures sees it; and how a process is started that ends with the one that started it."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.case import WrongAnswer
from benchmarks.peers.roster import Peer
from ps_worker.launch import tethered

ROOT = Path(__file__).parents[2]
ANSWER_S = 600.0
END_S = 30.0
LOG_CHARACTERS = 2_000


class PeerFailed(Exception):
    """A peer that is installed did not do its work; the text has what its processes said last."""


class RunningPeer:
    """The other end of `client.py`: one line of JSON there, one back."""

    def __init__(self, peer: Peer, connection: socket.socket, log: Path) -> None:
        self.peer = peer
        self._log = log
        self._lines = connection.makefile("rw", encoding="utf-8")

    def ask(self, order: str, case: str = "") -> tuple[float, ...]:
        """Have it do one thing; return the values. Raises PeerFailed, and WrongAnswer with the peer's name."""
        try:
            self._lines.write(json.dumps({"order": order, "case": case}) + "\n")
            self._lines.flush()
        except OSError as error:
            raise self._failed() from error
        return self.answer()

    def answer(self) -> tuple[float, ...]:
        try:
            line = self._lines.readline()
        except OSError as error:
            raise self._failed() from error
        if not line:
            raise self._failed()
        said: dict[str, Any] = json.loads(line)
        if "wrong" in said:
            raise WrongAnswer(f"{self.peer.name}: {said['wrong']}")
        return tuple(said["values"])

    def _failed(self) -> PeerFailed:
        return PeerFailed(
            f"{self.peer.name} ended or did not answer; it said last:\n{self._log.read_text(errors='replace')[-LOG_CHARACTERS:]}"
        )


@contextmanager
def running(peer: Peer, environment: Mapping[str, str], quick: bool, seed: int) -> Iterator[RunningPeer]:
    """Run the peer's client, and with it its server, for the length of the block; both are ready when it begins."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, log.open("wb") as written:
                command = [sys.executable, "-m", "benchmarks.peers.client", peer.name, str(theirs.fileno()), str(int(quick)), str(seed)]
                process = subprocess.Popen(
                    tied(command),
                    cwd=ROOT,
                    env={
                        **os.environ,
                        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
                        **peer.environment,
                        **environment,
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=written,
                    stderr=written,
                    pass_fds=(theirs.fileno(),),
                )
            try:
                ours.settimeout(ANSWER_S)
                client = RunningPeer(peer, ours, log)
                client.answer()
                yield client
                client.ask("end")
            finally:
                with suppress(OSError):  # it has gone already
                    ours.shutdown(socket.SHUT_RDWR)
                ended(process)


@contextmanager
def serving(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a peer's server for the length of the block, with its stdout as a pipe."""
    process = subprocess.Popen(tied(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        ended(process)
        assert process.stdout is not None
        process.stdout.close()


def tied(command: Sequence[str]) -> list[str]:
    """Return the command that runs this one and ends with this process, however this one ends. Start it from the main thread."""
    return [sys.executable, "-I", "-S", tethered.__file__, str(os.getpid()), *command]


def ended(process: subprocess.Popen[Any]) -> None:
    """Wait for the end of a process that has been told, and kill it where it does not come."""
    try:
        process.wait(timeout=END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
