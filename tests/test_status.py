import dataclasses
import types
import typing

import grpc
import pytest

from ps_proto import common_pb2
from ps_proto.errors import InternalError, InvalidRequest, NotOwner, ParameterServerError, RequestTooLarge, Unreachable, error_classes
from ps_proto.status import MESSAGE_BYTES_MAX, TEXT_BYTES_MAX, as_ours, from_status, to_status

CLASSES = error_classes()
_SAMPLE_OF: dict[object, list[object]] = {
    str: ["server-0", "", "größe 🎈 'quoted'\n"],
    int: [7, -1, 2**63, -(2**63)],
    float: [1.5, 3.0, float("inf")],
}


def samples(kind: type[ParameterServerError]) -> list[ParameterServerError]:
    """Return three errors of a class, each with a value of its type in every field."""
    hints = typing.get_type_hints(kind)
    columns = []
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]  # each subclass is a dataclass
        hint = hints[field.name]
        options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        columns.append([value for option in options for value in _SAMPLE_OF.get(option, [None])])
    return [kind(*(column[turn % len(column)] for column in columns)) for turn in range(4)]


@pytest.mark.parametrize("name", CLASSES)
def test_an_error_comes_back_as_the_same_class_with_the_same_fields(name: str) -> None:
    for error in samples(CLASSES[name]):
        code, message, detail = to_status(error)
        back = from_status(code, message, detail)
        assert type(back) is type(error)
        assert back.values() == error.values()
        assert [type(value) for value in back.values().values()] == [type(value) for value in error.values().values()]
        assert code.name == error.code


def test_the_sentence_travels_for_people() -> None:
    code, message, _ = to_status(NotOwner("server-1", 4))
    assert code is grpc.StatusCode.ABORTED
    assert message == str(NotOwner("server-1", 4))


def test_long_texts_are_cut_so_that_the_metadata_has_room() -> None:
    error = InvalidRequest("ids", "🎈" * 100_000, "short")
    code, message, detail = to_status(error)
    back = from_status(code, message, detail)
    assert isinstance(back, InvalidRequest)
    assert len(message.encode()) <= MESSAGE_BYTES_MAX
    assert len(back.got.encode()) <= TEXT_BYTES_MAX
    assert back.got == "🎈" * 255 + "…"
    assert (back.field, back.want) == ("ids", "short")


def test_text_that_utf8_cannot_say_is_escaped() -> None:
    back = from_status(*to_status(InvalidRequest("table", "\ud800", "text")))
    assert back.values()["got"] == "\\ud800"


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_a_status_without_our_detail_is_unreachable_or_invalid(code: grpc.StatusCode) -> None:
    error = from_status(code, "said a proxy", None, peer="server-1", address="host:1", after_s=2.0)
    curable = {"CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
    if code.name in curable:
        assert isinstance(error, Unreachable)
        assert error.values() == {"peer": "server-1", "address": "host:1", "after_s": 2.0, "cause": f"{code.name}: said a proxy"}
    else:
        assert isinstance(error, InvalidRequest)
        assert f"{code.name}: said a proxy" in str(error)


def test_a_message_beyond_the_peers_limit_is_not_tried_again() -> None:
    error = from_status(grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max (9 vs. 4)", None)
    assert isinstance(error, InvalidRequest)


@pytest.mark.parametrize(
    "detail",
    [
        b"\xff\xff",
        common_pb2.ErrorDetail(class_name="FromTheFuture").SerializeToString(),
        common_pb2.ErrorDetail(class_name="NotOwner", fields={"server": common_pb2.ErrorField(text="a")}).SerializeToString(),
    ],
)
def test_a_detail_that_nobody_here_knows_counts_as_none(detail: bytes) -> None:
    assert isinstance(from_status(grpc.StatusCode.UNAVAILABLE, "", detail), Unreachable)


def test_an_exception_that_is_not_ours_becomes_an_internal_error() -> None:
    error = as_ours(ZeroDivisionError("division by zero"), "server-0", "4f2a")
    assert isinstance(error, InternalError)
    assert error.values() == {"peer": "server-0", "incident": "4f2a", "summary": "ZeroDivisionError: division by zero"}
    ours = RequestTooLarge("server-0", 2, 1)
    assert as_ours(ours, "server-0", "4f2a") is ours
