"""Rows into the bytes that travel and back: against exact twins, in golden bytes, and what is off by how much."""

import struct

import numpy as np
import numpy.typing as npt
import pytest
import torch

from naive import wire_rows as naive
from sharding import wire_rows
from sharding.wire_format import BFLOAT16, FLOAT32, FORMATS, INT8, format_of
from sharding.wire_rows import decode_rows, decode_to, encode_rows, encode_to

Rows = npt.NDArray[np.float32]

GREATEST = float(np.finfo(np.float32).max)
TINY = 2.0**-149
COMPRESSED = [BFLOAT16.name, INT8.name]


def float32(rows: list[list[float]]) -> Rows:
    return np.array(rows, np.float32)


ROWS: dict[str, Rows] = {
    "random": np.random.default_rng(0).standard_normal((300, 17)).astype(np.float32),
    "of all sizes": (np.random.default_rng(1).standard_normal((400, 5)) * 10.0 ** np.linspace(-44, 37, 400)[:, None]).astype(np.float32),
    "halfway": float32([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5], [254.0, 1.0, 3.0, 5.0, -1.0, -3.0, 253.0]]),
    "zeros": float32([[0.0, -0.0], [0.0, 0.0]]),
    "the greatest": float32([[GREATEST, -GREATEST, 1.0], [GREATEST, GREATEST / 2, GREATEST / 254]]),
    "the least": float32([[TINY, 0.0], [-TINY, 63 * TINY], [64 * TINY, 190 * TINY], [2.0**-126, 2.0**-127], [2.0**-120, 2.0**-126]]),
    "one number": float32([[3.0], [-1e-20], [0.0]]),
    "of few numbers, some far from others": float32([[1e30, 1.0, -1e-30, 1e28]]),
}


def rows_named(name: str) -> Rows:
    """Return some rows, which nobody may write to."""
    rows = ROWS[name].view()
    rows.flags.writeable = False
    return rows


@pytest.mark.parametrize("wire", COMPRESSED)
@pytest.mark.parametrize("name", ROWS)
def test_rows_are_encoded_and_opened_as_the_twins_say(name: str, wire: str) -> None:
    rows = rows_named(name)
    encoded = encode_rows(rows, wire)
    assert [row.tobytes() for row in encoded] == [naive.encode(row, wire) for row in rows]
    opened = decode_rows(encoded)
    assert opened.tobytes() == b"".join([naive.travelled(row, wire).tobytes() for row in rows])


def test_bfloat16_is_torchs() -> None:
    rows = ROWS["random"]
    assert decode_rows(encode_rows(rows, "bfloat16")).tobytes() == torch.from_numpy(rows).to(torch.bfloat16).float().numpy().tobytes()


def test_the_bytes_are_those_of_the_contract() -> None:
    rows = float32([[127.0, -127.0, 2.5, 3.5, 0.25]])
    assert encode_rows(rows, "int8").tobytes().hex() == "0000803f" + "7f" + "81" + "02" + "04" + "00"  # the scale is 1.0
    assert encode_rows(rows, "bfloat16").tobytes().hex() == "fe42" + "fec2" + "2040" + "6040" + "803e"
    assert encode_rows(float32([[0.0, -0.0]]), "int8").tobytes() == bytes(6)
    assert encode_rows(float32([[3.0, -1.0]]), "int8").tobytes() == struct.pack("<fbb", np.float32(3) / np.float32(127), 127, -42)


def test_float32_is_left_alone() -> None:
    rows = ROWS["random"]
    assert encode_rows(rows, "float32") is rows
    assert decode_rows(rows) is rows


@pytest.mark.parametrize("name", ROWS)
def test_an_int8_is_off_by_half_a_scale_at_most(name: str) -> None:
    rows = rows_named(name)
    opened = decode_rows(encode_rows(rows, "int8")).astype(np.float64)
    scales = np.array([naive.scale_of(row) for row in rows])[:, None]
    slack = np.abs(rows.astype(np.float64)) * 2.0**-22  # of the quotient and of the product, which are float32
    assert (np.abs(opened - rows) <= scales / 2 + slack).all()
    assert np.isfinite(opened).all()


@pytest.mark.parametrize("name", ROWS)
def test_a_bfloat16_is_off_by_a_256th_at_most(name: str) -> None:
    rows = rows_named(name)
    opened = decode_rows(encode_rows(rows, "bfloat16")).astype(np.float64)
    is_finite = np.abs(rows) <= 3.3895e38
    assert (np.abs(opened - rows) <= np.abs(rows) * 2.0**-8 + 2.0**-134)[is_finite].all()
    assert (np.abs(opened)[~is_finite] == np.float64.fromhex("0x1.fep+127")).all()


def test_a_small_row_stays_one_beside_a_great_one() -> None:
    rows = float32([[1e6, -1e6], [1e-12, -1e-12]])
    np.testing.assert_allclose(decode_rows(encode_rows(rows, "int8")), rows, rtol=1e-6)


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_a_row_that_is_not_finite_reads_as_nan(number: float) -> None:
    rows = float32([[1.0, 2.0, 3.0], [1.0, number, 3.0], [4.0, 5.0, 6.0]])
    opened = decode_rows(encode_rows(rows, "int8"))
    assert np.isnan(opened[1]).all()
    np.testing.assert_allclose(opened[[0, 2]], rows[[0, 2]], rtol=0.01)
    assert np.isnan(decode_rows(encode_rows(rows, "bfloat16"))[1, 1]) == np.isnan(number)


@pytest.mark.parametrize("wire", FORMATS)
def test_rows_are_laid_where_the_order_says(wire: str) -> None:
    rows = ROWS["random"][:4]
    out = np.full((6, 17), 9.0, np.float32)
    decode_to(encode_rows(rows, wire), np.array([5, 0, 2, 3]), out)
    opened = decode_rows(encode_rows(rows, wire))
    assert out[[5, 0, 2, 3]].tobytes() == opened.tobytes()
    assert (out[[1, 4]] == 9.0).all()


@pytest.mark.parametrize("wire", FORMATS)
def test_what_does_not_fit_is_refused(wire: str) -> None:
    encoded = encode_rows(ROWS["random"][:2], wire)
    for order, shape in (([0, 2], (2, 17)), ([0, -1], (2, 17)), ([0], (2, 17)), ([0, 1], (2, 16))):
        with pytest.raises(ValueError, match=r"The (order|part)"):
            decode_to(encoded, np.array(order), np.empty(shape, np.float32))


@pytest.mark.parametrize("wire", FORMATS)
def test_what_is_made_is_aligned_and_of_its_format(wire: str) -> None:
    form = FORMATS[wire]
    for rows in (ROWS["random"], ROWS["random"][:0]):
        encoded = encode_rows(rows.copy(), wire)
        assert (encoded.shape, encoded.dtype) == (form.shape(len(rows), 17), form.dtype)
        assert format_of(encoded) is form
        assert form.dim(encoded) == 17
        assert encoded.nbytes == len(rows) * form.row_size_bytes(17)
        opened = decode_rows(encoded)
        assert opened.shape == rows.shape
        if form is not FLOAT32:
            assert [array.__array_interface__["data"][0] % 64 for array in (encoded, opened)] == [0, 0]


def test_the_kernels_are_compiled_once() -> None:
    for rows in (ROWS["random"], rows_named("random"), ROWS["zeros"]):
        for wire in COMPRESSED:
            encoded = encode_rows(rows, wire)
            encode_to(rows, encoded[:])
            decode_rows(encoded)
            encoded.flags.writeable = False
            decode_to(encoded, np.arange(len(rows))[:], np.empty_like(rows))
    kernels = (wire_rows._encode_bfloat16, wire_rows._decode_bfloat16, wire_rows._encode_int8, wire_rows._decode_int8)
    assert [len(getattr(kernel, "signatures", [()])) for kernel in kernels] == [1] * 4
