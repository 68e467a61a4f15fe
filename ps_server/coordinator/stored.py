"""What the coordinator keeps for its next start, as values; stored.proto says how each lies in the store.

    key            value
    cluster        StoredCluster
    map            StoredMap, once there is one
    server/NAME    StoredServer
    table/NAME     StoredTable
    job            StoredJob: the one that runs, or ran last
    rank/NUMBER    StoredRank
    checkpoint     StoredCheckpoint: the last complete one
    rollback       StoredRollback: the last one
    origin         StoredOrigin, where the cluster did not begin empty

Not kept, since whoever wants it asks again: who waits for what, or at a barrier, plans, checkpoints under way; and leases, which
begin anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ps_proto.codec import decode, message_type, parse
from ps_proto.errors import InvalidRequest
from ps_proto.orders import Source
from ps_proto.requests import SkippedTurn, StepOrder
from ps_proto.values import Mode, TableSpec
from ps_server.tasks import BarrierRun
from sharding.shard_map import Server, ShardMap

Value = TypeVar("Value")

CLUSTER = "cluster"
MAP = "map"
JOB = "job"
CHECKPOINT = "checkpoint"
ROLLBACK = "rollback"
ORIGIN = "origin"
_SERVER, _TABLE, _RANK = "server/", "table/", "rank/"


def server_key(name: str) -> str:
    """Return the key of a server."""
    return _SERVER + name


def table_key(name: str) -> str:
    """Return the key of a table."""
    return _TABLE + name


def rank_key(rank: int) -> str:
    """Return the key of a rank."""
    return f"{_RANK}{rank}"


@dataclass(frozen=True, slots=True)
class StoredCluster:
    """Who the cluster is, and the last number of each kind that it gave. `term`: of the last coordinator."""

    cluster: int
    term: int
    servers_expected: int
    timeline: int = 0
    last_job: int = 0
    last_creation: int = 0
    last_order: int = 0
    last_checkpoint: int = 0


@dataclass(frozen=True, slots=True)
class StoredMap:
    """The map that was planned last. `is_installed`: every server has said that it holds it."""

    shard_map: ShardMap
    is_installed: bool


@dataclass(frozen=True, slots=True)
class StoredServer:
    """A server that was admitted; `nonce` names its process. `must_recover`: as in ServerRegistered."""

    server: Server
    nonce: int
    must_recover: bool


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table; `creation` as in InstallTable. `is_installed`: on every server."""

    spec: TableSpec
    creation: int
    is_installed: bool


@dataclass(frozen=True, slots=True)
class StoredStand:
    """A rank that goes on before barrier `generation`, behind the one before, and has yet to come to one."""

    rank: int
    generation: int
    skipped: tuple[SkippedTurn, ...]


@dataclass(frozen=True, slots=True)
class StoredHolder:
    """Whose a rank is, and since which step; NEVER: it has yet to begin."""

    rank: int
    name: str
    since: int


@dataclass(frozen=True, slots=True)
class StoredAdmission:
    """When a rank was admitted last: the first step of whose roster it was then."""

    rank: int
    since: int


@dataclass(frozen=True, slots=True)
class StoredRemoval:
    """That a rank was removed, and `last`, the last step of whose roster it was then."""

    rank: int
    last: int


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job: see job.Job, Generations for its barriers, and Holders."""

    number: int
    world_size: int
    mode: Mode
    first_clock: int
    on_lost_worker: str
    left: tuple[int, ...]
    removed: tuple[int, ...]
    barrier: int
    minima: tuple[BarrierRun, ...]
    earlier: tuple[BarrierRun, ...]
    world_size_asked: int
    orders: tuple[StepOrder, ...]
    holders: tuple[StoredHolder, ...]
    admitted: tuple[StoredAdmission, ...]
    removals: tuple[StoredRemoval, ...]
    stands: tuple[StoredStand, ...]


@dataclass(frozen=True, slots=True)
class StoredNonce:
    """A try to join, and the incarnation that it became."""

    nonce: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class StoredRank:
    """The newest incarnation of a rank: whether it takes part in the job, or has left one. `nonces`: of the last tries to join."""

    incarnation: int
    is_in: bool
    has_left: bool
    nonces: tuple[StoredNonce, ...]


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """The last complete checkpoint."""

    root: str
    number: int
    step: int


@dataclass(frozen=True, slots=True)
class StoredBranch:
    """With which checkpoint a timeline began, 0: with none."""

    timeline: int
    number: int


@dataclass(frozen=True, slots=True)
class StoredRollback:
    """The last rollback. `is_pending`: some server may not have loaded what it goes back to. `branches`: see Lineage."""

    timeline: int
    is_pending: bool
    branches: tuple[StoredBranch, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredOrigin:
    """The checkpoint with which this cluster began, of which cluster that was, and by which words it was asked for."""

    source: Source
    cluster: int
    asked: str


@dataclass
class Stored:
    """All that was kept."""

    cluster: StoredCluster
    shard_map: StoredMap | None = None
    servers: dict[str, StoredServer] = field(default_factory=dict)
    tables: dict[str, StoredTable] = field(default_factory=dict)
    job: StoredJob | None = None
    ranks: dict[int, StoredRank] = field(default_factory=dict)
    checkpoint: StoredCheckpoint | None = None
    rollback: StoredRollback | None = None
    origin: StoredOrigin | None = None

    @classmethod
    def of(cls, state: Mapping[str, bytes]) -> "Stored | None":
        """Return what `state` holds, None where that is nothing; what this release cannot read raises InvalidRequest with its key."""
        if not state:
            return None
        if CLUSTER not in state:
            raise InvalidRequest(f"the stored {CLUSTER!r}", "missing", "there, where anything is")
        stored = cls(_value(StoredCluster, state, CLUSTER))
        for key in state:
            if key == MAP:
                stored.shard_map = _value(StoredMap, state, key)
            elif key == JOB:
                stored.job = _value(StoredJob, state, key)
            elif key == CHECKPOINT:
                stored.checkpoint = _value(StoredCheckpoint, state, key)
            elif key == ROLLBACK:
                stored.rollback = _value(StoredRollback, state, key)
            elif key == ORIGIN:
                stored.origin = _value(StoredOrigin, state, key)
            elif key.startswith(_SERVER):
                stored.servers[key.removeprefix(_SERVER)] = _value(StoredServer, state, key)
            elif key.startswith(_TABLE):
                stored.tables[key.removeprefix(_TABLE)] = _value(StoredTable, state, key)
            elif key.startswith(_RANK) and (rank := key.removeprefix(_RANK)).isdecimal():
                stored.ranks[int(rank)] = _value(StoredRank, state, key)
            elif key != CLUSTER:
                raise InvalidRequest(f"the stored {key!r}", "there", "a key that this release knows")
        return stored


def _value(kind: type[Value], state: Mapping[str, bytes], key: str) -> Value:
    try:
        return decode(kind, parse(message_type(kind.__name__), state[key]))
    except InvalidRequest as error:
        raise InvalidRequest(f"the stored {key!r}", f"{len(state[key])} bytes", f"a {kind.__name__} ({error})") from None
