"""Lines of many processes on our own two streams."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from full_pipe import FullPipe
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


def test_lines_of_both_streams_stay_whole_where_they_are_one() -> None:
    reader, writer = os.pipe()
    stderr = os.dup(writer)
    console = Console({}, stdout=writer, stderr=stderr)
    with open(reader, "rb") as pipe, ThreadPoolExecutor(9) as threads:
        got = threads.submit(pipe.read)
        for write in [threads.submit(console.write, "w", [b"%d" % (number % 8) * 100_000], number % 2 == 0) for number in range(40)]:
            write.result(timeout=10)
        for descriptor in (writer, stderr):
            os.close(descriptor)
        lines = got.result(timeout=10).splitlines()
    assert sorted(lines) == sorted(b"w | " + b"%d" % (number % 8) * 100_000 for number in range(40))


def test_our_own_lines_wait_for_nobody() -> None:
    with FullPipe() as pipe:
        console = Console({}, stdout=pipe.writer, stderr=pipe.writer)
        with ThreadPoolExecutor(1) as threads:
            write = threads.submit(console.write, "worker-0", [b"a"], False)
            console.say("b")
            assert not write.done()
            console.hurry()
            write.result(timeout=10)


def test_what_nobody_reads_on_stdout_keeps_nothing_from_stderr() -> None:
    with FullPipe() as pipe:
        reader, stderr = os.pipe()
        console = Console({}, stdout=pipe.writer, stderr=stderr)
        with ThreadPoolExecutor(1) as threads:
            write = threads.submit(console.write, "worker-0", [b"a"], False)
            console.say("b")
            assert os.read(reader, 100) == b"launch | b\n"
            console.hurry()
            write.result(timeout=10)
        for descriptor in (reader, stderr):
            os.close(descriptor)


def test_updates_of_a_bar_are_drawn_in_place_on_a_terminal_and_are_lines_elsewhere(tmp_path: Path) -> None:
    assert written(tmp_path, ("worker-0", [b"1%\r", b"done"], False))[0] == b"worker-0 | 1%\nworker-0 | done\n"
    reader, terminal = os.openpty()
    try:
        console = Console({"NO_COLOR": "1"}, stdout=terminal)
        console.write("worker-0", [b"1%\r"], is_error=False)
        console.write("worker-0", [b"2%\r", b"done"], is_error=False)
        console.write("worker-1", [b"next"], is_error=False)
        os.close(terminal)
        wipe = b"\r\x1b[2K"
        expected = b"worker-0 | 1%" + wipe + b"worker-0 | 2%" + wipe + b"worker-0 | done\r\nworker-1 | next\r\n"
        shown = b""
        while len(shown) < len(expected):
            shown += os.read(reader, 1000)
        assert shown == expected
    finally:
        os.close(reader)
