"""The AUC of each mode, out of what the accuracy sweep wrote."""

import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.accuracy_staleness import SWEEPS, Row
from benchmarks.staleness.accuracy import read_auc
from benchmarks.staleness.modes import MODES


def test_every_mode_of_the_sweep_over_the_bounds_is_found_and_no_other_sweeps(tmp_path: Path) -> None:
    settings = [(sweep, setting) for sweep in SWEEPS for setting in SWEEPS[sweep]]
    rows = [asdict(Row(sweep, setting, [0.5 + k / 100, 0.6], [1.0, 1.0], 0.0, 0)) for k, (sweep, setting) in enumerate(settings)]
    path = tmp_path / "accuracy.json"
    path.write_text(json.dumps({"rows": rows}))
    first = next(k for k, (sweep, _) in enumerate(settings) if sweep == "bounds")
    assert read_auc(path) == {mode: [0.5 + (first + k) / 100, 0.6] for k, mode in enumerate(MODES)}
