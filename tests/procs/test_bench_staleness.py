"""W8 at small sizes: it runs, and writes what it found. No time is looked at."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.accuracy_staleness import BOUNDED, SYNC, Row
from benchmarks.machine import commit
from benchmarks.staleness.__main__ import main


def test_modes_run_with_each_kind_of_stragglers_and_are_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row("bounds", SYNC, [0.75, 0.76], [1.0], 0.0, 0), Row("bounds", BOUNDED[4], [0.74], [1.0], 0.0, 0)]
    rows.append(Row("straggler", SYNC.slowed(), [0.5], [1.0], 0.0, 0))
    (tmp_path / "auc.json").write_text(json.dumps({"rows": [asdict(row) for row in rows]}))
    path = tmp_path / "staleness.json"
    code = main(["--quick", "--json", str(path), "--seed", "3", "--auc", str(tmp_path / "auc.json")])
    written = json.loads(path.read_text())
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert (written["wrong_answer"], written["auc"]) == (None, {"sync": [0.75, 0.76], "4": [0.74]})
    assert (written["seed"], written["quick"], written["commit"]) == (3, True, commit())
    found = written["findings"]
    assert [(one["mode"], one["stragglers"]) for one in found] == [
        (mode, stragglers) for mode in ("sync", "2") for stragglers in ("none", "one", "random")
    ]
    for one in found:
        assert len(one["idle_of"]) == written["workers"] == 2
        assert 0 < min(one["idle_of"]) <= one["idle"] <= max(one["idle_of"]) < 1
        assert written["accelerator_ms"] <= one["accelerator_ms"] <= one["slowest_ms"]
    assert {one["staleness"] for one in found if one["mode"] == "sync"} == {0.0}
    assert max(one["staleness"] for one in found if one["mode"] == "2") <= 2.0
    assert printed.out.count("bound 2") == 3
