from collections.abc import Iterable

import numpy as np
import pytest
from google.protobuf.message import Message

from ps_proto import common_pb2
from ps_proto import parameter_server_pb2 as pb
from ps_proto.errors import InvalidRequest, RequestTooLarge
from ps_proto.parts import ASSEMBLERS, PART_SIZE_BYTES_MAX, STREAMED, PulledAssembler, PushAssembler, Streamed, cut
from ps_proto.requests import Assign, ExportPart, Fence, Pull, Pulled, Push, TableIds, TableRows
from samples import FENCE, IDS, REPLIES, REQUESTS, ROWS, same

STREAMS = [value for value in REQUESTS + REPLIES if isinstance(value, STREAMED)]


def assemble(kind: type, parts: Iterable[Message]) -> Streamed:
    assembler = ASSEMBLERS[kind]("server-0")
    for part in parts:
        assembler.take(part)
    value: Streamed = assembler.value()
    return value


@pytest.mark.parametrize("part_size_bytes", [1, 20, 4_096])
@pytest.mark.parametrize("value", STREAMS, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_from_its_parts(value: Streamed, part_size_bytes: int) -> None:
    assert same(assemble(type(value), cut(value, part_size_bytes)), value)


def test_arrays_travel_little_endian_in_c_order() -> None:
    rows = np.array([[1.0, -2.0], [0.5, 0.0]], dtype=np.float32).T  # not C-contiguous in memory
    (part,) = cut(Push(FENCE, 0, (TableRows("user", np.array([1, 2**64 - 1], dtype=np.uint64), rows),)))
    assert isinstance(part, pb.PushPart)
    assert part.slices[0].ids.hex() == "0100000000000000" + "ff" * 8
    assert part.slices[0].rows.hex() == "0000803f" + "0000003f" + "000000c0" + "00000000"


def test_a_part_holds_what_it_may_and_at_least_a_row() -> None:
    # A row of `user` is 8 + 12 bytes, a row of `item` 8 + 8.
    push = Push(FENCE, 0, (TableRows("user", IDS, ROWS), TableRows("item", IDS, ROWS[:, :2].copy())))

    def rows_by_part(part_size_bytes: int) -> list[list[tuple[int, int]]]:
        return [[(piece.table, len(piece.ids) // 8) for piece in part.slices] for part in cut(push, part_size_bytes)]  # type: ignore[attr-defined]

    assert rows_by_part(1) == [[(0, 1)]] * 4 + [[(1, 1)]] * 4
    assert rows_by_part(59) == [[(0, 2)], [(0, 2), (1, 1)], [(1, 3)]]
    assert rows_by_part(144) == [[(0, 4), (1, 4)]]
    assert rows_by_part(143) == [[(0, 4), (1, 3)], [(1, 1)]]


def test_only_the_first_part_has_the_header() -> None:
    parts = list(cut(Pull(FENCE, (TableIds("user", IDS),)), 8))
    assert [part.HasField("header") for part in parts] == [True, False, False, False]


def test_a_request_without_rows_is_one_part() -> None:
    (part,) = cut(Pull(FENCE))
    assert part.HasField("header")
    assert same(assemble(Pull, [part]), Pull(FENCE))


@pytest.mark.parametrize("part_size_bytes", [0, -1, PART_SIZE_BYTES_MAX + 1])
def test_a_part_size_out_of_range_is_refused(part_size_bytes: int) -> None:
    with pytest.raises(InvalidRequest, match="part_size_bytes"):
        next(cut(Pull(FENCE), part_size_bytes))


@pytest.mark.parametrize(
    "push", [Push(Fence(0, clock=2**31), 0, ()), Push(FENCE, 2**64, ()), Push(FENCE, 0, (TableRows("user", IDS[:1], ROWS),))]
)
def test_what_fits_no_part_is_refused_before_the_first(push: Push) -> None:
    with pytest.raises(InvalidRequest):
        next(cut(push))


def test_assembled_arrays_are_aligned_contiguous_and_writable() -> None:
    push = assemble(Push, cut(Push(FENCE, 0, (TableRows("a", IDS[:3], ROWS[:3]), TableRows("b", IDS, ROWS))), 9))
    assert isinstance(push, Push)
    for array in (part for table in push.tables for part in (table.ids, table.rows)):
        assert array.ctypes.data % 64 == 0
        assert array.flags.c_contiguous
        assert array.flags.writeable


# --- what a peer may have got wrong -----------------------------------------------------------------------------------------

_FENCE = common_pb2.Fence(map_version=1)
_ID, _ROW = b"\x01" * 8, b"\x01" * 8


def _header(rows: int = 2, dim: int = 2, **fields: object) -> pb.PushHeader:
    return pb.PushHeader(fence=_FENCE, tables=[pb.TableShape(table="user", rows=rows, dim=dim)], **fields)  # type: ignore[arg-type]


def _header_of_list(pull: int) -> pb.PushHeader:
    return pb.PushHeader(fence=_FENCE, tables=[pb.TableShape(table="user", rows=2, dim=2, pull=pull)])


def _slice(ids: bytes = _ID * 2, rows: bytes = _ROW * 2, table: int = 0) -> list[pb.Slice]:
    return [pb.Slice(table=table, ids=ids, rows=rows)]


MALFORMED = {
    "no part": ([], "header", "missing"),
    "no header": ([pb.PushPart(slices=_slice())], "header", "missing"),
    "two headers": ([pb.PushPart(header=_header(0)), pb.PushPart(header=_header(0))], "header", "repeated"),
    "no fence": ([pb.PushPart(header=pb.PushHeader())], "Push.fence", "missing"),
    "negative seq": ([pb.PushPart(header=_header(0, seq=-1))], "Push.seq", "-1"),
    "negative count": ([pb.PushPart(header=_header(-1))], "rows of table 'user'", "-1"),
    "dim 0": ([pb.PushPart(header=_header(dim=0))], "dim of table 'user'", "0"),
    "negative dim": ([pb.PushPart(header=_header(dim=-4))], "dim of table 'user'", "-4"),
    "a dim too great": ([pb.PushPart(header=_header(dim=65_537))], "dim of table 'user'", "65537"),
    "a table twice": (
        [pb.PushPart(header=pb.PushHeader(fence=_FENCE, tables=[pb.TableShape(table="user", dim=1)] * 2))],
        "header.tables",
        "2 tables of 1 names",
    ),
    "an unknown table": ([pb.PushPart(header=_header(), slices=_slice(table=1))], "slice.table", "1"),
    "a negative table": ([pb.PushPart(header=_header(), slices=_slice(table=-1))], "slice.table", "-1"),
    "half an id": (
        [pb.PushPart(header=_header(), slices=_slice(ids=_ID + b"x"))],
        "slices of table 'user'",
        "9 bytes of ids, 16 bytes of rows",
    ),
    "half a row": (
        [pb.PushPart(header=_header(), slices=_slice(rows=_ROW + b"x"))],
        "slices of table 'user'",
        "16 bytes of ids, 9 bytes of rows",
    ),
    "rows of another dim": (
        [pb.PushPart(header=_header(dim=3), slices=_slice())],
        "slices of table 'user'",
        "16 bytes of ids, 16 bytes of rows",
    ),
    "ids without rows": (
        [pb.PushPart(header=_header(), slices=_slice(rows=b""))],
        "slices of table 'user'",
        "16 bytes of ids, 0 bytes of rows",
    ),
    "too many rows": ([pb.PushPart(header=_header(1), slices=_slice())], "slices of table 'user'", "2 rows or more"),
    "ids beside the name of a pull": (
        [pb.PushPart(header=_header_of_list(7), slices=_slice())],
        "slices of table 'user'",
        "16 bytes of ids, 16 bytes of rows",
    ),
    "neither ids nor the name of a pull": (
        [pb.PushPart(header=_header_of_list(0), slices=_slice(ids=b""))],
        "slices of table 'user'",
        "0 bytes of ids, 16 bytes of rows",
    ),
    "a negative pull": ([pb.PushPart(header=_header_of_list(-1))], "pull of table 'user'", "-1"),
    "too few rows": ([pb.PushPart(header=_header(3), slices=_slice())], "slices of table 'user'", "2 rows"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_push_is_refused_by_what_is_wrong(case: str) -> None:
    parts, field, got = MALFORMED[case]
    with pytest.raises(InvalidRequest) as caught:
        assemble(Push, parts)
    assert (caught.value.field, caught.value.got) == (field, got)


@pytest.mark.parametrize("part", [pb.PulledPart(slices=[pb.Slice(ids=_ID)]), pb.PulledPart(slices=[pb.Slice(rows=_ROW, ids=_ID)])])
def test_ids_in_a_reply_are_refused(part: pb.PulledPart) -> None:
    assembler = PulledAssembler("server-0")
    assembler.take(pb.PulledPart(header=pb.PulledHeader(tables=[pb.TableShape(rows=1, dim=2)])))
    with pytest.raises(InvalidRequest):
        assembler.take(part)


def test_only_a_pull_and_a_push_may_name_a_list() -> None:
    shape = pb.TableShape(table="user", rows=1, dim=2, pull=1)
    for kind, header in ((Assign, pb.AssignHeader(fence=_FENCE, tables=[shape])), (Pulled, pb.PulledHeader(tables=[shape]))):
        with pytest.raises(InvalidRequest, match="pull of table 'user' is 1, but must be from 0 to 0, here"):
            ASSEMBLERS[kind]("server-0").take_header(header)


def test_a_push_that_names_a_pull_carries_no_ids() -> None:
    push = Push(FENCE, 1, (TableRows("user", IDS[:0], ROWS, 5), TableRows("item", IDS, ROWS)))
    (part,) = cut(push)
    assert isinstance(part, pb.PushPart)
    assert [len(piece.ids) for piece in part.slices] == [0, 8 * len(IDS)]
    PushAssembler("server-0", 4 * 12 + 4 * (8 + 12)).take_header(part.header)  # and announces none
    assert same(assemble(Push, cut(push, 30)), push)


def test_replies_do_not_name_their_tables() -> None:
    pulled = Pulled((ROWS, ROWS), 0)
    assert same(assemble(Pulled, cut(pulled)), pulled)


def test_records_may_be_wider_than_rows() -> None:
    wide = np.zeros((1, 3 * 65_536 + 1), np.float32)  # of Adam, at the greatest dim
    for value in (Assign(FENCE, 1, (TableRows("user", IDS[:1], wide),)), ExportPart(IDS[:1], wide)):
        assert same(assemble(type(value), cut(value)), value)
    with pytest.raises(InvalidRequest, match="dim of table 'user'"):
        assemble(Push, cut(Push(FENCE, 1, (TableRows("user", IDS[:1], wide),))))


def test_a_request_over_the_limit_is_refused_before_there_is_room_for_it() -> None:
    header = _header(rows=2**40, dim=65_536)
    with pytest.raises(RequestTooLarge) as caught:
        PushAssembler("server-0", 2**30).take_header(header)
    assert caught.value.server == "server-0"
    assert caught.value.bytes_announced == 2**40 * (8 + 4 * 65_536)
    assert caught.value.bytes_max == 2**30


def test_the_limit_itself_is_no_excess() -> None:
    PushAssembler("server-0", 32).take_header(_header(rows=2, dim=2))
    with pytest.raises(RequestTooLarge):
        PushAssembler("server-0", 31).take_header(_header(rows=2, dim=2))
