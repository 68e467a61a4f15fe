"""Plain data as bytes and back: every type, what is refused and where it lies, bytes that are not ours."""

import enum
import math
import struct
from collections import Counter, OrderedDict, namedtuple
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ps_proto.errors import InvalidRequest
from ps_worker.resume.packing import DEPTH_MAX, FORMAT, pack, unpack

Pair = namedtuple("Pair", "a b")


class Color(enum.IntEnum):
    RED = 1


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in type and in every bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        bits = [tensor.reshape(-1).view(torch.uint8) for tensor in (one, other)]
        return (one.dtype, one.shape, one.device) == (other.dtype, other.shape, other.device) and torch.equal(*bits)
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    return bool(one == other)


VALUES = [
    None,
    True,
    False,
    0,
    -1,
    127,
    128,
    -128,
    -129,
    2**63,
    -(2**63) - 1,
    10**1000,
    0.0,
    -0.0,
    math.inf,
    math.nan,
    5e-324,
    "",
    "Größe \ud800",
    b"",
    b"\0" * 1000,
    [],
    (),
    {},
    [1, [2, (3, {"a": None, 4: [b"x"]})]],
    {"b": 1, "a": 2},
    OrderedDict([("z", 1), ("y", 2)]),
    Counter({30: 1, 80: 2}),
    np.float64(0.1),
    np.float32(-0.0),
    np.int64(7),
    np.bool_(True),
    np.str_("text"),
    np.datetime64("2026-11-20"),
    np.arange(6, dtype=">i4").reshape(2, 3),
    np.zeros((0, 5), np.float16),
    np.array(3.5),
    np.array([], "<U0"),
    np.array(["a", "bcd"]),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    torch.tensor(3),
    torch.empty(0, 4),
    torch.tensor([True, False]),
    torch.tensor([1 + 2j]).conj().resolve_conj(),
    torch.arange(6).reshape(2, 3).T.contiguous(),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__} {value!r:.20}")
def test_what_is_packed_comes_back(value: Any) -> None:
    assert same(unpack(pack(value)), value)
    assert same(unpack(pack({"x": [value, value]})), {"x": [value, value]})


def test_views_of_tensors_come_back_as_what_they_show() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    for view in (base.T, base[:, 1], base[1:, ::2], torch.tensor([1 + 2j]).conj(), nn.Parameter(base)):
        back = unpack(pack(view))
        assert type(back) is torch.Tensor
        assert torch.equal(back, view.detach())
    assert not unpack(pack(nn.Parameter(base))).requires_grad


def test_arrays_that_come_back_may_be_written_to() -> None:
    array = unpack(pack(np.arange(3)))
    array[0] = 9
    assert array.tolist() == [9, 1, 2]


def test_an_ordered_dict_keeps_the_versions_of_torch_modules() -> None:
    state = nn.BatchNorm1d(3).state_dict()
    assert vars(unpack(pack(state))) == vars(state) == {"_metadata": {"": {"version": 2}}}


def test_bytes_that_repeat_are_kept_once() -> None:
    states = [torch.get_rng_state()] * 5
    assert len(pack(states)) < 1.1 * len(pack(states[:1]))
    assert same(unpack(pack(states)), states)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"milestones": [3, object()]}, r"what is registered as 'x'\['milestones'\]\[1\] is a object, but must be plain data"),
        (Pair(1, 2), "what is registered as 'x' is a Pair"),
        ({"lr": (1, {3: Color.RED})}, r"'x'\['lr'\]\[1\]\[3\] is a Color"),
        ({"a": {1.5: 2}}, r"a key of what is registered as 'x'\['a'\] is 1\.5, but must be a str or an int"),
        ({True: 2}, "a key of what is registered as 'x' is True"),
        ([lambda: 1], r"'x'\[0\] is a function"),
        ({1, 2}, "'x' is a set"),
        (np.array([object()]), "'x' is a ndarray of dtype object"),
        (np.ma.masked_array([1], [True]), "'x' is a MaskedArray"),
        (torch.eye(2).to_sparse(), "'x' is a tensor of torch.sparse_coo"),
        (torch.empty(2, device="meta"), "on meta"),
        (1j, "'x' is a complex"),
    ],
)
def test_what_is_no_plain_data_is_refused_by_its_place(value: Any, place: str) -> None:
    with pytest.raises(InvalidRequest, match=place):
        pack(value, "what is registered as 'x'")


def test_what_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidRequest, match=f"more than {DEPTH_MAX} values deep"):
        pack(value)


def test_bytes_of_another_format_are_refused() -> None:
    for data, said in ((b"", "of format None"), (bytes([FORMAT + 1]), f"of format {FORMAT + 1}")):
        with pytest.raises(InvalidRequest, match=said):
            unpack(data)


def test_bytes_that_were_cut_are_refused() -> None:
    data = pack({"a": [1, 2.5, "text", b"bytes", None], "b": np.arange(3), "c": torch.arange(3), "d": OrderedDict(x=Counter(y=1))})
    for length in range(1, len(data)):
        with pytest.raises(InvalidRequest, match="damaged"):
            unpack(data[:length])
    with pytest.raises(InvalidRequest, match="more bytes than a value has"):
        unpack(data + b"n")


def test_bytes_that_were_altered_raise_nothing_else() -> None:
    data = pack({"a": [1, 2.5, "text", b"bytes" * 20, b"bytes" * 20], "b": np.arange(3), "c": torch.arange(3), 5: OrderedDict(x=1)})
    random = np.random.default_rng(1)
    for position in range(1, len(data)):
        altered = bytearray(data)
        altered[position] ^= int(random.integers(1, 256))
        with suppress(InvalidRequest):
            unpack(bytes(altered))
