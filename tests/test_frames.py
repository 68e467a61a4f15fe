import numpy as np
import pytest

from ps_proto import parameter_server_pb2 as pb
from ps_proto.errors import InvalidRequest, RequestTooLarge
from ps_proto.frames import (
    ERROR,
    HEAD_BYTES,
    HELLO,
    IN_ARENA,
    LANE_METHODS,
    MESSAGE_BYTES_MAX,
    REQUEST,
    Array,
    Head,
    Incoming,
    begin_of,
    filled,
    filled_bytes,
    message_of,
    pieces_of,
)
from ps_proto.methods import METHODS, PARAMETER_SERVER
from ps_proto.requests import Assign, Done, Fence, Pull, Push, TableIds, TableRows
from samples import FENCE, IDS, REPLIES, REQUESTS, ROWS, same
from sharding.arrays import empty_aligned

BYTES_MAX = 1 << 20
CARRIED = [body for body in REQUESTS if type(body) in LANE_METHODS] + [
    body for body in REPLIES if type(body) in {METHODS[method].reply for method in LANE_METHODS}
]


def framed(value: object, kind: int = REQUEST) -> bytes:
    """Return the whole frame of a value."""
    message, arrays = message_of(value)
    head = Head(kind, message_bytes=len(message), arrays_bytes=filled_bytes(arrays))
    return b"".join([begin_of(head, message), *pieces_of(arrays)])


def taken(kind: type, frame: bytes) -> object:
    """Return the value in a frame."""
    head = Head.unpack(frame)
    incoming = Incoming(kind, frame[HEAD_BYTES : HEAD_BYTES + head.message_bytes], "server-0", BYTES_MAX)
    begin = head.begin_bytes
    for room in incoming.rooms(head, empty_aligned):
        room.reshape(-1)[:] = np.frombuffer(frame, room.dtype, room.size, begin)
        begin += filled(room.nbytes)
    assert begin == len(frame)
    return incoming.value()


@pytest.mark.parametrize("value", CARRIED, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_from_its_frame(value: object) -> None:
    frame = framed(value)
    assert len(frame) % 64 == 0
    assert same(taken(type(value), frame), value)


def test_every_lane_method_is_a_servers() -> None:
    assert all(METHODS[method].service == PARAMETER_SERVER for method in LANE_METHODS)
    # On the wire a method is its number: this list only ever grows at its end.
    names = ["Pull", "Push", "Assign", "ClearTable", "Finish", "OpenExport", "ReadExport", "CloseExport", "GetStats", "InstallMap"]
    assert [method.__name__ for method in LANE_METHODS] == names


def test_a_head_is_these_bytes() -> None:
    head = Head(REQUEST, 258, 3, 4, IN_ARENA, 5, 6, 7, 8)
    fields = ["524f5753", "01", "02", "0201", "0300000000000000", "04000000", "01000000"]
    fields += [f"0{number}00000000000000" for number in (5, 6, 7, 8)] + ["00" * 8]
    assert head.pack().hex() == "".join(fields)
    assert Head.unpack(head.pack()) == head


def test_every_array_begins_at_a_multiple_of_64() -> None:
    push = Push(FENCE, 1, (TableRows("a", IDS[:1], ROWS[:1]), TableRows("b", IDS[:3], ROWS[:3])))
    frame = framed(push)
    begin = Head.unpack(frame).begin_bytes
    assert frame[begin : begin + 8] == IDS[:1].tobytes()
    assert frame[begin + 64 : begin + 76] == ROWS[:1].tobytes()
    assert frame[begin + 128 : begin + 152] == IDS[:3].tobytes()
    assert len(frame) == begin + 4 * 64
    arrays = taken(Push, frame).tables  # type: ignore[attr-defined]
    assert [array.ctypes.data % 64 for table in arrays for array in (table.ids, table.rows)] == [0] * 4


def test_arrays_are_made_contiguous() -> None:
    rows = np.arange(6, dtype=np.float32).reshape(2, 3).T
    ids = np.arange(6, dtype=np.uint64)[::2]
    assert same(taken(Push, framed(Push(FENCE, 1, (TableRows("a", ids, rows),)))), Push(FENCE, 1, (TableRows("a", ids, rows.copy()),)))


def test_what_fits_no_message_makes_no_frame() -> None:
    with pytest.raises(InvalidRequest, match=r"Fence\.clock"):
        message_of(Push(Fence(0, clock=-1), 0, ()))


@pytest.mark.parametrize(
    ("head", "field"),
    [
        (b"GET / HTTP/1.1\r\n".ljust(64), "the first four bytes"),
        (bytes(64), "the first four bytes"),
        (b"ROWS\x02" + bytes(59), "a frame's version"),
        (b"ROWS\x01\x00" + bytes(58), "a frame's kind"),
        (b"ROWS\x01\x05" + bytes(58), "a frame's kind"),
        (Head(HELLO, message_bytes=MESSAGE_BYTES_MAX + 1).pack(), "a frame's message"),
    ],
)
def test_what_is_no_head_is_refused_by_what_is_wrong(head: bytes, field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        Head.unpack(head)


def test_the_greatest_message_is_no_excess() -> None:
    head = Head(ERROR, message_bytes=MESSAGE_BYTES_MAX)
    assert Head.unpack(head.pack()) == head


class Counted:
    """Makes arrays, and counts them."""

    def __init__(self) -> None:
        self.made: list[tuple[int, ...]] = []

    def __call__(self, shape: tuple[int, ...], dtype: "np.dtype[np.generic]") -> Array:
        self.made.append(shape)
        return np.empty(shape, dtype)


def incoming(rows: int, dim: int, kind: type = Push, bytes_max: int = BYTES_MAX) -> Incoming:
    shape = pb.TableShape(table="user", rows=rows, dim=dim)
    header = pb.PushHeader(fence={"map_version": 1}, tables=[shape])
    return Incoming(kind, header.SerializeToString(), "server-0", bytes_max)


@pytest.mark.parametrize(
    ("arrays_bytes", "which"), [(0, "more"), (64, "more"), (127, "more"), (129, "fewer"), (192, "fewer"), (2**63, "fewer")]
)
def test_a_head_that_lies_about_its_arrays_is_refused(arrays_bytes: int, which: str) -> None:
    make = Counted()
    with pytest.raises(InvalidRequest, match=which):
        incoming(2, 3).rooms(Head(REQUEST, arrays_bytes=arrays_bytes), make)
    assert len(make.made) <= (2 if which == "fewer" else 1), "no room is made that the head has no bytes for"
    assert len(incoming(2, 3).rooms(Head(REQUEST, arrays_bytes=128), Counted())) == 2


def test_a_message_without_arrays_must_have_none() -> None:
    with pytest.raises(InvalidRequest, match="fewer"):
        Incoming(Done, b"", "server-0", BYTES_MAX).rooms(Head(REQUEST, arrays_bytes=64), Counted())


@pytest.mark.parametrize(("rows", "dim"), [(2**40, 65_536), (2**62, 1)])
def test_more_than_a_peer_takes_is_refused_before_there_is_room(rows: int, dim: int) -> None:
    make = Counted()
    with pytest.raises(RequestTooLarge):
        incoming(rows, dim).rooms(Head(REQUEST, arrays_bytes=2**64 - 1), make)
    assert make.made == []


@pytest.mark.parametrize("kind", [Pull, Push, Assign, Done])
def test_a_message_that_does_not_parse_is_refused(kind: type) -> None:
    with pytest.raises(InvalidRequest):
        Incoming(kind, b"\xff\xff\xff", "server-0", BYTES_MAX).value()


def test_a_pull_brings_ids_only() -> None:
    message, arrays = message_of(Pull(FENCE, (TableIds("user", IDS),)))
    assert [array.dtype.str for array in arrays] == ["<u8"]
    assert pb.PullHeader.FromString(message).tables[0].dim == 0
