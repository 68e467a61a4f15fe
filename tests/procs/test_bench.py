"""The benchmarks at small sizes: they run, they write what they found, and a wrong answer fails. No time is looked at."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.case import Goal
from benchmarks.harness import measure
from benchmarks.machine import commit
from ps_worker.client import Client

SPREAD = {"median", "min", "max", "rounds"}


def run_quick(path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and what was written."""
    code = main(["--quick", "--json", str(path), "--seed", "3", *arguments])
    return code, json.loads(path.read_text())


def test_every_case_of_traffic_runs_and_is_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, written = run_quick(tmp_path / "bench.json", *[f"--case={name}" for name in ("W1", "W2", "W2-pulled", "W3", "W4", "W6")])
    assert code == 0, capsys.readouterr().err
    assert (written["seed"], written["quick"], written["wrong_answer"], written["commit"]) == (3, True, None, commit())
    assert {"cpu", "cores", "memory", "system", "python", "numpy", "numba", "grpcio", "load"} == set(written["machine"])
    results = written["results"]
    pulls = [f"W1 pull, {transport}" for transport in ("arena", "unix", "tcp", "grpc")]
    others = [
        "W2 push, arena",
        "W2 after a pull, arena",
        "W2 after a pull, arena",
        "W3 dense, arena",
        "W3 dense, arena",
        "W4 pull of 16, arena",
        "W4 pull of 16, arena",
    ]
    assert [result["case"] for result in results] == [*pulls, *others, "W6 growth", "W6 growth"]
    for result in results:
        assert {"case", "figure", "unit", "ours", "floor", "ratio", "goal"} == set(result)
        assert {"of", "kind", "bound", "holds"} == set(result["goal"])
        for spread in (result["ours"], result["floor"], result["ratio"]):
            assert set(spread) == SPREAD
            assert 0 < spread["min"] <= spread["median"] <= spread["max"]
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*pulls, *others, "W6 growth"))


def test_checkpoints_are_written_and_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, written = run_quick(tmp_path / "bench.json", "--case=checkpoint")
    assert code == 0, capsys.readouterr().err
    assert [(result["case"], result["figure"]) for result in written["results"]] == [
        ("checkpoint, written", "time"),
        ("checkpoint, written", "longest turn"),
        ("checkpoint, written", "longest pull"),
        ("checkpoint, loaded", "from the disk"),
        ("checkpoint, loaded", "from memory"),
        ("checkpoint, 1 % touched", "time"),
    ]


@pytest.mark.deep  # that a job recovers is what test_crash_sync.py shows each time
def test_a_job_recovers_whoever_is_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, written = run_quick(tmp_path / "bench.json", "--case=recover")
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert [(result["case"], result["figure"]) for result in written["results"]] == [
        ("recover, worker", "until the next step"),
        ("recover, server", "until the next step"),
        ("recover, coordinator", "until it is back"),
        ("recover, coordinator", "longest step"),
    ]
    assert printed.out.count("steps done again: ") == 3  # it says where the time went


@pytest.mark.usefixtures("hasty")
def test_training_runs_beside_plain_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, written = run_quick(tmp_path / "bench.json", "--case=W5")
    assert code == 0, capsys.readouterr().err
    assert [result["figure"] for result in written["results"]] == [
        "plain / compute",
        "1 worker",
        "2 workers",
        "1 worker, CPU",
        "2 workers, CPU",
    ]


def another_bit(pull: Callable[..., Any]) -> Callable[..., Any]:
    """One number of what is pulled differs in its last bit."""

    def pulled(*arguments: Any) -> Any:
        rows = pull(*arguments).copy()
        rows.view(np.uint32)[-1, -1] ^= 1
        return rows

    return pulled


def one_row_less(push: Callable[..., Any]) -> Callable[..., Any]:
    """The last row never arrives."""
    return lambda client, table, ids, gradients: push(client, table, ids[:-1], gradients[:-1])


@pytest.mark.parametrize(
    ("case", "method", "wrong"),
    [("W1", "pull", another_bit), ("W2", "push", one_row_less), ("W3", "push", one_row_less), ("W4", "pull", another_bit)],
)
def test_a_wrong_answer_fails(
    case: str, method: str, wrong: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Client, method, wrong(getattr(Client, method)))
    code, written = run_quick(tmp_path / "bench.json", "--case", case, "--transport", "grpc")
    assert code == 1
    assert "1 of " in written["wrong_answer"]
    assert written["wrong_answer"] in capsys.readouterr().err
    assert written["results"] == []


def test_floor_and_ours_take_turns_and_the_ratio_is_of_one_round() -> None:
    told: list[str] = []

    class Told:
        name = "told"
        figures = ()

        def __getattr__(self, name: str) -> Callable[[], tuple[float, ...]]:
            def note() -> tuple[float, ...]:
                told.append(name)
                return ()

            return note

    assert measure(Told(), rounds=2, warm_ups=1) == []  # type: ignore[arg-type]
    assert told == ["prepare", "floor", "ours", "check"] * 3
    assert Goal("at least", 0.5).ratio(ours=4.0, floor=1.0) == 0.25
    assert Goal("at most", 2.5).ratio(ours=4.0, floor=1.0) == 4.0
    assert Goal("at least", 0.5).holds(0.5) and not Goal("at least", 0.5).holds(0.49)  # noqa: PT018  # one bound, both sides
    assert Goal("at most", 2.5).holds(2.5) and not Goal("at most", 2.5).holds(2.51)  # noqa: PT018
