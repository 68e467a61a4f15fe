"""The slab: a reserved mapping that costs nothing until it is written to, and never moves."""

import gc
import weakref
from pathlib import Path

import numpy as np
import psutil
import pytest

from ps_server.shard.slab import RESERVED_BYTES_MAX, ROWS_MAX, Slab


def test_a_fresh_slab_is_zero_and_has_the_shapes_it_promises() -> None:
    slab = Slab(width=3, rows_max=5)
    assert slab.ids.shape == (5,)
    assert slab.records.shape == slab.words.shape == (5, 3)
    assert not slab.ids.any()
    assert not slab.records.any()


def test_words_are_the_same_memory_as_records() -> None:
    slab = Slab(width=2, rows_max=4)
    slab.records[3, 1] = 1.0
    assert slab.words[3, 1] == 0x3F80_0000
    slab.words[0, 0] = 7
    assert slab.records.view(np.uint32)[0, 0] == 7


def test_ids_and_records_do_not_overlap() -> None:
    slab = Slab(width=1, rows_max=700)  # ids take more than a page
    slab.ids[:] = 2**64 - 1
    assert not slab.words.any()


@pytest.mark.parametrize("width", [1, 16, 3 * 65_536])
def test_the_default_reservation_is_bounded(width: int) -> None:
    slab = Slab(width)
    assert slab.capacity == min(ROWS_MAX, RESERVED_BYTES_MAX // (8 + 4 * width))
    slab.records[slab.capacity - 1, width - 1] = 1.0  # the end is really there


def test_a_reservation_takes_no_memory() -> None:
    before = psutil.Process().memory_info().rss
    slabs = [Slab(16) for _ in range(50)]
    assert len(slabs) == 50
    assert psutil.Process().memory_info().rss - before < 4 << 20


def memory_flags(address: int) -> list[str]:
    """Return what Linux says of the memory at an address of this process: "hg" is that it is to lie in huge pages."""
    is_there = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            begin, _, end = first.partition("-")
            is_there = int(begin, 16) <= address < int(end, 16)
        elif is_there and first == "VmFlags:":
            return line.split()[1:]
    raise AssertionError(f"nothing lies at {address:#x}")


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no huge pages for anonymous memory")
@pytest.mark.parametrize(("mib", "is_huge"), [(0, False), (3, False), (5, True), (100, True)])
def test_only_ids_and_records_beyond_the_first_mebibytes_lie_in_huge_pages(mib: int, is_huge: bool) -> None:
    slab = Slab(width=64)
    assert ("hg" in memory_flags(slab.records[mib << 12].ctypes.data)) is is_huge  # 256 bytes each
    assert ("hg" in memory_flags(slab.ids[mib << 17 :].ctypes.data)) is is_huge


def test_the_mapping_goes_with_the_last_array_over_it() -> None:
    slab = Slab(width=16, rows_max=10)
    records = slab.records
    alive = weakref.ref(records.base)
    del slab
    gc.collect()
    records[9, 15] = 1.0
    assert alive() is not None
    del records
    gc.collect()
    assert alive() is None


def test_thousands_of_slabs_one_after_another_run_out_of_nothing() -> None:
    for _ in range(2_000):  # 512 TiB in all, four times the address space
        slab = Slab(16)
        assert slab.capacity == ROWS_MAX
        slab.records[0, 0] = 1.0


def test_slabs_in_unreachable_cycles_are_collected_rather_than_shrinking_the_next() -> None:
    gc.disable()
    try:
        for _ in range(600):  # more than fit at once
            holder: list[object] = [Slab(16)]
            holder.append(holder)
            slab = holder[0]
            assert isinstance(slab, Slab)
            assert slab.capacity == ROWS_MAX
    finally:
        gc.enable()
        del holder, slab
        gc.collect()


def test_where_the_machine_refuses_a_slab_is_smaller() -> None:
    slabs: list[Slab] = []
    while not slabs or slabs[-1].capacity == slabs[0].capacity:
        slabs.append(Slab(16))
        assert len(slabs) < 10_000
    assert 0 < slabs[-1].capacity < slabs[0].capacity
    slabs[-1].records[slabs[-1].capacity - 1, 15] = 1.0
