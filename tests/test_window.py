"""The last applied name per (bucket, rank)."""

import numpy as np
import numpy.typing as npt

from ps_proto.requests import NEVER, push_name
from ps_server.shard import window as window_module
from ps_server.shard.window import Window
from sharding.hashing import NUM_BUCKETS

FIRST, LAST = 0, NUM_BUCKETS - 1


def buckets(*numbers: int) -> npt.NDArray[np.int32]:
    return np.array(numbers, np.int32)


def fresh(window: Window, rank: int, of: npt.NDArray[np.int32], name: int) -> list[bool]:
    found = window.fresh(rank, of, name)
    return [True] * of.size if found is None else found.tolist()


def test_a_name_is_fresh_until_it_is_recorded() -> None:
    window = Window()
    assert window.fresh(0, buckets(FIRST, LAST), push_name(0, 1)) is None
    window.record(0, buckets(FIRST, LAST), push_name(0, 1))
    assert fresh(window, 0, buckets(FIRST, LAST), push_name(0, 1)) == [False, False]


def test_names_are_ordered_by_clock_then_seq() -> None:
    window = Window()
    window.record(0, buckets(5), push_name(2, 3))
    assert fresh(window, 0, buckets(5), push_name(2, 2)) == [False]
    assert fresh(window, 0, buckets(5), push_name(1, 2**32 - 1)) == [False]
    assert fresh(window, 0, buckets(5), push_name(2, 4)) == [True]
    assert fresh(window, 0, buckets(5), push_name(3, 1)) == [True]


def test_the_greatest_name_fits() -> None:
    window = Window()
    name = push_name(2**32 - 1, 2**32 - 1)
    assert fresh(window, 0, buckets(5), name) == [True]
    window.record(0, buckets(5), name)
    assert fresh(window, 0, buckets(5), name) == [False]
    assert window.last_clock(0) == 2**32 - 1


def test_each_bucket_remembers_for_itself() -> None:
    window = Window()
    window.record(0, buckets(5), push_name(0, 1))
    assert fresh(window, 0, buckets(6, 5, 7), push_name(0, 1)) == [True, False, True]


def test_each_rank_has_names_of_its_own() -> None:
    window = Window()
    window.record(0, buckets(5), push_name(7, 1))
    assert fresh(window, 1, buckets(5), push_name(0, 1)) == [True]


def test_the_last_clock_is_that_of_the_newest_name() -> None:
    window = Window()
    assert window.last_clock(3) == NEVER
    window.record(3, buckets(5), push_name(0, 1))
    assert window.last_clock(3) == 0
    window.record(3, buckets(LAST), push_name(6, 2))
    assert window.last_clock(3) == 6
    assert window.ranks == [3]


def test_names_move_with_their_buckets() -> None:
    source, target = Window(), Window()
    source.record(0, buckets(5, 6), push_name(4, 1))
    target.record(0, buckets(7), push_name(9, 1))
    leaving = np.zeros(NUM_BUCKETS, np.bool_)
    leaving[5] = True
    target.adopt(source.extract(leaving))
    assert fresh(target, 0, buckets(5, 6, 7), push_name(4, 1)) == [False, True, False]
    assert fresh(source, 0, buckets(5, 6), push_name(4, 1)) == [True, False]


def test_saved_names_are_those_of_the_instant_for_the_buckets_asked_for() -> None:
    window = Window()
    window.record(2, buckets(5, LAST), push_name(4, 1))
    window.record(0, buckets(FIRST), push_name(2**32 - 1, 2**32 - 1))
    asked = buckets(FIRST, 5, LAST)
    saved = window.saved(asked)
    window.record(2, buckets(5), push_name(9, 9))
    asked[:] = 7
    assert saved.ranks == (0, 2)
    assert saved.buckets.tolist() == [FIRST, 5, LAST]
    assert saved.buckets.dtype == np.int32
    assert saved.names.dtype == np.uint64
    assert saved.names.tolist() == [[2**64 - 1, 0, 0], [0, push_name(4, 1), push_name(4, 1)]]


def test_a_window_that_knows_nobody_saves_no_names() -> None:
    window = Window()
    saved = window.saved(buckets(1, 2))
    assert (saved.ranks, saved.names.shape) == ((), (0, 2))
    window.restore(saved, buckets(1, 2))
    assert window.ranks == []


def test_restored_names_are_the_saved_ones_where_newer_ones_are_here_too() -> None:
    window = Window()
    window.record(0, buckets(5, 6), push_name(4, 1))
    saved = window.saved(buckets(5, 6))
    window.record(0, buckets(5, 8), push_name(7, 1))
    window.record(1, buckets(6), push_name(7, 1))
    window.restore(saved, buckets(5, 6))
    assert fresh(window, 0, buckets(5, 6), push_name(4, 1)) == [False, False]
    assert fresh(window, 0, buckets(5, 6), push_name(4, 2)) == [True, True]
    assert fresh(window, 1, buckets(6), push_name(0, 1)) == [True]
    assert fresh(window, 0, buckets(8), push_name(7, 1)) == [False]  # a bucket that was not saved


def test_servers_take_of_what_was_saved_the_buckets_that_they_own() -> None:
    """Two saved, three read: as where a checkpoint is restored onto another number of servers."""
    saved = []
    for server, its in enumerate((buckets(1, 2, 3), buckets(4, 5, LAST))):
        window = Window()
        window.record(server, its, push_name(10 + server, 1))
        saved.append(window.saved(its))
    for owned in (buckets(1, 4), buckets(LAST, 3), buckets(2, 5, 9)):
        window = Window()
        for part in saved:
            window.restore(part, owned)
        assert window.ranks == [0, 1]
        of_first = [int(bucket) for bucket in owned if bucket in (1, 2, 3)]
        of_second = [int(bucket) for bucket in owned if bucket in (4, 5, LAST)]
        everywhere = buckets(*range(NUM_BUCKETS))
        assert np.flatnonzero(window.saved(everywhere).names[0]).tolist() == sorted(of_first)
        assert np.flatnonzero(window.saved(everywhere).names[1]).tolist() == sorted(of_second)
        assert (window.last_clock(0), window.last_clock(1)) == (10, 11)


def test_a_cleared_window_knows_nobody() -> None:
    window = Window()
    window.record(0, buckets(5), push_name(4, 1))
    window.clear()
    assert window.ranks == []
    assert fresh(window, 0, buckets(5), push_name(0, 1)) == [True]


def test_an_empty_push_is_legal() -> None:
    window = Window()
    assert window.fresh(0, buckets(), push_name(0, 1)) is None
    window.record(0, buckets(), push_name(0, 1))
    assert window.last_clock(0) == NEVER


def test_each_kernel_is_compiled_once() -> None:
    window = Window()
    window.fresh(0, buckets(1), 1)
    window.record(0, buckets(1), 2**63)
    kernels = (window_module._mark_fresh, window_module._record)
    assert [len(getattr(kernel, "signatures", [()])) for kernel in kernels] == [1, 1]  # without the compiler there are none
