"""The numbers that checkpoints and peers depend on, pinned; and the kernels against Python integers."""

import numpy as np
import pytest

from naive import sharding as naive
from sharding.hashing import BUCKET_SHIFT, NUM_BUCKETS, buckets_of, hash_id, mix64, table_salt

IDS = [0, 1, 2, 2**63, 2**64 - 1]


def test_the_bucket_is_the_top_bits_of_the_hash() -> None:
    assert NUM_BUCKETS == 2 ** (64 - BUCKET_SHIFT) == 16_384


@pytest.mark.parametrize(
    ("name", "salt"),
    [("", 0xEF46DB3751D8E999), ("user", 0x3DA0FD9C44CFC9EE), ("item", 0x5FE193BB4B6B9CD0), ("Ж", 0x0A6E02B32D49828A)],
)
def test_the_salt_is_xxh64_of_the_name(name: str, salt: int) -> None:
    assert table_salt(name) == salt


@pytest.mark.parametrize(("x", "mixed"), [(0, 0), (1, 0xB456BCFC34C2CB2C), (2**63, 0x8F780810AF31A493), (2**64 - 1, 0x64B5720B4B825F21)])
def test_mix64_is_fmix64_of_murmurhash3(x: int, mixed: int) -> None:
    assert mix64(np.uint64(x)) == mixed


def test_golden_hashes() -> None:
    salt = table_salt("user")
    hashes = [int(hash_id(salt, np.uint64(id))) for id in (0, 1, 2**64 - 1)]
    assert hashes == [0x48951FC494EB3140, 0x22B4EC6DA7115CAB, 0x8A82512DC90962C3]


def test_golden_buckets_of_two_tables() -> None:
    ids = np.array(IDS, dtype=np.uint64)
    assert buckets_of(table_salt("user"), ids).tolist() == [4645, 2221, 8897, 15548, 8864]
    assert buckets_of(table_salt("item"), ids).tolist() == [9207, 9966, 6334, 11864, 3981]


def test_buckets_equal_the_slow_twin_s() -> None:
    ids = np.random.default_rng(3).integers(0, 2**64, 500, dtype=np.uint64)
    buckets = buckets_of(table_salt("user"), ids)
    assert buckets.dtype == np.int32
    assert buckets.tolist() == [naive.bucket_of("user", int(id)) for id in ids]


def test_consecutive_ids_spread_evenly_over_the_buckets() -> None:
    counts = np.bincount(buckets_of(table_salt("user"), np.arange(100 * NUM_BUCKETS, dtype=np.uint64)), minlength=NUM_BUCKETS)
    # 100 a bucket, Poisson: standard deviation 10, and the extremes of 16,384 draws lie some 4 of them away.
    assert counts.min() > 50
    assert counts.max() < 150
    assert 9.5 < counts.std() < 10.5


def test_no_ids_have_no_buckets() -> None:
    assert buckets_of(table_salt("user"), np.empty(0, dtype=np.uint64)).shape == (0,)
