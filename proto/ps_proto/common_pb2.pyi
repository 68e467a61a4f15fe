from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Fence(_message.Message):
    __slots__ = ("map_version", "rank", "incarnation", "clock", "timeline")
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    map_version: int
    rank: int
    incarnation: int
    clock: int
    timeline: int
    def __init__(self, map_version: _Optional[int] = ..., rank: _Optional[int] = ..., incarnation: _Optional[int] = ..., clock: _Optional[int] = ..., timeline: _Optional[int] = ...) -> None: ...

class Setting(_message.Message):
    __slots__ = ("kind", "parameters")
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    parameters: _containers.ScalarMap[str, float]
    def __init__(self, kind: _Optional[str] = ..., parameters: _Optional[_Mapping[str, float]] = ...) -> None: ...

class TableSpec(_message.Message):
    __slots__ = ("name", "dim", "optimizer", "initializer", "seed", "mode", "dtype", "max_norm", "wire")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    INITIALIZER_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    MAX_NORM_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dim: int
    optimizer: Setting
    initializer: Setting
    seed: int
    mode: Setting
    dtype: str
    max_norm: float
    wire: str
    def __init__(self, name: _Optional[str] = ..., dim: _Optional[int] = ..., optimizer: _Optional[_Union[Setting, _Mapping]] = ..., initializer: _Optional[_Union[Setting, _Mapping]] = ..., seed: _Optional[int] = ..., mode: _Optional[_Union[Setting, _Mapping]] = ..., dtype: _Optional[str] = ..., max_norm: _Optional[float] = ..., wire: _Optional[str] = ...) -> None: ...

class Server(_message.Message):
    __slots__ = ("name", "address", "incarnation", "weight")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    incarnation: int
    weight: float
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., incarnation: _Optional[int] = ..., weight: _Optional[float] = ...) -> None: ...

class ShardMap(_message.Message):
    __slots__ = ("version", "servers", "owners")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    version: int
    servers: _containers.RepeatedCompositeFieldContainer[Server]
    owners: bytes
    def __init__(self, version: _Optional[int] = ..., servers: _Optional[_Iterable[_Union[Server, _Mapping]]] = ..., owners: _Optional[bytes] = ...) -> None: ...

class Hyperparameters(_message.Message):
    __slots__ = ("table", "parameters")
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    table: str
    parameters: _containers.ScalarMap[str, float]
    def __init__(self, table: _Optional[str] = ..., parameters: _Optional[_Mapping[str, float]] = ...) -> None: ...

class StepOrder(_message.Message):
    __slots__ = ("number", "kind", "rank", "incarnation")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    number: int
    kind: str
    rank: int
    incarnation: int
    def __init__(self, number: _Optional[int] = ..., kind: _Optional[str] = ..., rank: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("clock", "hyperparameters", "resume", "orders")
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    HYPERPARAMETERS_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    clock: int
    hyperparameters: _containers.RepeatedCompositeFieldContainer[Hyperparameters]
    resume: bytes
    orders: _containers.RepeatedCompositeFieldContainer[StepOrder]
    def __init__(self, clock: _Optional[int] = ..., hyperparameters: _Optional[_Iterable[_Union[Hyperparameters, _Mapping]]] = ..., resume: _Optional[bytes] = ..., orders: _Optional[_Iterable[_Union[StepOrder, _Mapping]]] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class ErrorField(_message.Message):
    __slots__ = ("text", "whole", "real", "big")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    REAL_FIELD_NUMBER: _ClassVar[int]
    BIG_FIELD_NUMBER: _ClassVar[int]
    text: str
    whole: int
    real: float
    big: str
    def __init__(self, text: _Optional[str] = ..., whole: _Optional[int] = ..., real: _Optional[float] = ..., big: _Optional[str] = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("class_name", "fields")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ErrorField
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ErrorField, _Mapping]] = ...) -> None: ...
    CLASS_NAME_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    class_name: str
    fields: _containers.MessageMap[str, ErrorField]
    def __init__(self, class_name: _Optional[str] = ..., fields: _Optional[_Mapping[str, ErrorField]] = ...) -> None: ...
