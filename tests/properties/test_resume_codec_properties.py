"""Plain data of any shape comes back, and bytes that are not ours raise nothing but InvalidRequest."""

from collections import Counter, OrderedDict
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ps_proto.errors import InvalidRequest
from ps_worker.resume.packing import FORMAT, pack, unpack
from test_resume_codec import same

PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(st.characters(exclude_categories=()), max_size=20)
    | st.binary(max_size=100)
    | arrays.arrays(
        st.sampled_from(["<f4", ">f8", "<i2", "|b1", "<U3", "<u8"]), arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
    )
)
KEYS = st.text(max_size=5) | st.integers()
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=4).map(OrderedDict)
        | st.dictionaries(KEYS, st.integers(), max_size=4).map(Counter)
    ),
    max_leaves=15,
)


@given(VALUES)
def test_what_is_packed_comes_back(value: Any) -> None:
    assert same(unpack(pack(value)), value)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    with suppress(InvalidRequest):
        unpack(bytes([FORMAT]) + data)
