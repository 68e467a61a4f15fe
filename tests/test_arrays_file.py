"""Safetensors files of our own making: the library reads ours, we read the library's, and damage is named."""

import json
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from xxhash import xxh3_128_hexdigest

from ps_proto.errors import CorruptFile
from ps_server.storage.arrays_file import checksum, decode, encode

DTYPES = [np.uint8, np.int32, np.uint32, np.float32, np.int64, np.uint64]

some_arrays = st.dictionaries(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
    st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5))),
    max_size=5,
)


def joined(arrays: dict[str, NDArray[Any]]) -> bytes:
    return b"".join(encode(arrays))


def assert_same(found: dict[str, NDArray[Any]], wanted: dict[str, NDArray[Any]]) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


@given(some_arrays)
def test_the_library_reads_what_we_write(arrays: dict[str, NDArray[Any]]) -> None:
    assert_same(safetensors.numpy.load(joined(arrays)), arrays)


@given(some_arrays)
def test_we_read_what_the_library_writes(arrays: dict[str, NDArray[Any]]) -> None:
    assert_same(decode(memoryview(safetensors.numpy.save(arrays, metadata={"by": "hand"})), "it"), arrays)


@given(some_arrays, st.integers(0, 9))
def test_a_file_comes_back_wherever_its_bytes_lie(arrays: dict[str, NDArray[Any]], offset: int) -> None:
    memory = memoryview(bytes(offset) + joined(arrays))

    found = decode(memory[offset:], "it")

    assert_same(found, arrays)
    assert all([array.flags.aligned and not array.flags.writeable for array in found.values()])


def test_arrays_are_written_and_read_where_they_lie() -> None:
    ids, records = np.arange(5, dtype=np.uint64), np.arange(20, dtype=np.uint32).reshape(5, 4)
    buffers = encode({"records": records, "ids": ids})
    assert len(buffers) == 3
    assert all(
        [np.shares_memory(np.frombuffer(buffer, np.uint8), array) for buffer, array in zip(buffers[1:], [ids, records], strict=True)]
    )

    data = np.frombuffer(b"".join(buffers), np.uint64)
    assert all([np.shares_memory(array, data) for array in decode(data.data.cast("B"), "it").values()])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_an_array_may_be_handed_over_in_pieces(lengths: list[int]) -> None:
    records = np.arange(3 * sum(lengths), dtype=np.uint32).reshape(-1, 3)
    pieces = np.split(records, np.cumsum(lengths)[:-1])

    assert_same(decode(memoryview(b"".join(encode({"records": pieces}))), "it"), {"records": records})


@pytest.mark.parametrize("other", [np.zeros((1, 2), np.uint32), np.zeros((1, 3), np.float32)])
def test_pieces_that_differ_are_no_array(other: NDArray[Any]) -> None:
    with pytest.raises(AssertionError, match="records is made of pieces that differ"):
        encode({"records": [np.zeros((1, 3), np.uint32), other]})


def test_nothing_but_contiguous_arrays_is_written() -> None:
    with pytest.raises(AssertionError, match="records does not lie in one piece"):
        encode({"records": np.zeros((4, 4), np.uint32)[:, 1:]})


@given(st.lists(st.binary(max_size=20), max_size=4))
def test_the_checksum_is_the_one_of_all_bytes(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    assert checksum(pieces) == checksum(whole) == checksum(memoryview(whole)) == xxh3_128_hexdigest(whole)


SMALL: dict[str, NDArray[Any]] = {"ids": np.arange(2, dtype=np.uint64), "records": np.ones((2, 1), np.uint32)}


def test_a_file_that_is_cut_anywhere_is_refused() -> None:
    whole = joined(SMALL)
    for length in range(len(whole)):
        with pytest.raises(CorruptFile, match=r"^/x/it is not as it was written: "):
            decode(memoryview(whole[:length]), "/x/it")


def test_a_file_that_is_longer_is_refused() -> None:
    with pytest.raises(CorruptFile, match="3 bytes behind its arrays"):
        decode(memoryview(joined(SMALL) + b"abc"), "it")


def file_of(header: object, body: bytes = bytes(8)) -> memoryview:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return memoryview(len(text).to_bytes(8, "little") + text + body)


@pytest.mark.parametrize(
    "header",
    [
        [],
        7,
        b"\xff",
        b"{",
        b"[" * 100_000,
        {"ids": 3},
        {"ids": {"dtype": "U64", "shape": [1]}},
        {"ids": {"dtype": "BOOL", "shape": [8], "data_offsets": [0, 8]}},
        {"ids": {"dtype": ["U64"], "shape": [1], "data_offsets": [0, 8]}},
        {"ids": {"dtype": "U64", "shape": [-1], "data_offsets": [0, 8]}},
        {"ids": {"dtype": "U64", "shape": [1.0], "data_offsets": [0, 8]}},
        {"ids": {"dtype": "U64", "shape": [True], "data_offsets": [0, 8]}},
        {"ids": {"dtype": "U64", "shape": [2], "data_offsets": [0, 8]}},
        {"ids": {"dtype": "U64", "shape": [1], "data_offsets": [0, 8, 8]}},
        {"ids": {"dtype": "U64", "shape": [1], "data_offsets": ["0", 8]}},
        {"ids": {"dtype": "U64", "shape": [1], "data_offsets": [8, 16]}},
        {"ids": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, "more": {"dtype": "U8", "shape": [5], "data_offsets": [3, 8]}},
        {"ids": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}, "more": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}},
    ],
)
def test_a_header_that_makes_no_sense_is_refused(header: object) -> None:
    with pytest.raises(CorruptFile, match="header"):
        decode(file_of(header), "it")
