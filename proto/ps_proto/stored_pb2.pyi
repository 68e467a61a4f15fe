from ps_proto import common_pb2 as _common_pb2
from ps_proto import coordinator_pb2 as _coordinator_pb2
from ps_proto import parameter_server_pb2 as _parameter_server_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StoredCluster(_message.Message):
    __slots__ = ("cluster", "term", "servers_expected", "timeline", "last_job", "last_creation", "last_order", "last_checkpoint")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    SERVERS_EXPECTED_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    LAST_JOB_FIELD_NUMBER: _ClassVar[int]
    LAST_CREATION_FIELD_NUMBER: _ClassVar[int]
    LAST_ORDER_FIELD_NUMBER: _ClassVar[int]
    LAST_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    cluster: int
    term: int
    servers_expected: int
    timeline: int
    last_job: int
    last_creation: int
    last_order: int
    last_checkpoint: int
    def __init__(self, cluster: _Optional[int] = ..., term: _Optional[int] = ..., servers_expected: _Optional[int] = ..., timeline: _Optional[int] = ..., last_job: _Optional[int] = ..., last_creation: _Optional[int] = ..., last_order: _Optional[int] = ..., last_checkpoint: _Optional[int] = ...) -> None: ...

class StoredMap(_message.Message):
    __slots__ = ("shard_map", "is_installed")
    SHARD_MAP_FIELD_NUMBER: _ClassVar[int]
    IS_INSTALLED_FIELD_NUMBER: _ClassVar[int]
    shard_map: _common_pb2.ShardMap
    is_installed: bool
    def __init__(self, shard_map: _Optional[_Union[_common_pb2.ShardMap, _Mapping]] = ..., is_installed: _Optional[bool] = ...) -> None: ...

class StoredServer(_message.Message):
    __slots__ = ("server", "nonce", "must_recover")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    MUST_RECOVER_FIELD_NUMBER: _ClassVar[int]
    server: _common_pb2.Server
    nonce: int
    must_recover: bool
    def __init__(self, server: _Optional[_Union[_common_pb2.Server, _Mapping]] = ..., nonce: _Optional[int] = ..., must_recover: _Optional[bool] = ...) -> None: ...

class StoredTable(_message.Message):
    __slots__ = ("spec", "creation", "is_installed")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    CREATION_FIELD_NUMBER: _ClassVar[int]
    IS_INSTALLED_FIELD_NUMBER: _ClassVar[int]
    spec: _common_pb2.TableSpec
    creation: int
    is_installed: bool
    def __init__(self, spec: _Optional[_Union[_common_pb2.TableSpec, _Mapping]] = ..., creation: _Optional[int] = ..., is_installed: _Optional[bool] = ...) -> None: ...

class StoredJob(_message.Message):
    __slots__ = ("number", "world_size", "mode", "first_clock", "on_lost_worker", "left", "removed", "barrier", "minima", "earlier", "world_size_asked", "orders", "holders", "admitted", "stands", "removals")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    FIRST_CLOCK_FIELD_NUMBER: _ClassVar[int]
    ON_LOST_WORKER_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    BARRIER_FIELD_NUMBER: _ClassVar[int]
    MINIMA_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_ASKED_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    STANDS_FIELD_NUMBER: _ClassVar[int]
    REMOVALS_FIELD_NUMBER: _ClassVar[int]
    number: int
    world_size: int
    mode: _common_pb2.Setting
    first_clock: int
    on_lost_worker: str
    left: _containers.RepeatedScalarFieldContainer[int]
    removed: _containers.RepeatedScalarFieldContainer[int]
    barrier: int
    minima: _containers.RepeatedCompositeFieldContainer[BarrierRun]
    earlier: _containers.RepeatedCompositeFieldContainer[BarrierRun]
    world_size_asked: int
    orders: _containers.RepeatedCompositeFieldContainer[_common_pb2.StepOrder]
    holders: _containers.RepeatedCompositeFieldContainer[StoredHolder]
    admitted: _containers.RepeatedCompositeFieldContainer[StoredAdmission]
    stands: _containers.RepeatedCompositeFieldContainer[StoredStand]
    removals: _containers.RepeatedCompositeFieldContainer[StoredRemoval]
    def __init__(self, number: _Optional[int] = ..., world_size: _Optional[int] = ..., mode: _Optional[_Union[_common_pb2.Setting, _Mapping]] = ..., first_clock: _Optional[int] = ..., on_lost_worker: _Optional[str] = ..., left: _Optional[_Iterable[int]] = ..., removed: _Optional[_Iterable[int]] = ..., barrier: _Optional[int] = ..., minima: _Optional[_Iterable[_Union[BarrierRun, _Mapping]]] = ..., earlier: _Optional[_Iterable[_Union[BarrierRun, _Mapping]]] = ..., world_size_asked: _Optional[int] = ..., orders: _Optional[_Iterable[_Union[_common_pb2.StepOrder, _Mapping]]] = ..., holders: _Optional[_Iterable[_Union[StoredHolder, _Mapping]]] = ..., admitted: _Optional[_Iterable[_Union[StoredAdmission, _Mapping]]] = ..., stands: _Optional[_Iterable[_Union[StoredStand, _Mapping]]] = ..., removals: _Optional[_Iterable[_Union[StoredRemoval, _Mapping]]] = ...) -> None: ...

class StoredRemoval(_message.Message):
    __slots__ = ("rank", "last")
    RANK_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    rank: int
    last: int
    def __init__(self, rank: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class StoredAdmission(_message.Message):
    __slots__ = ("rank", "since")
    RANK_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    since: int
    def __init__(self, rank: _Optional[int] = ..., since: _Optional[int] = ...) -> None: ...

class StoredHolder(_message.Message):
    __slots__ = ("rank", "name", "since")
    RANK_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    name: str
    since: int
    def __init__(self, rank: _Optional[int] = ..., name: _Optional[str] = ..., since: _Optional[int] = ...) -> None: ...

class BarrierRun(_message.Message):
    __slots__ = ("generation", "minimum", "count", "turns")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    minimum: int
    count: int
    turns: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, generation: _Optional[int] = ..., minimum: _Optional[int] = ..., count: _Optional[int] = ..., turns: _Optional[_Iterable[int]] = ...) -> None: ...

class StoredStand(_message.Message):
    __slots__ = ("rank", "generation", "skipped")
    RANK_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    rank: int
    generation: int
    skipped: _containers.RepeatedCompositeFieldContainer[_coordinator_pb2.SkippedTurn]
    def __init__(self, rank: _Optional[int] = ..., generation: _Optional[int] = ..., skipped: _Optional[_Iterable[_Union[_coordinator_pb2.SkippedTurn, _Mapping]]] = ...) -> None: ...

class StoredRank(_message.Message):
    __slots__ = ("incarnation", "is_in", "has_left", "nonces")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    IS_IN_FIELD_NUMBER: _ClassVar[int]
    HAS_LEFT_FIELD_NUMBER: _ClassVar[int]
    NONCES_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    is_in: bool
    has_left: bool
    nonces: _containers.RepeatedCompositeFieldContainer[StoredNonce]
    def __init__(self, incarnation: _Optional[int] = ..., is_in: _Optional[bool] = ..., has_left: _Optional[bool] = ..., nonces: _Optional[_Iterable[_Union[StoredNonce, _Mapping]]] = ...) -> None: ...

class StoredNonce(_message.Message):
    __slots__ = ("nonce", "incarnation")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    incarnation: int
    def __init__(self, nonce: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class StoredCheckpoint(_message.Message):
    __slots__ = ("root", "number", "step")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    root: str
    number: int
    step: int
    def __init__(self, root: _Optional[str] = ..., number: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class StoredRollback(_message.Message):
    __slots__ = ("timeline", "is_pending", "branches")
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    IS_PENDING_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    timeline: int
    is_pending: bool
    branches: _containers.RepeatedCompositeFieldContainer[StoredBranch]
    def __init__(self, timeline: _Optional[int] = ..., is_pending: _Optional[bool] = ..., branches: _Optional[_Iterable[_Union[StoredBranch, _Mapping]]] = ...) -> None: ...

class StoredBranch(_message.Message):
    __slots__ = ("timeline", "number")
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    timeline: int
    number: int
    def __init__(self, timeline: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class StoredOrigin(_message.Message):
    __slots__ = ("source", "cluster", "asked")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    source: _parameter_server_pb2.Source
    cluster: int
    asked: str
    def __init__(self, source: _Optional[_Union[_parameter_server_pb2.Source, _Mapping]] = ..., cluster: _Optional[int] = ..., asked: _Optional[str] = ...) -> None: ...
