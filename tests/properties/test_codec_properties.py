"""Any request comes back from parts of any size, and no bytes that a peer may send raise anything but our own errors."""

import contextlib
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ps_proto import parameter_server_pb2 as pb
from ps_proto.errors import ParameterServerError
from ps_proto.methods import METHODS, Reader, to_bytes
from ps_proto.parts import ASSEMBLERS, PART_SIZE_BYTES_MAX
from ps_proto.requests import Assign, ColumnLayout, ExportPart, Fence, Finished, Hyperparameters, Pull, Pulled, Push, TableIds, TableRows
from samples import REPLIES, REQUESTS, same
from sharding.wire_format import FLOAT32, FORMATS, WireFormat

KINDS = [*METHODS, *{method.reply for method in METHODS.values()}]

counts = st.integers(0, 2**31 - 1)
numbers = st.dictionaries(st.text(max_size=8), st.floats(), max_size=3)
fences = st.builds(
    Fence, st.integers(0, 2**63 - 1), st.integers(-1, 2**31 - 1), st.integers(0, 2**63 - 1), counts, st.integers(0, 2**63 - 1)
)
hyperparameters = st.lists(st.builds(Hyperparameters, st.text(max_size=8), numbers), max_size=2).map(tuple)
finished = st.none() | st.builds(Finished, counts, hyperparameters, st.binary(max_size=20))
waits = st.floats(0, 1e9)
at_steps = st.integers(-1, 2**31 - 1)
pull_numbers = st.integers(1, 2**63 - 1)


def ids_of(count: int) -> st.SearchStrategy[Any]:
    return arrays.arrays(np.uint64, count)


def wire_rows_of(count: int, dim: int, form: WireFormat) -> st.SearchStrategy[Any]:
    return arrays.arrays(np.uint8, (count, form.row_size_bytes(dim))).map(lambda data: data.view(form.dtype))


def rows_of(count: int, dim: int) -> st.SearchStrategy[Any]:
    return arrays.arrays(np.uint32, (count, dim)).map(lambda bits: bits.view(np.float32))  # any bits, every NaN too


@st.composite
def tables(draw: st.DrawFn, forms: tuple[WireFormat, ...] = (FLOAT32,), may_be_listed: bool = False) -> tuple[TableRows, ...]:
    found = []
    for name in draw(st.lists(st.text(min_size=1, max_size=8), max_size=3, unique=True)):
        count, dim, form = draw(st.integers(0, 6)), draw(st.integers(1, 5)), draw(st.sampled_from(forms))
        rows = draw(rows_of(count, dim) if form is FLOAT32 else wire_rows_of(count, dim, form))
        pull = draw(st.just(0) | pull_numbers) if may_be_listed else 0
        found.append(TableRows(name, draw(ids_of(0 if pull else count)), rows, pull))
    return tuple(found)


ANY_FORM = tuple(FORMATS.values())
table_ids = st.tuples(tables(), st.just(0) | pull_numbers).map(
    lambda drawn: tuple(TableIds(table.table, table.ids, drawn[1]) for table in drawn[0])
)
pulls = st.builds(Pull, fences, table_ids, finished, waits, at_steps)
pushes = st.builds(Push, fences, st.integers(0, 2**32 - 1), tables(ANY_FORM, may_be_listed=True), hyperparameters)
columns = st.lists(st.builds(ColumnLayout, st.text(max_size=8), st.integers(-(2**31), 2**31 - 1), st.text(max_size=8)), max_size=3).map(
    tuple
)
assigns = st.builds(Assign, fences, st.integers(0, 2**32 - 1), tables(), st.booleans(), columns)
pulled = st.builds(Pulled, tables(ANY_FORM).map(lambda some: tuple(table.rows for table in some)), st.integers(-(2**63), 2**63 - 1))
export_parts = tables().filter(bool).map(lambda some: ExportPart(some[0].ids, some[0].rows))


@given(pulls | pushes | assigns | pulled | export_parts, st.integers(1, 200) | st.integers(1, PART_SIZE_BYTES_MAX))
def test_a_value_comes_back_from_parts_of_any_size(value: object, part_size_bytes: int) -> None:
    reader = Reader(type(value), "server-0", 1 << 20)
    for data in to_bytes(value, part_size_bytes):
        reader.take(data)
    assert same(reader.value(), value)


def read(kind: type, messages: list[bytes]) -> None:
    reader = Reader(kind, "server-0", 1 << 20)
    with contextlib.suppress(ParameterServerError):
        for data in messages:
            reader.take(data)
        reader.value()


@given(st.sampled_from(KINDS), st.lists(st.binary(max_size=40), max_size=3))
def test_any_bytes_are_a_value_or_one_of_our_errors(kind: type, messages: list[bytes]) -> None:
    read(kind, messages)


@given(st.sampled_from(REQUESTS + REPLIES), st.data())
def test_a_message_with_changed_bytes_is_a_value_or_one_of_our_errors(value: object, data: st.DataObject) -> None:
    messages = [bytearray(message) for message in to_bytes(value, 30)]
    message = data.draw(st.sampled_from(messages))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, min(len(message), 400) - 1))
        message[position] = data.draw(st.integers(0, 255))
    read(type(value), [bytes(message) for message in messages])


wire_ints = st.sampled_from([-1, 0, 1, 2, 3, 2**31 - 1])
shapes = st.builds(
    lambda table, rows, dim, wire: pb.TableShape(table=table, rows=rows, dim=dim, wire=wire),
    st.sampled_from(["", "a", "b"]),
    wire_ints,
    wire_ints,
    st.sampled_from(["", "", "bfloat16", "int8", "float32", "float16"]),
)
slices = st.builds(
    lambda table, ids, rows: pb.Slice(table=table, ids=ids, rows=rows),
    wire_ints,
    st.binary(max_size=24),
    st.sampled_from([0, 4, 5, 8, 16, 17]).map(bytes),
)


@given(
    st.sampled_from(list(ASSEMBLERS)),
    st.lists(st.tuples(st.booleans(), st.lists(shapes, max_size=2), st.lists(slices, max_size=3)), max_size=3),
)
def test_parts_that_parse_and_lie_are_a_value_or_one_of_our_errors(kind: type, parts: list[tuple[bool, list[Any], list[Any]]]) -> None:
    messages = []
    for has_header, header_tables, part_slices in parts:
        part = ASSEMBLERS[kind].part(slices=part_slices)
        if has_header:
            part.header.tables.extend(header_tables)
            if hasattr(part.header, "fence"):
                part.header.fence.map_version = 1
        messages.append(part.SerializeToString())
    read(kind, messages)
