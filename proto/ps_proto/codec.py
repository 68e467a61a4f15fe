"""Turn values into protobuf messages and back; with parts.py and sharding/wire_format.py all that knows dtypes on the
wire and endianness.

Each value class of requests.py and orders.py has a message of the same name, with fields of the same names; the few types that differ
(settings, a map's owners) have a converter here. So `encode` and `decode` are derived from the classes, once, and a new request is a class
there and a message in a .proto file. Requests and replies that carry rows travel in parts: parts.py.

What a peer may have got wrong raises InvalidRequest with the field's name: a missing message, a number out of its range, malformed bytes.
"""

import math
import types
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from ps_proto import common_pb2, coordinator_pb2, parameter_server_pb2, stored_pb2
from ps_proto.errors import InvalidRequest
from ps_proto.requests import NEVER, OBSERVER
from ps_proto.values import Initializer, Mode, Optimizer, Setting, initializer_from_wire, mode_from_wire, optimizer_from_wire
from sharding.hashing import NUM_BUCKETS

ID = np.dtype("<u8")
OWNER = np.dtype("<u2")

CLOCK_MAX = 2**31 - 1
SEQ_MAX = 2**32 - 1  # a push is named clock << 32 | seq
RESUME_BYTES_MAX = 65_536
WAIT_S_MAX = 1e9

AnyMessage = TypeVar("AnyMessage", bound=Message)
AnyValue = TypeVar("AnyValue")

# Least and greatest of a number (of a length, for bytes), by field name: a name means the same in every message.
_LIMITS: dict[str, tuple[float, float]] = {
    "map_version": (0, 2**63 - 1),
    "rank": (OBSERVER, 2**31 - 1),
    "incarnation": (0, 2**63 - 1),
    "clock": (0, CLOCK_MAX),
    "timeline": (0, 2**63 - 1),
    "seq": (0, SEQ_MAX),
    "at_step": (-1, CLOCK_MAX),
    "wait_s": (0, WAIT_S_MAX),
    "resume": (0, RESUME_BYTES_MAX),
    "rows_begin": (0, 2**63 - 1),
    "rows_max": (1, 2**63 - 1),
    "world_size": (0, 2**31 - 1),
    "first_clock": (0, CLOCK_MAX),
    "finished": (NEVER, CLOCK_MAX),
    "applied": (NEVER, CLOCK_MAX),
    "clock_max": (NEVER, CLOCK_MAX),
    "generation": (0, 2**63 - 1),
    "turn": (0, CLOCK_MAX),
    "barrier": (0, 2**63 - 1),
    "nonce": (0, 2**64 - 1),
    "weight": (1e-6, 1e6),
    "port": (0, 2**16 - 1),
    "token": (0, 64),
    "max_request_bytes": (0, 2**63 - 1),
    "cluster": (0, 2**64 - 1),
    "number": (0, 2**63 - 1),
    "checkpoint": (0, 2**63 - 1),
    "base": (-1, 2**63 - 1),
    "shard": (0, 2**31 - 1),
    "boundary": (-1, CLOCK_MAX),
    "at_least": (-1, CLOCK_MAX),
    "step": (-1, CLOCK_MAX),
    "first": (0, CLOCK_MAX),
    "since": (NEVER, CLOCK_MAX),
    "slowest": (OBSERVER, 2**31 - 1),
    "size_bytes": (0, 2**63 - 1),
    "rows": (0, 2**63 - 1),
    "nbytes": (0, 2**63 - 1),
    "stall_s": (0, WAIT_S_MAX),
    "took_s": (0, WAIT_S_MAX),
    "lease_s": (0, WAIT_S_MAX),
}
_SETTINGS: dict[type, tuple[str, Callable[[str, dict[str, float]], Setting]]] = {
    Optimizer: ("optimizer", optimizer_from_wire),
    Initializer: ("initializer", initializer_from_wire),
    Mode: ("mode", mode_from_wire),
}
_PLAIN = (int, float, str, bytes, bool)
_MODULES = (common_pb2, parameter_server_pb2, coordinator_pb2, stored_pb2)


@dataclass(frozen=True, slots=True)
class _Field:
    """How one field of a value class travels."""

    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    has_presence: bool
    is_optional: bool
    is_limited: bool


def encode(value: object) -> Message:
    """Return the message of a value whose class travels whole; a value that no message can hold raises InvalidRequest."""
    owner = type(value)
    wire: dict[str, Any] = {}
    for field in _PLANS[owner]:
        part = getattr(value, field.name)
        if part is not None:
            if field.is_limited:
                check_limits(owner.__name__, field.name, part)
            wire[field.name] = field.encode(part)
        elif not field.is_optional:
            raise InvalidRequest(f"{owner.__name__}.{field.name}", "None", "a value")
    return build(message_type(owner.__name__), owner.__name__, wire)


def decode(owner: type[AnyValue], message: Message) -> AnyValue:
    """Return the value of class `owner` that `message` stands for; InvalidRequest where it is none."""
    values: dict[str, Any] = {}
    for field in _PLANS[owner]:
        if field.has_presence and not message.HasField(field.name):
            if not field.is_optional:
                raise InvalidRequest(f"{owner.__name__}.{field.name}", "missing", "a message")
            values[field.name] = None
            continue
        values[field.name] = value = field.decode(getattr(message, field.name))
        if field.is_limited:
            check_limits(owner.__name__, field.name, value)
    try:
        return owner(**values)
    except InvalidRequest:
        raise
    except ValueError as error:  # the value classes of `sharding` raise it for misuse
        raise InvalidRequest(owner.__name__, "malformed", f"a valid one: {error}") from None


def parse(message: type[AnyMessage], data: bytes) -> AnyMessage:
    """Return the message that `data` holds; bytes that are none raise InvalidRequest."""
    try:
        return message.FromString(data)
    except DecodeError:
        raise InvalidRequest("the message", f"{len(data)} bytes that do not parse", f"a rowstead.v1.{message.__name__}") from None


def build(message: type[AnyMessage], what: str, wire: dict[str, Any]) -> AnyMessage:
    """Return a message of these fields; the field that does not fit (a number too great, text that is no UTF-8) raises InvalidRequest."""
    try:
        return message(**wire)
    except (ValueError, TypeError):
        for name, value in wire.items():
            try:
                message(**{name: value})
            except (ValueError, TypeError) as error:
                raise InvalidRequest(f"{what}.{name}", repr(value), f"what the wire can carry ({error})") from None
        raise


def check_limits(what: str, name: str, value: float | bytes) -> None:
    """Raise InvalidRequest where the number called `name` (for bytes their length) is out of its limits; NaN is."""
    low, high = _LIMITS[name]
    number = len(value) if isinstance(value, bytes) else value
    if not low <= number <= high:
        raise InvalidRequest(
            f"{what}.{name}", repr(number), f"{'bytes of a length' if isinstance(value, bytes) else 'a number'} from {low} to {high}"
        )


@cache
def message_type(name: str) -> type[Message]:
    """Return the message class called `name`."""
    for module in _MODULES:
        if name in module.DESCRIPTOR.message_types_by_name:
            found: type[Message] = getattr(module, name)
            return found
    raise LookupError(f"No .proto file has a message {name}.")


class _Plans(dict[type, tuple[_Field, ...]]):
    """How the fields of each value class travel; made when the class is first met."""

    def __missing__(self, owner: type) -> tuple[_Field, ...]:
        hints = get_type_hints(owner)
        self[owner] = plan = tuple(_field(field.name, hints[field.name]) for field in fields(owner))
        return plan


_PLANS = _Plans()


def _field(name: str, hint: Any) -> _Field:
    is_optional = get_origin(hint) in (Union, types.UnionType)
    if is_optional:
        (hint,) = (option for option in get_args(hint) if option is not type(None))
    encode_one, decode_one = _converter(hint)
    is_plain = hint in _PLAIN
    return _Field(
        name,
        encode_one,
        decode_one,
        has_presence=is_optional or (not is_plain and get_origin(hint) is None),
        is_optional=is_optional,
        is_limited=is_plain and name in _LIMITS,
    )


def _converter(hint: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return the pair that turns a value of this type into what a message's field holds, and back."""
    if hint in _PLAIN:
        return _same, _same
    if hint in _SETTINGS:
        what, from_wire = _SETTINGS[hint]
        return _encode_setting, lambda message: _decode_setting(what, from_wire, message)
    if hint == NDArray[np.int32]:
        return lambda owners: owners.astype(OWNER).tobytes(), _decode_owners
    if isinstance(hint, type) and is_dataclass(hint):
        return encode, lambda message: decode(hint, message)
    if get_origin(hint) is tuple:
        encode_one, decode_one = _converter(get_args(hint)[0])
        return lambda values: [encode_one(value) for value in values], lambda wire: tuple(decode_one(item) for item in wire)
    if hint in (dict[str, dict[str, float]], dict[int, dict[str, float]]):
        return _encode_numbers, lambda wire: {name: dict(item.numbers) for name, item in wire.items()}
    if get_origin(hint) is dict:
        return dict, dict
    raise TypeError(f"No converter for fields of type {hint}.")


def _same(value: Any) -> Any:
    return value


def _encode_setting(setting: Setting) -> Message:
    return build(common_pb2.Setting, type(setting).__name__, {"kind": setting.label, "parameters": setting.parameters()})


def _decode_setting(what: str, from_wire: Callable[[str, dict[str, float]], Setting], message: common_pb2.Setting) -> Setting:
    for name, number in message.parameters.items():
        if not math.isfinite(number):
            raise InvalidRequest(f"{what}.{name}", str(number), "a finite number")
    return from_wire(message.kind, dict(message.parameters))


def _encode_numbers(parts: dict[Any, dict[str, float]]) -> dict[Any, Message]:
    return {name: build(parameter_server_pb2.Numbers, str(name), {"numbers": numbers}) for name, numbers in parts.items()}


def _decode_owners(data: bytes) -> NDArray[np.int32]:
    if len(data) != NUM_BUCKETS * OWNER.itemsize:
        raise InvalidRequest("ShardMap.owners", f"{len(data)} bytes", f"{NUM_BUCKETS * OWNER.itemsize} bytes")
    return np.frombuffer(data, dtype=OWNER).astype(np.int32)
