"""What the pages show runs as it stands there: all blocks of Python of a page, in order, in one interpreter and an empty folder."""

import subprocess
import sys
from pathlib import Path

import pytest

from pages import Page, all_pages
from procs.hasty_script import hasty_environment

PAGES = [page for page in all_pages() if page.script().strip()]
RUN_TIMEOUT_S = 100.0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Page, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    script = tmp_path / Path(page.name).with_suffix(".py").name
    script.write_text(page.script())
    ran = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=folder,
        env=hasty_environment(),
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, f"line numbers are those of {page.name}\n{ran.stderr}"


def test_there_are_pages_to_run() -> None:
    assert {"README.md", "docs/keeping.md"} <= {page.name for page in PAGES}
