"""Turn our errors into gRPC statuses and back; the only place where classes and grpc.StatusCode meet.

The status carries the class's code and its sentence, for people and for clients in other languages. An ErrorDetail beside it, in the
trailing metadata under DETAIL_KEY, carries class and fields, from which the other side builds the same exception.
"""

from dataclasses import fields
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from ps_proto import common_pb2
from ps_proto.errors import Field, InternalError, InvalidRequest, ParameterServerError, Unreachable, error_classes

DETAIL_KEY = "rowstead-error-bin"

# gRPC peers take 8 KiB of metadata for certain. A sentence is percent-encoded (up to threefold) and the detail may become base64.
MESSAGE_BYTES_MAX = 1_000
TEXT_BYTES_MAX = 1_024

_CODES: dict[str, grpc.StatusCode] = {code.name: code for code in grpc.StatusCode}
_CLASSES = error_classes()
_INT64 = range(-(2**63), 2**63)

# What gRPC itself or a proxy says of a request that no repetition can cure.
_INCURABLE = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAUTHENTICATED,
}


def as_ours(error: BaseException, peer: str, incident: str) -> ParameterServerError:
    """Return `error` if it is one of ours; any other exception is a bug of `peer`, logged under `incident`."""
    if isinstance(error, ParameterServerError):
        return error
    return InternalError(peer, incident, f"{type(error).__name__}: {error}")


def to_status(error: ParameterServerError) -> tuple[grpc.StatusCode, str, bytes]:
    """Return the status code, the sentence and the detail of an error.

    Texts are cut at TEXT_BYTES_MAX, since metadata has a limit; apart from that `from_status` gives the same error back.
    """
    return _CODES[error.code], _cut(str(error), MESSAGE_BYTES_MAX), to_detail(error)


def to_detail(error: ParameterServerError) -> bytes:
    """Return the detail of an error, as bytes; its texts are cut."""
    detail = common_pb2.ErrorDetail(class_name=type(error).__name__)
    for name, value in error.values().items():
        _encode_field(detail.fields[name], value)
    return detail.SerializeToString()


def from_status(
    code: grpc.StatusCode,
    message: str,
    detail: bytes | None,
    *,
    peer: str = "The peer",
    address: str = "an unknown address",
    after_s: float = 0.0,
) -> ParameterServerError:
    """Return the error that a status stands for.

    Without a detail of ours the status is gRPC's own or a proxy's: Unreachable where the same call may succeed later (pushes are named, so
    repeating one is safe), else InvalidRequest. `peer`, `address` and `after_s` say who was asked, and how long ago.
    """
    error = from_detail(detail) if detail else None
    if error is not None:
        return error
    said = f"{code.name}: {message}" if message else code.name
    # The only RESOURCE_EXHAUSTED that lasts: a message beyond the other side's limit. Others are throttling.
    if code in _INCURABLE or (code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in message):
        return InvalidRequest(
            f"the call to {peer} at {address}", f"refused with {said}", "one that it serves: check the address, and both sides' versions"
        )
    return Unreachable(peer, address, after_s, said)


def from_call(error: grpc.RpcError, *, peer: str, address: str, after_s: float) -> ParameterServerError:
    """Return the error for which a call has failed; with grpc or grpc.aio."""
    call: Any = error  # what is raised is an RpcError and the call in one, which no stub says
    details = [value for key, value in call.trailing_metadata() or () if key == DETAIL_KEY]
    return from_status(call.code(), call.details() or "", details[0] if details else None, peer=peer, address=address, after_s=after_s)


def from_detail(data: bytes) -> ParameterServerError | None:
    """Return the error of a detail; None where it is malformed, or of a class that only a newer version knows."""
    try:
        detail = common_pb2.ErrorDetail.FromString(data)
    except DecodeError:
        return None
    error = _CLASSES.get(detail.class_name)
    if error is None or {field.name for field in fields(error)} != set(detail.fields):  # type: ignore[arg-type]  # each subclass is a dataclass
        return None
    return error(**{name: _decode_field(value) for name, value in detail.fields.items()})


def _encode_field(field: common_pb2.ErrorField, value: Field) -> None:
    if isinstance(value, str):
        field.text = _cut(value, TEXT_BYTES_MAX)
    elif isinstance(value, float):
        field.real = value
    elif value is None:
        field.SetInParent()
    elif value in _INT64:
        field.whole = value
    else:
        field.big = str(value)


def _decode_field(field: common_pb2.ErrorField) -> Field:
    match field.WhichOneof("value"):
        case "text":
            return field.text
        case "whole":
            return field.whole
        case "real":
            return field.real
        case "big":
            return int(field.big)
        case _:
            return None


def _cut(text: str, bytes_max: int) -> str:
    """Return `text` in at most `bytes_max` bytes of UTF-8; what UTF-8 cannot say (lone surrogates) is written as an escape."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= bytes_max:
        return data.decode()
    return data[: bytes_max - len("…".encode())].decode("utf-8", "ignore") + "…"
