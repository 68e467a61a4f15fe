"""A command line that is refused: run in this process, where it would have cost one of its own."""

import sys
from collections.abc import Callable

import pytest


def refused(main: Callable[[], None], arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Run `main` with these arguments of a process; return what it wrote to stderr, and see that it ends with 2 and prints nothing."""
    monkeypatch.setattr(sys, "argv", ["program", *arguments])
    with pytest.raises(SystemExit) as exited:
        main()
    said = capsys.readouterr()
    assert (exited.value.code, said.out) == (2, "")
    return said.err
