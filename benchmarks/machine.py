"""What the numbers are of: the machine, the versions, the commit, the day."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def describe_machine() -> dict[str, Any]:
    """Return facts about this machine; `load` is the number of processes that wanted a core in the last minute."""
    return {
        "cpu": _first_value(Path("/proc/cpuinfo"), "model name") or platform.processor(),
        "cores": cores(),
        "memory": _first_value(Path("/proc/meminfo"), "MemTotal"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{package: version(package) for package in ("numpy", "numba", "grpcio")},
        "load": os.getloadavg()[0],
    }


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))


def about_run(seed: int, quick: bool) -> dict[str, Any]:
    """Return what a file of results is of."""
    day = datetime.now(UTC).date().isoformat()
    return {"machine": describe_machine(), "commit": commit(), "date": day, "seed": seed, "quick": quick}


def commit() -> str:
    """Return the commit that is checked out, with "+" where files differ from it; "unknown" without git."""
    head = _git("rev-parse", "HEAD")
    return "unknown" if head is None else head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str | None:
    try:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _first_value(path: Path, key: str) -> str:
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
