"""Whole lines from a stream of bytes, whatever the pieces it comes in; progress bars at a pace that can be read."""

import pytest

from ps_worker.launch.lines import LINE_BYTES_MAX, LineSplitter


def split(data: bytes, piece: int) -> list[bytes]:
    splitter = LineSplitter()
    lines = [line for begin in range(0, len(data), piece) for line in splitter.feed(data[begin : begin + piece], now_s=0.0)]
    return lines + splitter.end()


@pytest.mark.parametrize("piece", [1, 2, 3, 100])
def test_lines_are_the_same_in_any_pieces(piece: int) -> None:
    assert split(b"one\ntwo\r\n\nfour\xff\nno end", piece) == [b"one", b"two", b"", b"four\xff", b"no end"]


@pytest.mark.parametrize("piece", [1, 2, 3, 100])
def test_a_progress_bar_shows_its_first_state_and_its_last(piece: int) -> None:
    bar = b"".join(b"\r%3d%%" % percent for percent in range(0, 101, 10))
    assert split(b"begin\n" + bar + b"\nend\n", piece) == [b"begin", b"  0%\r", b"100%", b"end"]


def test_a_progress_bar_is_shown_once_a_second() -> None:
    splitter = LineSplitter(update_every_s=1.0)
    shown = [splitter.feed(b"\r%d" % tick, now_s=tick / 10) for tick in range(30)]
    assert [line for lines in shown for line in lines] == [b"0\r", b"10\r", b"20\r"]  # a state is known to be whole once the next begins


def test_a_bar_that_ends_unfinished_shows_its_last_state() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"\r1\r2\r3\r", now_s=0.0) == [b"1\r"]
    assert splitter.end() == [b"3"]


def test_a_bar_that_is_wiped_away_leaves_nothing() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"\r1\r2\r   \rdone\n", now_s=0.0) == [b"1\r", b"done"]
    assert splitter.end() == []


def test_a_line_without_end_is_cut() -> None:
    splitter = LineSplitter()
    lines = splitter.feed(b"x" * (2 * LINE_BYTES_MAX + 1), now_s=0.0) + splitter.end()
    assert [len(line) for line in lines] == [LINE_BYTES_MAX, LINE_BYTES_MAX, 1]
