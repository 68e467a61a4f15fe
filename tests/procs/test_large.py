"""One push and one pull past 2**31 bytes, each in one call."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import pytest

import ps_worker as ps

DIM = 1_024
ROWS_COUNT = 589_824  # 2.25 GiB of rows
BLOCK = 8_192  # rows that are made or looked at in one go: 32 MiB
RSS_BYTES_MAX = 10 << 30

Rows = npt.NDArray[np.float32]


def ids_of(begin: int, end: int) -> npt.NDArray[np.uint64]:
    """Return different ids from all over uint64: multiples of an odd number."""
    return np.arange(begin, end, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def gradients_of(begin: int, end: int) -> Rows:
    """Return whole numbers that differ from row to row and from column to column, so that a row or a word out of place shows."""
    row, column = np.arange(begin, end, dtype=np.int32)[:, None], np.arange(DIM, dtype=np.int32)
    return ((row * 31 + column * 7) % 65_521 + 1).astype(np.float32)


def blocks() -> Iterator[tuple[int, int]]:
    return itertools.pairwise(range(0, ROWS_COUNT + 1, BLOCK))


def peak_rss_bytes(pid: int) -> int:
    """Return the most memory that a process ever held at once."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return 1024 * int(line.split()[1])


@pytest.mark.large
@pytest.mark.parametrize("mode", [ps.Async(), ps.Sync()], ids=["async", "sync"])
def test_more_than_two_gib_in_one_call(mode: ps.Mode) -> None:
    assert ROWS_COUNT % BLOCK == 0
    assert ROWS_COUNT * DIM * 4 == 9 << 28 > 2**31
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    started_s = time.monotonic()
    with ps.local_cluster(servers=1) as cluster, ps.connect(cluster.address, rank=0, world_size=1, mode=mode) as client:
        client.create_table(ps.TableSpec("large", dim=DIM, optimizer=ps.SGD(lr=1.0)))
        ids = ids_of(0, ROWS_COUNT)
        gradients = np.empty((ROWS_COUNT, DIM), np.float32)
        for begin, end in blocks():
            gradients[begin:end] = gradients_of(begin, end)
        ready_s = time.monotonic()
        client.push("large", ids, gradients)
        pushed_s = time.monotonic()
        del gradients
        client.end_step()
        client.flush()
        assert client.stats()["server-0"].tables["large"]["rows"] == ROWS_COUNT
        flushed_s = time.monotonic()
        rows = client.pull("large", ids)
        pulled_s = time.monotonic()
        for begin, end in blocks():
            assert (rows[begin:end] == -gradients_of(begin, end)).all(), f"rows {begin} to {end}"
        peaks = {name: peak_rss_bytes(pid) for name, pid in {"test": psutil.Process().pid, **cluster.pids}.items()}
    print(
        f"\npush {pushed_s - ready_s:.1f} s, flush {flushed_s - pushed_s:.1f} s, pull {pulled_s - flushed_s:.1f} s, "
        f"all {time.monotonic() - started_s:.1f} s; peak RSS in GiB: "
        + ", ".join(f"{name} {peak / 2**30:.2f}" for name, peak in peaks.items())
        + f", sum {sum(peaks.values()) / 2**30:.2f}"
    )
    assert sum(peaks.values()) < RSS_BYTES_MAX
