"""Other people's stores beside ours at small sizes: they run, a wrong answer fails, and who is not there is told. No time is looked at."""

import json
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import psutil
import pytest

from benchmarks.bed import DIM, Rows
from benchmarks.case import WrongAnswer
from benchmarks.dense import LEARNING_RATE
from benchmarks.harness import Spread
from benchmarks.machine import ROOT
from benchmarks.peers.__main__ import main
from benchmarks.peers.loopback import may_have_own_network
from benchmarks.peers.memory import allocators
from benchmarks.peers.roster import PEERS
from benchmarks.peers.running import PeerFailed, running
from benchmarks.peers.store import DenseStore, Places, Store, adagrad
from benchmarks.peers.table import Line, printed, quoted
from benchmarks.peers.work import WORKS, Mirror, peer_sizes, works
from polling import poll_until

TORCH = next(peer for peer in PEERS if peer.name == "torch.rpc")
FIGURES = [("W1", "a pull"), ("W2", "a push"), ("W3", "a pull"), ("W3", "a push"), ("W4", "p50"), ("W4", "p99")]


def run_quick(path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and what was written."""
    code = main(["--quick", "--json", str(path), "--seed", "3", *arguments])
    return code, json.loads(path.read_text())


@pytest.mark.deep
@pytest.mark.usefixtures("hasty")
def test_torch_rpc_and_ours_do_every_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, written = run_quick(tmp_path / "peers.json", "--peer=torch.rpc", "--memory=shipped")
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert (written["seed"], written["quick"]) == (3, True)
    assert written["peers"] == {"torch.rpc": {"version": TORCH.version(), "absent": None, "wrong": None}}
    results = written["results"]
    assert [(result["case"], result["figure"]) for result in results] == FIGURES
    for result in results:
        assert (result["peer"], result["memory"], result["through"], result["quoted"]) == ("torch.rpc", "shipped", "arena", True)
        for spread in (result["theirs"], result["ours"], result["ratio"]):
            assert len(spread["rounds"]) == peer_sizes(quick=True).rounds
            assert 0 < spread["min"] <= spread["median"] <= spread["max"]
        ratio, ours, theirs = (result[name]["rounds"][0] for name in ("ratio", "ours", "theirs"))
        assert ratio == pytest.approx(theirs / ours if result["unit"] == "µs" else ours / theirs)
    table = [line for line in printed.out.splitlines() if line.endswith(" *")]
    assert [line.split()[2:4] for line in table] == [[case, figure.removeprefix("a ")] for case, figure in FIGURES]
    assert f"torch.rpc: {TORCH.version()}" in printed.out


def test_who_is_not_installed_is_told_with_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing_is(name: str) -> NoReturn:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("benchmarks.peers.roster.version", nothing_is)
    code, written = run_quick(tmp_path / "peers.json", "--peer=ray", "--peer=redis", "--peer=tensorflow")
    assert code == 0
    assert written["results"] == []
    assert {name: peer["version"] for name, peer in written["peers"].items()} == {"ray": None, "redis": None, "tensorflow": None}
    told = capsys.readouterr().out
    assert "ray: not installed: pip install ray\n" in told
    assert "redis: not installed: pip install 'redis[hiredis]', and redis-server from your system's packages\n" in told
    assert "tensorflow: not installed: pip install tensorflow-cpu\n" in told


def test_a_program_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    peer = replace(TORCH, programs=("no-such-server",))
    assert "no no-such-server on PATH" in (peer.absent() or "")


class InProcess(DenseStore):
    """A store without a server, which can lose something on the way: nothing, a "row" or a "push"."""

    def __init__(self, loses: str) -> None:
        self._loses = loses

    def create(self, num_rows: int) -> None:
        self._rows = np.zeros((num_rows, DIM), np.float32)
        self._state = np.zeros_like(self._rows)

    def assign(self, keys: Places, rows: Rows) -> None:
        self._rows[keys] = rows

    def pull(self, keys: Places) -> Rows:
        return self._lossy(self._rows[keys])

    def push(self, keys: Places, gradients: Rows) -> None:
        keys, gradients = (keys[:-1], gradients[:-1]) if self._loses == "push" else (keys, gradients)
        rows, state = self._rows[keys], self._state[keys]
        adagrad(rows, state, gradients)
        self._rows[keys], self._state[keys] = rows, state

    def create_dense(self, values: Rows) -> None:
        self._dense = values.copy()

    def pull_dense(self) -> Rows:
        return self._lossy(self._dense.copy())

    def push_dense(self, gradients: Rows) -> None:
        kept = len(gradients) - (self._loses == "push")
        self._dense[:kept] -= np.float32(LEARNING_RATE) * gradients[:kept]

    def _lossy(self, rows: Rows) -> Rows:
        if self._loses == "row":
            rows[-1, -1] += np.float32(0.01)
        return rows


@pytest.mark.parametrize(("case", "loses"), [("W1", "row"), ("W2", "push"), ("W3", "row"), ("W3", "push"), ("W4", "row")])
def test_a_peer_that_answers_wrong_fails(case: str, loses: str) -> None:
    def one_round(store: Store) -> None:
        sizes = peer_sizes(quick=True)
        mirror = Mirror(sizes, np.random.default_rng(3))
        mirror.fill(store)
        work = works(store, mirror, sizes, {case})[case]
        work.prepare()
        assert all(value > 0.0 for value in work.run())
        work.check()

    one_round(InProcess(loses="nothing"))
    with pytest.raises(WrongAnswer, match="1 of "):
        one_round(InProcess(loses))


def test_a_peer_that_fails_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(PeerFailed, match=r"nobody ended or did not answer; it said last:\n(.|\n)*ValueError"),
        running(replace(TORCH, name="nobody"), {}, quick=True, seed=0),
    ):
        pass


def test_a_peers_processes_end_with_the_one_that_measures() -> None:
    script = """
import sys
from benchmarks.peers.roster import PEERS
from benchmarks.peers.running import running
with running(PEERS[0], {}, quick=True, seed=0):
    print("ready", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as measuring:
        assert measuring.stdout is not None
        assert measuring.stdout.readline() == b"ready\n"
        children = psutil.Process(measuring.pid).children(recursive=True)
        assert len(children) == 2  # client and server
        measuring.kill()
        poll_until(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children))


def line(memory: str, unit: str, theirs: float) -> Line:
    spread = Spread((theirs,))
    return Line(TORCH, memory, "arena", "W4" if unit == "µs" else "W1", "it", unit, spread, spread, spread)


def test_what_is_quoted_is_their_best() -> None:
    lines = [line("shipped", "M rows/s", 1.0), line("shipped", "µs", 500.0), line("glibc", "M rows/s", 3.0), line("glibc", "µs", 600.0)]
    assert quoted(lines) == {1, 2}
    assert [[*text.split()[1:3], text[-1:]] for text in printed(lines)] == [
        ["shipped", "W1", "]"],
        ["glibc", "W1", "*"],
        ["shipped", "W4", "*"],
        ["glibc", "W4", "]"],
    ]


def test_every_peer_tells_what_it_does_in_cases_that_there_are() -> None:
    assert len({peer.name for peer in PEERS}) == len(PEERS)
    for peer in PEERS:
        assert set(peer.notes) <= set(WORKS)
        assert (ROOT / "benchmarks" / "peers" / f"{peer.module}.py").exists()
    assert list(allocators())[:2] == ["shipped", "glibc"]


@pytest.mark.skipif(not may_have_own_network(), reason="this system lets us make no network namespace")
def test_a_network_of_its_own_has_loopback_and_nothing_else() -> None:
    script = """
import socket
from benchmarks.peers.loopback import enter_own_network
enter_own_network()
with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
    print([name for _, name in socket.if_nameindex()])
"""
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == "['lo']\n"
