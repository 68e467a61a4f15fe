"""A stream with a reader that does not read."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from full_pipe import FullPipe
from polling import poll_until
from ps_worker.launch.stream import PATIENCE_S, Stream


@pytest.fixture
def pipe() -> Iterator[FullPipe]:
    with FullPipe() as full:
        yield full


def test_a_reader_that_does_not_read_yet_is_waited_for(pipe: FullPipe) -> None:
    stream = Stream(pipe.writer)
    with ThreadPoolExecutor(2) as threads:
        writes = [threads.submit(stream.write, piece) for piece in (b"a", b"b")]
        assert not any(write.done() for write in writes)
        pipe.read_all()
        for write in writes:
            write.result(timeout=10)
    assert sorted(pipe.read_all()) == sorted(b"ab")


def test_hurry_frees_those_who_wait_and_those_who_come(pipe: FullPipe) -> None:
    stream = Stream(pipe.writer)
    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(stream.write, b"a") for _ in range(8)]
        stream.hurry()
        for write in waiting:
            write.result(timeout=10)
    begin_s = time.monotonic()
    for _ in range(100):
        stream.write(b"b")
    assert time.monotonic() - begin_s < PATIENCE_S  # for all of them
    poll_until(lambda: pipe.read_all() == b"a")  # what was begun is out before another pipe has the number


def test_a_reader_that_reads_again_gets_what_comes_then(pipe: FullPipe) -> None:
    stream = Stream(pipe.writer)
    stream.hurry()
    stream.write(b"begun")
    stream.write(b"left out")
    pipe.read_all()
    poll_until(lambda: pipe.read_all() == b"begun")

    def is_next_written() -> bool:
        stream.write(b"next")  # dropped where it comes before the stream's thread knows that it is free again
        return pipe.read_all() == b"begunnext"

    poll_until(is_next_written)


def test_who_has_no_patience_does_not_wait(pipe: FullPipe) -> None:
    begin_s = time.monotonic()
    Stream(pipe.writer).write(b"a", patience_s=0.0)
    assert time.monotonic() - begin_s < PATIENCE_S
    poll_until(lambda: pipe.read_all() == b"a")  # what was begun is out before another pipe has the number


def test_pieces_are_written_whole_in_turn() -> None:
    reader, writer = os.pipe()
    with open(reader, "rb") as pipe, ThreadPoolExecutor(9) as threads:
        stream = Stream(writer)
        got = threads.submit(pipe.read)
        for write in [threads.submit(stream.write, b"%d" % (number % 8) * 100_000) for number in range(40)]:
            write.result(timeout=10)
        os.close(writer)
        data = got.result(timeout=10)
    pieces = [data[begin : begin + 100_000] for begin in range(0, len(data), 100_000)]
    assert sorted(pieces) == sorted(b"%d" % (number % 8) * 100_000 for number in range(40))
