"""Rows of any bits into the bytes that travel and back."""

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from naive import wire_rows as naive
from sharding.wire_rows import decode_rows, encode_rows

Rows = npt.NDArray[np.float32]

SHAPES = st.tuples(st.integers(0, 5), st.integers(1, 20))
ANY_BITS: st.SearchStrategy[Any] = arrays.arrays(np.uint32, SHAPES).map(lambda bits: bits.view(np.float32))
FINITE: st.SearchStrategy[Any] = arrays.arrays(np.float32, SHAPES, elements=st.floats(width=32, allow_nan=False, allow_infinity=False))


@given(FINITE)
def test_an_int8_is_off_by_half_a_scale_at_most(rows: Rows) -> None:
    encoded = encode_rows(rows, "int8")
    opened = decode_rows(encoded).astype(np.float64)
    for row, data, back in zip(rows.astype(np.float64), encoded, opened, strict=True):
        (scale,) = struct.unpack("<f", data[:4].tobytes())
        assert (np.abs(back - row) <= scale / 2 + np.abs(row) * 2.0**-22).all()
        assert (np.sign(back) * np.sign(row) >= 0).all()
        assert (scale == 0) == (not row.any())


@given(FINITE)
def test_what_int8_has_stays(rows: Rows) -> None:
    """A row that came so is sent on so: the greatest number is 127 scales again, unless a corner moved the scale."""
    once = decode_rows(encode_rows(rows, "int8"))
    twice = decode_rows(encode_rows(once, "int8"))
    np.testing.assert_allclose(twice.astype(np.float64), once.astype(np.float64), rtol=1e-6, atol=2.0**-149)


@given(FINITE)
def test_what_bfloat16_has_stays(rows: Rows) -> None:
    once = decode_rows(encode_rows(rows, "bfloat16"))
    assert decode_rows(encode_rows(once, "bfloat16")).tobytes() == once.tobytes()


@given(ANY_BITS, st.sampled_from(["bfloat16", "int8"]))
def test_any_bits_are_encoded_and_opened_as_the_twins_say(rows: Rows, wire: str) -> None:
    encoded = encode_rows(rows, wire)
    opened = decode_rows(encoded)
    for row, data, back in zip(rows, encoded, opened, strict=True):
        is_finite = np.isfinite(row)
        if wire == "int8" or is_finite.all():
            assert data.tobytes() == naive.encode(row, wire)
        want = naive.decode(data.tobytes(), wire)
        assert (np.isnan(back) == np.isnan(want)).all()
        assert back[~np.isnan(back)].tobytes() == want[~np.isnan(want)].tobytes()


@given(st.binary(min_size=4 * 9, max_size=4 * 9))
def test_any_bytes_can_be_opened(data: bytes) -> None:
    encoded = np.frombuffer(data, np.uint8).reshape(4, 9)
    opened = decode_rows(encoded)
    for row, back in zip(encoded, opened, strict=True):
        want = naive.decode(row.tobytes(), "int8")
        assert (np.isnan(back) == np.isnan(want)).all()
        assert back[~np.isnan(back)].tobytes() == want[~np.isnan(want)].tobytes()
