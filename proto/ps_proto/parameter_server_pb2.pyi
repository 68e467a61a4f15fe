from ps_proto import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TableShape(_message.Message):
    __slots__ = ("table", "rows", "dim", "wire", "pull")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    table: str
    rows: int
    dim: int
    wire: str
    pull: int
    def __init__(self, table: _Optional[str] = ..., rows: _Optional[int] = ..., dim: _Optional[int] = ..., wire: _Optional[str] = ..., pull: _Optional[int] = ...) -> None: ...

class Slice(_message.Message):
    __slots__ = ("table", "ids", "rows")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    table: int
    ids: bytes
    rows: bytes
    def __init__(self, table: _Optional[int] = ..., ids: _Optional[bytes] = ..., rows: _Optional[bytes] = ...) -> None: ...

class PullHeader(_message.Message):
    __slots__ = ("fence", "tables", "finished", "wait_s", "at_step")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    AT_STEP_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    tables: _containers.RepeatedCompositeFieldContainer[TableShape]
    finished: _common_pb2.Finished
    wait_s: float
    at_step: int
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[TableShape, _Mapping]]] = ..., finished: _Optional[_Union[_common_pb2.Finished, _Mapping]] = ..., wait_s: _Optional[float] = ..., at_step: _Optional[int] = ...) -> None: ...

class PullPart(_message.Message):
    __slots__ = ("header", "slices")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    header: PullHeader
    slices: _containers.RepeatedCompositeFieldContainer[Slice]
    def __init__(self, header: _Optional[_Union[PullHeader, _Mapping]] = ..., slices: _Optional[_Iterable[_Union[Slice, _Mapping]]] = ...) -> None: ...

class PulledHeader(_message.Message):
    __slots__ = ("step", "tables")
    STEP_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    step: int
    tables: _containers.RepeatedCompositeFieldContainer[TableShape]
    def __init__(self, step: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[TableShape, _Mapping]]] = ...) -> None: ...

class PulledPart(_message.Message):
    __slots__ = ("header", "slices")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    header: PulledHeader
    slices: _containers.RepeatedCompositeFieldContainer[Slice]
    def __init__(self, header: _Optional[_Union[PulledHeader, _Mapping]] = ..., slices: _Optional[_Iterable[_Union[Slice, _Mapping]]] = ...) -> None: ...

class PushHeader(_message.Message):
    __slots__ = ("fence", "seq", "tables", "hyperparameters")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    HYPERPARAMETERS_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    seq: int
    tables: _containers.RepeatedCompositeFieldContainer[TableShape]
    hyperparameters: _containers.RepeatedCompositeFieldContainer[_common_pb2.Hyperparameters]
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., seq: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[TableShape, _Mapping]]] = ..., hyperparameters: _Optional[_Iterable[_Union[_common_pb2.Hyperparameters, _Mapping]]] = ...) -> None: ...

class PushPart(_message.Message):
    __slots__ = ("header", "slices")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    header: PushHeader
    slices: _containers.RepeatedCompositeFieldContainer[Slice]
    def __init__(self, header: _Optional[_Union[PushHeader, _Mapping]] = ..., slices: _Optional[_Iterable[_Union[Slice, _Mapping]]] = ...) -> None: ...

class AssignHeader(_message.Message):
    __slots__ = ("fence", "seq", "tables", "only_absent", "columns")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    ONLY_ABSENT_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    seq: int
    tables: _containers.RepeatedCompositeFieldContainer[TableShape]
    only_absent: bool
    columns: _containers.RepeatedCompositeFieldContainer[ColumnLayout]
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., seq: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[TableShape, _Mapping]]] = ..., only_absent: _Optional[bool] = ..., columns: _Optional[_Iterable[_Union[ColumnLayout, _Mapping]]] = ...) -> None: ...

class ColumnLayout(_message.Message):
    __slots__ = ("name", "words", "dtype")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    words: int
    dtype: str
    def __init__(self, name: _Optional[str] = ..., words: _Optional[int] = ..., dtype: _Optional[str] = ...) -> None: ...

class AssignPart(_message.Message):
    __slots__ = ("header", "slices")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    header: AssignHeader
    slices: _containers.RepeatedCompositeFieldContainer[Slice]
    def __init__(self, header: _Optional[_Union[AssignHeader, _Mapping]] = ..., slices: _Optional[_Iterable[_Union[Slice, _Mapping]]] = ...) -> None: ...

class ClearTable(_message.Message):
    __slots__ = ("fence", "seq", "table")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    seq: int
    table: str
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., seq: _Optional[int] = ..., table: _Optional[str] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("fence", "finished", "leave", "wait_s")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    finished: _common_pb2.Finished
    leave: bool
    wait_s: float
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., finished: _Optional[_Union[_common_pb2.Finished, _Mapping]] = ..., leave: _Optional[bool] = ..., wait_s: _Optional[float] = ...) -> None: ...

class OpenExport(_message.Message):
    __slots__ = ("fence", "table", "wait_s", "at_step", "with_state")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    AT_STEP_FIELD_NUMBER: _ClassVar[int]
    WITH_STATE_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    table: str
    wait_s: float
    at_step: int
    with_state: bool
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., table: _Optional[str] = ..., wait_s: _Optional[float] = ..., at_step: _Optional[int] = ..., with_state: _Optional[bool] = ...) -> None: ...

class ExportOpened(_message.Message):
    __slots__ = ("export", "rows_count", "step", "columns")
    EXPORT_FIELD_NUMBER: _ClassVar[int]
    ROWS_COUNT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    export: int
    rows_count: int
    step: int
    columns: _containers.RepeatedCompositeFieldContainer[ColumnLayout]
    def __init__(self, export: _Optional[int] = ..., rows_count: _Optional[int] = ..., step: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[ColumnLayout, _Mapping]]] = ...) -> None: ...

class ReadExport(_message.Message):
    __slots__ = ("fence", "export", "rows_begin", "rows_max")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    EXPORT_FIELD_NUMBER: _ClassVar[int]
    ROWS_BEGIN_FIELD_NUMBER: _ClassVar[int]
    ROWS_MAX_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    export: int
    rows_begin: int
    rows_max: int
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., export: _Optional[int] = ..., rows_begin: _Optional[int] = ..., rows_max: _Optional[int] = ...) -> None: ...

class ExportedHeader(_message.Message):
    __slots__ = ("tables",)
    TABLES_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableShape]
    def __init__(self, tables: _Optional[_Iterable[_Union[TableShape, _Mapping]]] = ...) -> None: ...

class ExportedPart(_message.Message):
    __slots__ = ("header", "slices")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    header: ExportedHeader
    slices: _containers.RepeatedCompositeFieldContainer[Slice]
    def __init__(self, header: _Optional[_Union[ExportedHeader, _Mapping]] = ..., slices: _Optional[_Iterable[_Union[Slice, _Mapping]]] = ...) -> None: ...

class CloseExport(_message.Message):
    __slots__ = ("fence", "export")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    EXPORT_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    export: int
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., export: _Optional[int] = ...) -> None: ...

class GetStats(_message.Message):
    __slots__ = ("fence",)
    FENCE_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ...) -> None: ...

class AskProcess(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProcessNamed(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    def __init__(self, nonce: _Optional[int] = ...) -> None: ...

class OpenLane(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class LaneOffered(_message.Message):
    __slots__ = ("server", "version", "unix_path", "port", "token", "max_request_bytes")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UNIX_PATH_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    server: str
    version: int
    unix_path: str
    port: int
    token: bytes
    max_request_bytes: int
    def __init__(self, server: _Optional[str] = ..., version: _Optional[int] = ..., unix_path: _Optional[str] = ..., port: _Optional[int] = ..., token: _Optional[bytes] = ..., max_request_bytes: _Optional[int] = ...) -> None: ...

class Numbers(_message.Message):
    __slots__ = ("numbers",)
    class NumbersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    numbers: _containers.ScalarMap[str, float]
    def __init__(self, numbers: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Stats(_message.Message):
    __slots__ = ("server", "tables", "ranks")
    class ServerEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class TablesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Numbers
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Numbers, _Mapping]] = ...) -> None: ...
    class RanksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: Numbers
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[Numbers, _Mapping]] = ...) -> None: ...
    SERVER_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    server: _containers.ScalarMap[str, float]
    tables: _containers.MessageMap[str, Numbers]
    ranks: _containers.MessageMap[int, Numbers]
    def __init__(self, server: _Optional[_Mapping[str, float]] = ..., tables: _Optional[_Mapping[str, Numbers]] = ..., ranks: _Optional[_Mapping[int, Numbers]] = ...) -> None: ...

class InstallMap(_message.Message):
    __slots__ = ("shard_map",)
    SHARD_MAP_FIELD_NUMBER: _ClassVar[int]
    shard_map: _common_pb2.ShardMap
    def __init__(self, shard_map: _Optional[_Union[_common_pb2.ShardMap, _Mapping]] = ...) -> None: ...

class InstallTable(_message.Message):
    __slots__ = ("term", "spec", "creation", "cluster")
    TERM_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    CREATION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    term: int
    spec: _common_pb2.TableSpec
    creation: int
    cluster: int
    def __init__(self, term: _Optional[int] = ..., spec: _Optional[_Union[_common_pb2.TableSpec, _Mapping]] = ..., creation: _Optional[int] = ..., cluster: _Optional[int] = ...) -> None: ...

class StartJob(_message.Message):
    __slots__ = ("term", "job", "world_size", "mode", "first_clock", "cluster", "timeline")
    TERM_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    FIRST_CLOCK_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    term: int
    job: int
    world_size: int
    mode: _common_pb2.Setting
    first_clock: int
    cluster: int
    timeline: int
    def __init__(self, term: _Optional[int] = ..., job: _Optional[int] = ..., world_size: _Optional[int] = ..., mode: _Optional[_Union[_common_pb2.Setting, _Mapping]] = ..., first_clock: _Optional[int] = ..., cluster: _Optional[int] = ..., timeline: _Optional[int] = ...) -> None: ...

class FenceRank(_message.Message):
    __slots__ = ("term", "rank", "incarnation", "cluster")
    TERM_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    term: int
    rank: int
    incarnation: int
    cluster: int
    def __init__(self, term: _Optional[int] = ..., rank: _Optional[int] = ..., incarnation: _Optional[int] = ..., cluster: _Optional[int] = ...) -> None: ...

class RankFenced(_message.Message):
    __slots__ = ("fact", "applied", "clock_max", "has_left", "finished", "since")
    FACT_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    CLOCK_MAX_FIELD_NUMBER: _ClassVar[int]
    HAS_LEFT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    fact: _common_pb2.Finished
    applied: int
    clock_max: int
    has_left: bool
    finished: int
    since: int
    def __init__(self, fact: _Optional[_Union[_common_pb2.Finished, _Mapping]] = ..., applied: _Optional[int] = ..., clock_max: _Optional[int] = ..., has_left: _Optional[bool] = ..., finished: _Optional[int] = ..., since: _Optional[int] = ...) -> None: ...

class ResolveRank(_message.Message):
    __slots__ = ("term", "rank", "incarnation", "fact", "start", "has_left", "cluster", "timeline")
    TERM_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FACT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    HAS_LEFT_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    term: int
    rank: int
    incarnation: int
    fact: _common_pb2.Finished
    start: int
    has_left: bool
    cluster: int
    timeline: int
    def __init__(self, term: _Optional[int] = ..., rank: _Optional[int] = ..., incarnation: _Optional[int] = ..., fact: _Optional[_Union[_common_pb2.Finished, _Mapping]] = ..., start: _Optional[int] = ..., has_left: _Optional[bool] = ..., cluster: _Optional[int] = ..., timeline: _Optional[int] = ...) -> None: ...

class AdmitRank(_message.Message):
    __slots__ = ("term", "cluster", "rank", "incarnation", "first", "timeline")
    TERM_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    term: int
    cluster: int
    rank: int
    incarnation: int
    first: int
    timeline: int
    def __init__(self, term: _Optional[int] = ..., cluster: _Optional[int] = ..., rank: _Optional[int] = ..., incarnation: _Optional[int] = ..., first: _Optional[int] = ..., timeline: _Optional[int] = ...) -> None: ...

class BeginCheckpoint(_message.Message):
    __slots__ = ("term", "cluster", "number", "root", "shard", "boundary", "base", "tracks", "full")
    TERM_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    TRACKS_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    term: int
    cluster: int
    number: int
    root: str
    shard: int
    boundary: int
    base: int
    tracks: bool
    full: bool
    def __init__(self, term: _Optional[int] = ..., cluster: _Optional[int] = ..., number: _Optional[int] = ..., root: _Optional[str] = ..., shard: _Optional[int] = ..., boundary: _Optional[int] = ..., base: _Optional[int] = ..., tracks: _Optional[bool] = ..., full: _Optional[bool] = ...) -> None: ...

class AskCheckpoint(_message.Message):
    __slots__ = ("term", "cluster", "number")
    TERM_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    term: int
    cluster: int
    number: int
    def __init__(self, term: _Optional[int] = ..., cluster: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class CancelCheckpoint(_message.Message):
    __slots__ = ("term", "cluster", "number")
    TERM_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    term: int
    cluster: int
    number: int
    def __init__(self, term: _Optional[int] = ..., cluster: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class CheckpointState(_message.Message):
    __slots__ = ("number", "phase", "step", "slowest", "part", "why")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SLOWEST_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    number: int
    phase: str
    step: int
    slowest: int
    part: PartWritten
    why: str
    def __init__(self, number: _Optional[int] = ..., phase: _Optional[str] = ..., step: _Optional[int] = ..., slowest: _Optional[int] = ..., part: _Optional[_Union[PartWritten, _Mapping]] = ..., why: _Optional[str] = ...) -> None: ...

class PartWritten(_message.Message):
    __slots__ = ("server", "file", "size_bytes", "checksum", "step", "timeline", "map_version", "rows", "nbytes", "stall_s")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    STALL_S_FIELD_NUMBER: _ClassVar[int]
    server: str
    file: str
    size_bytes: int
    checksum: str
    step: int
    timeline: int
    map_version: int
    rows: int
    nbytes: int
    stall_s: float
    def __init__(self, server: _Optional[str] = ..., file: _Optional[str] = ..., size_bytes: _Optional[int] = ..., checksum: _Optional[str] = ..., step: _Optional[int] = ..., timeline: _Optional[int] = ..., map_version: _Optional[int] = ..., rows: _Optional[int] = ..., nbytes: _Optional[int] = ..., stall_s: _Optional[float] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("root", "number")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    root: str
    number: int
    def __init__(self, root: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class RankState(_message.Message):
    __slots__ = ("rank", "fact", "finished", "has_left")
    RANK_FIELD_NUMBER: _ClassVar[int]
    FACT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    HAS_LEFT_FIELD_NUMBER: _ClassVar[int]
    rank: int
    fact: _common_pb2.Finished
    finished: int
    has_left: bool
    def __init__(self, rank: _Optional[int] = ..., fact: _Optional[_Union[_common_pb2.Finished, _Mapping]] = ..., finished: _Optional[int] = ..., has_left: _Optional[bool] = ...) -> None: ...

class JobState(_message.Message):
    __slots__ = ("number", "world_size", "mode", "first_clock", "step", "ranks")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    FIRST_CLOCK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    number: int
    world_size: int
    mode: _common_pb2.Setting
    first_clock: int
    step: int
    ranks: _containers.RepeatedCompositeFieldContainer[RankState]
    def __init__(self, number: _Optional[int] = ..., world_size: _Optional[int] = ..., mode: _Optional[_Union[_common_pb2.Setting, _Mapping]] = ..., first_clock: _Optional[int] = ..., step: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[RankState, _Mapping]]] = ...) -> None: ...

class RollBack(_message.Message):
    __slots__ = ("term", "cluster", "timeline", "shard_map", "tables", "job", "source")
    TERM_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    SHARD_MAP_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    term: int
    cluster: int
    timeline: int
    shard_map: _common_pb2.ShardMap
    tables: _containers.RepeatedCompositeFieldContainer[_common_pb2.TableSpec]
    job: JobState
    source: Source
    def __init__(self, term: _Optional[int] = ..., cluster: _Optional[int] = ..., timeline: _Optional[int] = ..., shard_map: _Optional[_Union[_common_pb2.ShardMap, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[_common_pb2.TableSpec, _Mapping]]] = ..., job: _Optional[_Union[JobState, _Mapping]] = ..., source: _Optional[_Union[Source, _Mapping]] = ...) -> None: ...

class AskRestore(_message.Message):
    __slots__ = ("term", "cluster", "timeline")
    TERM_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    term: int
    cluster: int
    timeline: int
    def __init__(self, term: _Optional[int] = ..., cluster: _Optional[int] = ..., timeline: _Optional[int] = ...) -> None: ...

class RestoreState(_message.Message):
    __slots__ = ("timeline", "phase", "rows", "why")
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    timeline: int
    phase: str
    rows: int
    why: str
    def __init__(self, timeline: _Optional[int] = ..., phase: _Optional[str] = ..., rows: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("step", "ranks", "ranks_count", "hyperparameters", "orders")
    STEP_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    RANKS_COUNT_FIELD_NUMBER: _ClassVar[int]
    HYPERPARAMETERS_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    step: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    ranks_count: int
    hyperparameters: _containers.RepeatedCompositeFieldContainer[_common_pb2.Hyperparameters]
    orders: _containers.RepeatedCompositeFieldContainer[_common_pb2.StepOrder]
    def __init__(self, step: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ..., ranks_count: _Optional[int] = ..., hyperparameters: _Optional[_Iterable[_Union[_common_pb2.Hyperparameters, _Mapping]]] = ..., orders: _Optional[_Iterable[_Union[_common_pb2.StepOrder, _Mapping]]] = ...) -> None: ...

class StepDecided(_message.Message):
    __slots__ = ("fence", "job", "decision")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    fence: _common_pb2.Fence
    job: int
    decision: Decision
    def __init__(self, fence: _Optional[_Union[_common_pb2.Fence, _Mapping]] = ..., job: _Optional[int] = ..., decision: _Optional[_Union[Decision, _Mapping]] = ...) -> None: ...
