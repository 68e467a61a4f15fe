"""Lines of many processes on our own two streams."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ps_worker.launch.console import Console


def written(path: Path, *calls: tuple[str, list[bytes], bool]) -> tuple[bytes, bytes]:
    """Return what a console wrote to its stdout and stderr."""
    streams = [os.open(path / name, os.O_WRONLY | os.O_CREAT) for name in ("stdout", "stderr")]
    console = Console({}, *streams)
    for call in calls:
        console.write(*call)
    for stream in streams:
        os.close(stream)
    return (path / "stdout").read_bytes(), (path / "stderr").read_bytes()


def test_each_line_has_its_process_before_it(tmp_path: Path) -> None:
    calls = [("worker-0", [b"a", b"", b"\xff"], False), ("server-0", [b"b"], True)]
    assert written(tmp_path, *calls) == (b"worker-0 | a\nworker-0 | \nworker-0 | \xff\n", b"server-0 | b\n")


def test_names_have_colours_on_a_terminal_alone() -> None:
    reader, terminal = os.openpty()
    try:
        for environment in ({}, {"NO_COLOR": "1"}, {"TERM": "dumb"}):
            console = Console(environment, stdout=terminal)
            console.write("worker-0", [b"a"], is_error=False)
            console.write("worker-1", [b"b"], is_error=False)
        os.close(terminal)
        expected = b"\x1b[36mworker-0 | \x1b[0ma\r\n\x1b[33mworker-1 | \x1b[0mb\r\n" + 2 * b"worker-0 | a\r\nworker-1 | b\r\n"
        shown = b""
        while len(shown) < len(expected):
            shown += os.read(reader, 1000)
        assert shown == expected
    finally:
        os.close(reader)


def test_lines_of_many_threads_stay_whole(tmp_path: Path) -> None:
    stream = os.open(tmp_path / "stdout", os.O_WRONLY | os.O_CREAT)
    console = Console({}, stdout=stream)
    with ThreadPoolExecutor(8) as threads:
        for number in range(200):
            threads.submit(console.write, f"worker-{number % 8}", [b"%d " % number * 2000], False)
    os.close(stream)
    lines = (tmp_path / "stdout").read_bytes().splitlines()
    assert sorted(lines) == sorted(b"worker-%d | " % (number % 8) + b"%d " % number * 2000 for number in range(200))


def test_a_reader_that_went_away_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    Console({}, stdout=writer).write("worker-0", [b"a"], is_error=False)
    os.close(writer)
    assert capfd.readouterr().err == ""
