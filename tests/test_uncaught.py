"""How a script ends that nobody keeps from it."""

import gc
import sys

import pytest

from ps_proto.errors import RolledBack
from ps_worker.uncaught import shorten_rollbacks


def shown(error: BaseException, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what is printed of an error that came through this frame."""
    try:
        raise error
    except BaseException as raised:
        sys.excepthook(type(raised), raised, raised.__traceback__)
    return capsys.readouterr().err


def test_a_rollback_is_one_line_and_all_else_as_ever(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(gc, "freeze", lambda: None)  # these tests go on
    shorten_rollbacks()
    once = sys.excepthook
    shorten_rollbacks()
    assert sys.excepthook is once
    (line,) = shown(RolledBack(1, 210, 1), capsys).splitlines()
    assert line.startswith("RolledBack: The cluster lost a server and went back to its last checkpoint (timeline 1), where rank 1 goes on")
    assert shown(ValueError("another one"), capsys).startswith("Traceback (most recent call last):")
