from ps_proto import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterServer(_message.Message):
    __slots__ = ("server", "address", "weight", "nonce")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    server: str
    address: str
    weight: float
    nonce: int
    def __init__(self, server: _Optional[str] = ..., address: _Optional[str] = ..., weight: _Optional[float] = ..., nonce: _Optional[int] = ...) -> None: ...

class ServerRegistered(_message.Message):
    __slots__ = ("server", "incarnation", "must_recover", "cluster")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MUST_RECOVER_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    server: str
    incarnation: int
    must_recover: bool
    cluster: int
    def __init__(self, server: _Optional[str] = ..., incarnation: _Optional[int] = ..., must_recover: _Optional[bool] = ..., cluster: _Optional[int] = ...) -> None: ...

class JoinJob(_message.Message):
    __slots__ = ("rank", "world_size", "mode", "nonce", "wait_s", "resume", "on_lost_worker", "name", "job")
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    ON_LOST_WORKER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    rank: int
    world_size: int
    mode: _common_pb2.Setting
    nonce: int
    wait_s: float
    resume: bool
    on_lost_worker: str
    name: str
    job: int
    def __init__(self, rank: _Optional[int] = ..., world_size: _Optional[int] = ..., mode: _Optional[_Union[_common_pb2.Setting, _Mapping]] = ..., nonce: _Optional[int] = ..., wait_s: _Optional[float] = ..., resume: _Optional[bool] = ..., on_lost_worker: _Optional[str] = ..., name: _Optional[str] = ..., job: _Optional[int] = ...) -> None: ...

class JobJoined(_message.Message):
    __slots__ = ("incarnation", "clock", "barrier", "world_size", "mode", "timeline", "shard_map", "tables", "rank", "resume", "is_resumed", "lease_s")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    BARRIER_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    SHARD_MAP_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    IS_RESUMED_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    clock: int
    barrier: int
    world_size: int
    mode: _common_pb2.Setting
    timeline: int
    shard_map: _common_pb2.ShardMap
    tables: _containers.RepeatedCompositeFieldContainer[_common_pb2.TableSpec]
    rank: int
    resume: bytes
    is_resumed: bool
    lease_s: float
    def __init__(self, incarnation: _Optional[int] = ..., clock: _Optional[int] = ..., barrier: _Optional[int] = ..., world_size: _Optional[int] = ..., mode: _Optional[_Union[_common_pb2.Setting, _Mapping]] = ..., timeline: _Optional[int] = ..., shard_map: _Optional[_Union[_common_pb2.ShardMap, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[_common_pb2.TableSpec, _Mapping]]] = ..., rank: _Optional[int] = ..., resume: _Optional[bytes] = ..., is_resumed: _Optional[bool] = ..., lease_s: _Optional[float] = ...) -> None: ...

class RenewLease(_message.Message):
    __slots__ = ("rank", "incarnation", "clock")
    RANK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    rank: int
    incarnation: int
    clock: int
    def __init__(self, rank: _Optional[int] = ..., incarnation: _Optional[int] = ..., clock: _Optional[int] = ...) -> None: ...

class LeaseRenewed(_message.Message):
    __slots__ = ("orders", "timeline")
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    orders: _containers.RepeatedCompositeFieldContainer[_common_pb2.StepOrder]
    timeline: int
    def __init__(self, orders: _Optional[_Iterable[_Union[_common_pb2.StepOrder, _Mapping]]] = ..., timeline: _Optional[int] = ...) -> None: ...

class LeaveJob(_message.Message):
    __slots__ = ("rank", "incarnation")
    RANK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    rank: int
    incarnation: int
    def __init__(self, rank: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class CreateTable(_message.Message):
    __slots__ = ("spec", "wait_s")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    spec: _common_pb2.TableSpec
    wait_s: float
    def __init__(self, spec: _Optional[_Union[_common_pb2.TableSpec, _Mapping]] = ..., wait_s: _Optional[float] = ...) -> None: ...

class TableCreated(_message.Message):
    __slots__ = ("spec",)
    SPEC_FIELD_NUMBER: _ClassVar[int]
    spec: _common_pb2.TableSpec
    def __init__(self, spec: _Optional[_Union[_common_pb2.TableSpec, _Mapping]] = ...) -> None: ...

class GetCluster(_message.Message):
    __slots__ = ("wait_s",)
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    wait_s: float
    def __init__(self, wait_s: _Optional[float] = ...) -> None: ...

class Cluster(_message.Message):
    __slots__ = ("servers_expected", "shard_map", "tables", "timeline", "world_size", "mode", "ranks", "servers", "lost", "checkpoint", "notice", "left", "end", "job", "missed")
    class RanksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class ServersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SERVERS_EXPECTED_FIELD_NUMBER: _ClassVar[int]
    SHARD_MAP_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    servers_expected: int
    shard_map: _common_pb2.ShardMap
    tables: _containers.RepeatedCompositeFieldContainer[_common_pb2.TableSpec]
    timeline: int
    world_size: int
    mode: _common_pb2.Setting
    ranks: _containers.ScalarMap[int, int]
    servers: _containers.ScalarMap[str, str]
    lost: _containers.RepeatedScalarFieldContainer[int]
    checkpoint: int
    notice: str
    left: _containers.RepeatedScalarFieldContainer[int]
    end: CheckpointTaken
    job: int
    missed: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, servers_expected: _Optional[int] = ..., shard_map: _Optional[_Union[_common_pb2.ShardMap, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[_common_pb2.TableSpec, _Mapping]]] = ..., timeline: _Optional[int] = ..., world_size: _Optional[int] = ..., mode: _Optional[_Union[_common_pb2.Setting, _Mapping]] = ..., ranks: _Optional[_Mapping[int, int]] = ..., servers: _Optional[_Mapping[str, str]] = ..., lost: _Optional[_Iterable[int]] = ..., checkpoint: _Optional[int] = ..., notice: _Optional[str] = ..., left: _Optional[_Iterable[int]] = ..., end: _Optional[_Union[CheckpointTaken, _Mapping]] = ..., job: _Optional[int] = ..., missed: _Optional[_Iterable[int]] = ...) -> None: ...

class TakeCheckpoint(_message.Message):
    __slots__ = ("path", "full", "at_least", "wait_s")
    PATH_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    path: str
    full: bool
    at_least: int
    wait_s: float
    def __init__(self, path: _Optional[str] = ..., full: _Optional[bool] = ..., at_least: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class CheckpointTaken(_message.Message):
    __slots__ = ("path", "number", "step", "rows", "nbytes", "took_s", "stall_s")
    PATH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    TOOK_S_FIELD_NUMBER: _ClassVar[int]
    STALL_S_FIELD_NUMBER: _ClassVar[int]
    path: str
    number: int
    step: int
    rows: int
    nbytes: int
    took_s: float
    stall_s: float
    def __init__(self, path: _Optional[str] = ..., number: _Optional[int] = ..., step: _Optional[int] = ..., rows: _Optional[int] = ..., nbytes: _Optional[int] = ..., took_s: _Optional[float] = ..., stall_s: _Optional[float] = ...) -> None: ...

class Barrier(_message.Message):
    __slots__ = ("rank", "incarnation", "generation", "wait_s", "value", "is_between", "turn", "skipped")
    RANK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    IS_BETWEEN_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    rank: int
    incarnation: int
    generation: int
    wait_s: float
    value: int
    is_between: bool
    turn: int
    skipped: _containers.RepeatedCompositeFieldContainer[SkippedTurn]
    def __init__(self, rank: _Optional[int] = ..., incarnation: _Optional[int] = ..., generation: _Optional[int] = ..., wait_s: _Optional[float] = ..., value: _Optional[int] = ..., is_between: _Optional[bool] = ..., turn: _Optional[int] = ..., skipped: _Optional[_Iterable[_Union[SkippedTurn, _Mapping]]] = ...) -> None: ...

class SkippedTurn(_message.Message):
    __slots__ = ("generation", "turn")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    generation: int
    turn: int
    def __init__(self, generation: _Optional[int] = ..., turn: _Optional[int] = ...) -> None: ...

class BarrierPassed(_message.Message):
    __slots__ = ("minimum", "generation")
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    minimum: int
    generation: int
    def __init__(self, minimum: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...
