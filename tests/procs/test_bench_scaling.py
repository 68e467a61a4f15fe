"""W7 at small sizes: it runs, it writes what it found, and a wrong answer fails. No time is looked at."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.machine import commit
from benchmarks.scaling.__main__ import main
from ps_worker.client import Client

SPREAD = {"median", "min", "max", "rounds"}


def run_quick(path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and what was written."""
    code = main(["--quick", "--json", str(path), "--seed", "3", *arguments])
    written = json.loads(path.read_text())
    assert (written["seed"], written["quick"], written["commit"]) == (3, True, commit())
    assert len(written["date"]) == len("2026-11-20")
    return code, written


def test_every_curve_runs_and_is_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, written = run_quick(tmp_path / "scaling.json")
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert written["wrong_answer"] is None
    curves = {curve["case"]: curve for curve in written["curves"]}
    assert {name: [point["at"] for point in curve["points"]] for name, curve in curves.items()} == {
        "W7-ids": [100, 1_000],
        "W7-rows": [1_000, 4_000],
        "W7-servers": [2],
        "W7-workers 16": [2],
    }
    for curve in curves.values():
        assert curve["note"] in printed.out
        for point in curve["points"]:
            assert {"at", "left_out", *curve["units"]} == set(point)
            assert point["left_out"] is None
            for name in curve["units"]:
                assert set(point[name]) == SPREAD
                assert 0 < point[name]["min"] <= point[name]["median"] <= point[name]["max"]


def last_bit(pull: Callable[..., Any]) -> Callable[..., Any]:
    """One number of what is pulled differs in its last bit."""

    def pulled(*arguments: Any) -> Any:
        rows = pull(*arguments).copy()
        rows.view(np.uint32)[-1, -1] ^= 1
        return rows

    return pulled


def test_a_wrong_answer_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Client, "pull", last_bit(Client.pull))
    code, written = run_quick(tmp_path / "scaling.json", "--case", "rows")
    assert (code, written["curves"]) == (1, [])
    assert written["wrong_answer"] in capsys.readouterr().err
