"""The AUC of each mode, from what `python -m benchmarks.accuracy_staleness --sweep bounds --json FILE` wrote."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SWEEP, BOUND = "bounds", "--bound="


def read_auc(path: Path) -> dict[str, list[float]]:
    """Return {mode: the AUC of each seed}, the modes as modes.py calls them; without that sweep none."""
    return {_mode(row["setting"]): row["aucs"] for row in json.loads(path.read_text())["rows"] if row["sweep"] == SWEEP}


def _mode(setting: Mapping[str, Any]) -> str:
    """Return "sync", "async", or the bound."""
    bounds: list[str] = [option.removeprefix(BOUND) for option in setting["options"] if option.startswith(BOUND)]
    mode: str = setting["mode"]
    return bounds[0] if bounds else mode
