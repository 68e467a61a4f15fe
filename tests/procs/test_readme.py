"""What the README shows runs as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.splitlines()[0])
def test_python_runs(snippet: str, tmp_path: Path) -> None:
    script = tmp_path / "snippet.py"
    script.write_text(snippet)
    ran = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout


def test_there_is_a_snippet() -> None:
    assert SNIPPETS


def test_every_file_it_names_exists() -> None:
    names = re.findall(r"`([\w./*]+/[\w./*]*)`", README.read_text())
    assert names
    missing = [name for name in names if not (any(README.parent.glob(name)) if "*" in name else (README.parent / name).exists())]
    assert missing == []
