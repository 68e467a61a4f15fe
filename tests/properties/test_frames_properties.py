import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ps_proto.errors import InvalidRequest
from ps_proto.frames import Head
from ps_proto.requests import ExportPart, Pull, Pulled, Push, TableIds, TableRows
from samples import FENCE, same
from sharding.wire_format import FORMATS
from sharding.wire_rows import encode_rows
from test_frames import framed, taken

SHAPES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 70)), max_size=4)
HEADS = st.builds(
    Head,
    st.integers(1, 4),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 64 << 20),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)


@given(SHAPES, st.integers(0, 2**32), st.sampled_from(list(FORMATS)))
def test_values_of_any_shape_come_back(shapes: list[tuple[int, int]], seed: int, wire: str) -> None:
    rng = np.random.default_rng(seed)
    ids = [rng.integers(0, 2**64, rows, np.uint64) for rows, _ in shapes]
    rows = [rng.standard_normal(shape, np.float32) for shape in shapes]
    tables = tuple([TableRows(f"t{k}", *pair) for k, pair in enumerate(zip(ids, rows, strict=True))])
    values: list[object] = [
        Push(FENCE, 1, tables),
        Pull(FENCE, tuple([TableIds(table.table, table.ids) for table in tables])),
        Push(FENCE, 1, tuple([TableRows(table.table, table.ids[:0], table.rows, 7) for table in tables])),
        Pulled(tuple(rows), 3),
        Push(FENCE, 1, tuple([TableRows(table.table, table.ids, encode_rows(table.rows, wire)) for table in tables])),
        Pulled(tuple([encode_rows(table, wire) for table in rows]), 3),
    ]
    values += [ExportPart(table.ids, table.rows) for table in tables]
    for value in values:
        assert same(taken(type(value), framed(value)), value)


@given(HEADS)
def test_a_head_comes_back(head: Head) -> None:
    assert Head.unpack(head.pack()) == head


@given(st.binary(min_size=64, max_size=64) | st.binary(min_size=59, max_size=59).map(lambda data: b"ROWS\x01" + data))
def test_any_bytes_are_a_head_or_refused(data: bytes) -> None:
    try:
        head = Head.unpack(data)
    except InvalidRequest:
        return
    assert head.pack()[:56] == data[:56]
