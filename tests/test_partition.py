"""The data path's pieces against their slow twins, at the edges, and compiled once for real inputs."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numba import config

from naive import sharding as naive
from sharding import partition
from sharding.hashing import NUM_BUCKETS, buckets_of, table_salt
from sharding.kernel import Kernel
from sharding.partition import all_owned, deduplicate, gather_ids, gather_rows, has_few_repeats, scatter_rows, split, sum_repeats

SALT = table_salt("user")
NO_IDS = np.empty(0, dtype=np.uint64)


def uint64(*ids: int) -> npt.NDArray[np.uint64]:
    return np.array(ids, dtype=np.uint64)


def owners_of(servers: int) -> npt.NDArray[np.int32]:
    owners = np.arange(NUM_BUCKETS, dtype=np.int32) % servers
    owners.setflags(write=False)  # as a ShardMap's are
    return owners


def test_deduplicate_keeps_the_order_of_first_appearance() -> None:
    unique, inverse = deduplicate(uint64(7, 3, 7, 9, 3, 7))
    assert unique.tolist() == [7, 3, 9]
    assert inverse.tolist() == [0, 1, 0, 2, 1, 0]
    assert unique.dtype == np.uint64
    assert inverse.dtype == np.int64


def test_every_id_is_legal() -> None:
    unique, inverse = deduplicate(uint64(2**64 - 1, 0, 2**63, 0, 2**64 - 1))
    assert unique.tolist() == [2**64 - 1, 0, 2**63]
    assert inverse.tolist() == [0, 1, 2, 1, 0]


@pytest.mark.parametrize(("seed", "n", "distinct"), [(1, 1, 1), (2, 8, 4), (3, 1000, 1), (4, 1000, 40), (5, 1000, 2**62), (6, 1024, 1024)])
def test_deduplicate_equals_its_twin(seed: int, n: int, distinct: int) -> None:
    ids = np.random.default_rng(seed).integers(0, distinct, n).astype(np.uint64)
    unique, inverse = deduplicate(ids)
    assert (unique.tolist(), inverse.tolist()) == naive.deduplicate(ids.tolist())


@pytest.mark.parametrize(
    ("seed", "n", "distinct"), [(1, 1, 1), (2, 8, 4), (3, 1000, 900), (4, 1000, 2**62), (5, 10_000, 200_000), (6, 5000, 9)]
)
def test_few_repeats_are_told_from_more(seed: int, n: int, distinct: int) -> None:
    ids = np.random.default_rng(seed).integers(0, distinct, n).astype(np.uint64)
    repeats = n - len(naive.deduplicate(ids.tolist())[0])
    assert has_few_repeats(ids, repeats) or repeats > n // 8  # of many it need not tell
    assert has_few_repeats(ids, n)
    assert not any([has_few_repeats(ids, most) for most in range(max(0, repeats - 3), repeats)])


@pytest.mark.parametrize(("seed", "dim"), [(1, 1), (2, 3), (3, 16)])
def test_repeats_are_summed_in_the_caller_s_order(seed: int, dim: int) -> None:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 20, 200).astype(np.uint64)
    rows = (rng.standard_normal((200, dim)) * 10.0 ** rng.integers(-6, 6, (200, 1))).astype(np.float32)
    unique, inverse = deduplicate(ids)
    sums = sum_repeats(rows, inverse, len(unique))
    expected = np.array(naive.sum_repeats(rows, inverse.tolist()), dtype=np.float32)
    assert sums.tobytes() == expected.tobytes()
    backwards = sum_repeats(rows[::-1].copy(), deduplicate(ids[::-1].copy())[1], len(unique))
    assert sorted(backwards[:, 0].tolist()) != sorted(sums[:, 0].tolist())  # so the order does matter to these rows


def test_a_lone_row_keeps_its_bits() -> None:
    negative_zero_and_nan = np.array([0x8000_0000, 0x7FC0_1234], dtype=np.uint32).view(np.float32)
    rows = np.array([negative_zero_and_nan, [1.0, 2.0], [3.0, 4.0]])
    sums = sum_repeats(rows, np.array([0, 1, 1]), 2)
    assert sums[0].view(np.uint32).tolist() == [0x8000_0000, 0x7FC0_1234]
    assert sums[1].tolist() == [4.0, 6.0]


def test_two_negative_zeros_stay_negative() -> None:
    sums = sum_repeats(np.full((2, 1), -0.0, dtype=np.float32), np.array([0, 0]), 1)
    assert sums.view(np.uint32).tolist() == [[0x8000_0000]]


def test_rows_without_repeats_are_not_copied() -> None:
    rows = np.ones((2, 3), dtype=np.float32)
    assert sum_repeats(rows, np.array([0, 1]), 2) is rows


@pytest.mark.parametrize(("inverse", "unique_count"), [([1, 0, 0], 2), ([0, 0, 0], 2), ([0, 1, 2], 2), ([0, -1, 0], 1), ([0, 0, 0], 4)])
def test_an_inverse_of_something_else_is_refused(inverse: list[int], unique_count: int) -> None:
    with pytest.raises(ValueError, match="order of first appearance"):
        sum_repeats(np.ones((3, 2), dtype=np.float32), np.array(inverse), unique_count)


def test_an_inverse_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="3 rows for 2 ids"):
        sum_repeats(np.ones((3, 2), dtype=np.float32), np.array([0, 1]), 2)


@pytest.mark.parametrize(("seed", "n", "servers"), [(1, 1, 1), (2, 100, 2), (3, 500, 5), (4, 500, 256)])
def test_split_equals_its_twin(seed: int, n: int, servers: int) -> None:
    ids = np.random.default_rng(seed).integers(0, 2**64, n, dtype=np.uint64)
    owners = owners_of(servers)
    parts = split(SALT, ids, owners, servers)
    assert [parts.part(server).tolist() for server in range(servers)] == naive.split("user", ids.tolist(), owners.tolist(), servers)
    assert parts.order.dtype == parts.offsets.dtype == np.int64


def test_a_server_without_ids_has_an_empty_part() -> None:
    parts = split(SALT, uint64(7, 7), np.full(NUM_BUCKETS, 1, dtype=np.int32), 3)
    assert parts.offsets.tolist() == [0, 0, 2, 2]
    assert parts.part(1).tolist() == [0, 1]


@pytest.mark.parametrize("owner", [-1, 2])
def test_an_owner_that_is_no_server_is_refused(owner: int) -> None:
    with pytest.raises(ValueError, match="beyond its 2 servers"):
        split(SALT, uint64(7), np.full(NUM_BUCKETS, owner, dtype=np.int32), 2)


def test_gathering_and_scattering_are_inverse() -> None:
    rng = np.random.default_rng(8)
    ids, rows = rng.integers(0, 2**64, 300, dtype=np.uint64), rng.standard_normal((300, 4)).astype(np.float32)
    parts = split(SALT, ids, owners_of(3), 3)
    back = np.full_like(rows, np.nan)
    for server in range(3):
        order = parts.part(server)
        assert gather_ids(ids, order).tolist() == ids[order].tolist()
        scatter_rows(gather_rows(rows, order), order, back)
    assert back.tobytes() == rows.tobytes()


def test_scattering_leaves_other_rows_as_they_are() -> None:
    out = np.zeros((3, 1), dtype=np.float32)
    scatter_rows(np.array([[5.0]], dtype=np.float32), np.array([1]), out)
    assert out.tolist() == [[0.0], [5.0], [0.0]]


def test_what_does_not_fit_is_refused() -> None:
    part, out = np.zeros((2, 3), dtype=np.float32), np.zeros((4, 3), dtype=np.float32)
    with pytest.raises(ValueError, match="must be float32"):
        scatter_rows(part, np.array([0]), out)
    with pytest.raises(ValueError, match="must be float32"):
        scatter_rows(part, np.array([0, 1]), out[:, :2].copy())
    for order in ([0, 4], [-1, 0]):
        with pytest.raises(ValueError, match="beyond 4 rows"):
            scatter_rows(part, np.array(order), out)
    with pytest.raises(IndexError):
        gather_rows(out, np.array([4]))
    with pytest.raises(IndexError):
        gather_ids(NO_IDS, np.array([0]))


def test_all_owned_sees_a_single_stranger_anywhere() -> None:
    ids = np.arange(100, dtype=np.uint64)
    owners = np.zeros(NUM_BUCKETS, dtype=np.int32)
    assert all_owned(SALT, ids, owners, 0)
    assert not all_owned(SALT, ids, owners, 1)
    for stranger in (0, 50, 99):
        strange = owners.copy()
        strange[buckets_of(SALT, ids[stranger : stranger + 1])] = 1
        assert not all_owned(SALT, ids, strange, 0)


def test_empty_inputs_work_everywhere() -> None:
    unique, inverse = deduplicate(NO_IDS)
    assert unique.shape == inverse.shape == (0,)
    no_rows = np.empty((0, 4), dtype=np.float32)
    assert has_few_repeats(NO_IDS, 0)
    assert sum_repeats(no_rows, inverse, 0).shape == (0, 4)
    parts = split(SALT, NO_IDS, owners_of(3), 3)
    assert parts.offsets.tolist() == [0, 0, 0, 0]
    assert gather_ids(NO_IDS, parts.part(0)).shape == (0,)
    assert gather_rows(no_rows, parts.part(0)).shape == (0, 4)
    assert gather_ids(uint64(7), parts.part(0)).shape == (0,)
    scatter_rows(no_rows, parts.part(0), np.zeros((2, 4), dtype=np.float32))
    assert all_owned(SALT, NO_IDS, owners_of(3), 2)


@pytest.mark.skipif(config.DISABLE_JIT, reason="kernels run as plain Python and have no signatures")  # type: ignore[attr-defined]
def test_kernels_stay_compiled_on_real_inputs() -> None:
    """One signature for a caller's writable arrays and one for views of a message's bytes, whatever the sizes."""
    kernels: list[Kernel[..., Any]] = [
        partition._deduplicate,
        partition._has_few_repeats,
        partition._sum_repeats,
        partition._split,
        partition._scatter_rows,
        all_owned,
        buckets_of,
    ]

    def use(seed: int, n: int, dim: int, servers: int) -> list[int]:
        rng = np.random.default_rng(seed)
        own = rng.integers(0, 10, n).astype(np.uint64)
        own_rows = np.ones((n, dim), dtype=np.float32)
        received = np.frombuffer(own.tobytes(), dtype=np.uint64)
        received_rows = np.frombuffer(own_rows.tobytes(), dtype=np.float32).reshape(n, dim)
        for ids, rows in ((own, own_rows), (received, received_rows)):
            has_few_repeats(ids, 0)
            unique, inverse = deduplicate(ids)
            sum_repeats(rows, inverse, len(unique))
            parts = split(SALT, unique, owners_of(servers), servers)
            out = np.empty((len(unique), dim), dtype=np.float32)
            for server in range(servers):
                order = parts.part(server)
                reply = np.frombuffer(gather_rows(rows, order).tobytes(), dtype=np.float32).reshape(len(order), dim)
                scatter_rows(reply, order, out)
                scatter_rows(reply.copy(), order, out)
            all_owned(SALT, ids, owners_of(servers), servers - 1)
            buckets_of(SALT, ids)
        return [len(kernel.signatures) for kernel in kernels]

    before = use(seed=1, n=50, dim=3, servers=2)
    assert use(seed=2, n=1, dim=1, servers=1) == before
    assert use(seed=3, n=5_000, dim=64, servers=5) == before
    assert max(before) <= 4  # ids or rows writable or not, and at most one more array that may be either
