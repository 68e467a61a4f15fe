"""The progress of a training loop where there is no terminal."""

import pytest

from progress import progress


def test_lines_are_rare_and_the_last_one_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("epoch 1", 3_000, is_shown=True) as tell:
        for rows in range(2, 3_002, 2):  # within a second
            tell(rows, 0.25)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("epoch 1 [##############################] 100%       3,000 rows")
    assert line.endswith("samples/s, loss 0.2500")


def test_rows_beyond_the_total_count_as_the_total(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("epoch 1", 3, is_shown=True) as tell:
        tell(4, 0.5)  # a rank with 2 rows of 3, times two ranks
    assert " 100%           3 rows" in capsys.readouterr().out


def test_other_ranks_show_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("epoch 1", 3, is_shown=False) as tell:
        tell(3, 0.5)
    assert capsys.readouterr().out == ""


def test_under_launch_on_a_terminal_the_bar_is_redrawn(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWSTEAD_TERMINAL", "1")
    monkeypatch.setattr("progress.LINE_EVERY_S", 0.0)
    with progress("epoch 1", 3, is_shown=True) as tell:
        for rows in (1, 2, 3):
            tell(rows, 0.5)
    shown = capsys.readouterr().out
    assert (shown.count("\r"), shown.count("\n"), shown[-1]) == (2, 1, "\n")
