"""How far training is: a bar on a terminal, under `rowstead launch` too, else a plain line a second."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

LINE_EVERY_S = 1.0
BAR_WIDTH = 30

Tell = Callable[[int, float], None]  # (rows done, by one rank's reckoning: it may go beyond their number; mean loss so far)


@contextmanager
def progress(title: str, rows_total: int, is_shown: bool) -> Iterator[Tell]:
    """Yield what a training loop calls after each step."""
    if not is_shown:
        yield lambda rows, loss: None
    elif sys.stdout.isatty():
        with _bar(title, rows_total) as tell:
            yield tell
    else:
        yield Lines(title, rows_total, is_redrawn="ROWSTEAD_TERMINAL" in os.environ)


class Lines:
    """Prints a line with a bar at most each LINE_EVERY_S, and one when all rows are done.

    `is_redrawn`: each over the one before, as `rowstead launch` shows them on a terminal.
    """

    def __init__(self, title: str, rows_total: int, is_redrawn: bool = False) -> None:
        self._end = "\r" if is_redrawn else "\n"
        self._title = title
        self._rows_total = rows_total
        self._begin_s = self._told_s = time.perf_counter()

    def __call__(self, rows: int, loss: float) -> None:
        rows = min(rows, self._rows_total)
        now_s = time.perf_counter()
        if now_s - self._told_s < LINE_EVERY_S and rows < self._rows_total:
            return
        self._told_s = now_s
        share = rows / self._rows_total
        bar = "#" * int(share * BAR_WIDTH)
        text = f"{self._title} [{bar:.<{BAR_WIDTH}}] {share:>4.0%} {_numbers(rows, now_s - self._begin_s, loss)}"
        print(text, end=self._end if rows < self._rows_total else "\n", flush=True)


@contextmanager
def _bar(title: str, rows_total: int) -> Iterator[Tell]:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[numbers]}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(file=sys.stdout)) as shown:
        task = shown.add_task(title, total=rows_total, numbers="")
        begin_s = time.perf_counter()

        def tell(rows: int, loss: float) -> None:
            done = min(rows, rows_total)
            shown.update(task, completed=done, numbers=_numbers(done, time.perf_counter() - begin_s, loss))

        yield tell


def _numbers(rows: int, seconds: float, loss: float) -> str:
    return f"{rows:>11,} rows {rows / seconds:>8,.0f} samples/s, loss {loss:.4f}"
