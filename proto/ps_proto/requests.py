"""What workers, servers and the coordinator ask each other and answer, as values; the coordinator's orders to a server are in orders.py.

The cores take and return these; `codec.py` turns them into protobuf messages and back, the simulator passes them as they are.
Arrays are never written to once they are in one of these.

Read in this order: Fence (rides in everything), the worker's requests to a server, a server's word to the others, the requests to the
coordinator.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ps_proto.values import Mode, TableSpec
from sharding.shard_map import ShardMap
from sharding.wire_format import WireRows

Ids = NDArray[np.uint64]
Rows = NDArray[np.float32]

OBSERVER = -1  # the rank of a client that takes no part in training
NEVER = -1  # the clock of a rank that has finished no step: clocks count from 0


UNNAMED = 0  # the seq of what needs no name: seq counts from 1


def push_name(clock: int, seq: int) -> int:
    """Return the name of a push within its rank, ordered as pushes are: `clock << 32 | seq` (R2)."""
    return clock << 32 | seq


@dataclass(frozen=True, slots=True)
class Fence:
    """Who asks, and under which view of the cluster (R1); a server refuses lower numbers than it knows."""

    map_version: int
    rank: int = OBSERVER
    incarnation: int = 0
    clock: int = 0
    timeline: int = 0


@dataclass(frozen=True, slots=True)
class TableIds:
    """Some ids of a table. ids uint64[n]; a repeat is legal. `pull`: the number by which the server is to remember them (R19); 0: none."""

    table: str
    ids: Ids
    pull: int = 0


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows (or gradients) of a table. ids uint64[n], each once; rows float32[n, dim], C-contiguous.

    Those of a push are as the table's `wire` has them. `pull`: in a push, the number of the rank's pull of whose ids the rows are, in their
    order (R19); then `ids` is empty. 0: none.
    """

    table: str
    ids: Ids
    rows: WireRows
    pull: int = 0


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """A state column as it lies in a record: `words` 32-bit numbers of `dtype`, "float32" or "uint32"."""

    name: str
    words: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The numbers a rank wants a table's optimizer to use for a step."""

    table: str
    parameters: dict[str, float]


@dataclass(frozen=True, slots=True)
class StepOrder:
    """An order of the coordinator's that holds from the fold of a step on, on every server alike (R8).

    `number`: one that a server has followed it ignores. `kind` "admit": `rank` is in the roster of all later steps, as `incarnation`.
    """

    number: int
    kind: str
    rank: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The fact that the fenced rank is done with step `clock`: every server acknowledged its pushes of it (R4).

    `resume`: what its worker needs to go on after this step. `orders` hold from this step's fold on.
    """

    clock: int
    hyperparameters: tuple[Hyperparameters, ...] = ()
    resume: bytes = b""
    orders: tuple[StepOrder, ...] = ()


# --- worker -> server ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pull:
    """Read rows as step `fence.clock` may see them; goes to every server where it brings a `finished` along.

    Waits on the server for at most `wait_s`. An observer reads what is there; with `at_step` >= 0 (observers only) synchronous tables
    are read at exactly that step.
    """

    fence: Fence
    tables: tuple[TableIds, ...] = ()
    finished: Finished | None = None
    wait_s: float = 0.0
    at_step: int = -1


@dataclass(frozen=True, slots=True)
class Pulled:
    """rows: n of dim numbers per table asked for, in the order asked, as its `wire` has them. `step`: the synchronous step read.

    It is beyond the clock of a rank that is late in a job with backup workers (R9), and of nobody else.
    """

    rows: tuple[WireRows, ...]
    step: int


@dataclass(frozen=True, slots=True)
class Push:
    """Gradients of step `fence.clock` under the name (rank, clock, seq)."""

    fence: Fence
    seq: int
    tables: tuple[TableRows, ...]
    hyperparameters: tuple[Hyperparameters, ...] = ()


@dataclass(frozen=True, slots=True)
class Assign:
    """Set rows, under a push's name; takes effect at once in every mode. `only_absent`: leave rows that exist as they are.

    Then `seq` may be UNNAMED: it is not looked up and not remembered, since doing it again changes nothing.
    With `columns`, the rows are whole records, float32[n, width]: each row with these state columns behind it, which are set too.
    """

    fence: Fence
    seq: int
    tables: tuple[TableRows, ...]
    only_absent: bool = False
    columns: tuple[ColumnLayout, ...] = ()


@dataclass(frozen=True, slots=True)
class ClearTable:
    """Drop all rows of a table that the server owns, with their state, under a push's name; takes effect at once in every mode."""

    fence: Fence
    seq: int
    table: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Tell a server what this rank finished, on its own: flush and close wait until it is folded; `leave` ends its part in the job."""

    fence: Fence
    finished: Finished | None = None
    leave: bool = False
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OpenExport:
    """Take a snapshot of a table at one instant; `at_step` as in Pull. `with_state`: of whole records."""

    fence: Fence
    table: str
    wait_s: float = 0.0
    at_step: int = -1
    with_state: bool = False


@dataclass(frozen=True, slots=True)
class ExportOpened:
    """`columns`: the state columns behind each row, in their order; none unless asked for."""

    export: int
    rows_count: int
    step: int
    columns: tuple[ColumnLayout, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadExport:
    """Read the next rows of a snapshot, ascending by id, from `rows_begin`; up to `rows_max`. An unread export is dropped after a while."""

    fence: Fence
    export: int
    rows_begin: int
    rows_max: int


@dataclass(frozen=True, slots=True)
class ExportPart:
    """ids uint64[n]; rows float32[n, dim], or records float32[n, width] where they were asked for."""

    ids: Ids
    rows: Rows


@dataclass(frozen=True, slots=True)
class CloseExport:
    fence: Fence
    export: int


@dataclass(frozen=True, slots=True)
class Done:
    """The plain acknowledgement. `step`: the synchronous step the server is at.

    Where it acknowledges a push and is beyond the push's clock, the rank is late (R9): what was pushed to synchronous tables was not taken.
    """

    step: int = 0


@dataclass(frozen=True, slots=True)
class GetStats:
    fence: Fence


@dataclass(frozen=True, slots=True)
class Stats:
    """Numbers of one server, of each of its tables by name, and of each rank that it has answered: how long that took."""

    server: dict[str, float]
    tables: dict[str, dict[str, float]]
    ranks: dict[int, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenLane:
    """Ask a server how to reach it by the fast lane (frames.py); `version`: of the frames that the asker speaks."""

    version: int


@dataclass(frozen=True, slots=True)
class LaneOffered:
    """How a server listens for lanes; a way that it has not is "" or 0.

    `unix_path`: of its socket, for those on its host. `port`: at the host where it was asked. `token`: what a lane's hello must bring.
    `max_request_bytes`: the most array bytes in one request.
    """

    server: str
    version: int
    unix_path: str
    port: int
    token: bytes
    max_request_bytes: int


# --- a word of one server to the others ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decision:
    """What a synchronous step is folded from (R5, R9).

    `ranks`: whose gradients, ascending. `ranks_count`: how many ranks the mean is over: more where one of them was taken anew beyond the
    step, so that it counts as finished and has no gradient in it. `hyperparameters`: those the fold uses, each table once.
    `orders`: hold from this step's fold on, in this order (R8).
    """

    step: int
    ranks: tuple[int, ...]
    ranks_count: int
    hyperparameters: tuple[Hyperparameters, ...] = ()
    orders: tuple[StepOrder, ...] = ()


@dataclass(frozen=True, slots=True)
class StepDecided:
    """In a job with backup workers, the owner of bucket 0 tells every other server in the map what a step is folded from (R9).

    It may come twice, and before that of the step before; a server folds them in order.
    """

    fence: Fence
    job: int
    decision: Decision


# --- anyone -> coordinator ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegisterServer:
    """A server says where it listens; its incarnation is the coordinator's answer.

    `nonce`: a random uint64 that names the process, so that a restarted one is not taken for the one whose name and port it has, and a
    message that comes late, of a process that is gone, is not taken for a restart.
    """

    server: str
    address: str
    weight: float = 1.0
    nonce: int = 0


@dataclass(frozen=True, slots=True)
class ServerRegistered:
    """`must_recover`: serve nothing before a RollBack. `cluster`: whose coordinator this is, 0: it does not say."""

    server: str
    incarnation: int
    must_recover: bool = False
    cluster: int = 0


@dataclass(frozen=True, slots=True)
class JoinJob:
    """A worker takes a rank; the first one of a job fixes world_size and mode. Refused while the shard map is not planned.

    `nonce`: a random uint64 that names this try to join, so that a repeated message does not become another incarnation.
    `wait_s`: how long the servers may take, which all must hear of it; then Unreachable names the one that did not answer.
    `rank` -1: join the running job under a rank that the coordinator chooses; it is `name`'s, and who joins under that again gets it back.
    `resume`: go on where the rank was (R15).
    `on_lost_worker`: "wait" or "continue", which the first one of a job fixes too; "": as the job has it.
    `job`: the number of the only job to take part in; JobEnded where that is over. 0: whichever runs, or a new one.
    """

    rank: int
    world_size: int
    mode: Mode | None
    nonce: int = 0
    wait_s: float = 0.0
    resume: bool = False
    on_lost_worker: str = ""
    name: str = ""
    job: int = 0


@dataclass(frozen=True, slots=True)
class JobJoined:
    """The rank is this worker's under `incarnation`; its first step is `clock`, its next barrier `barrier`.

    `resume`: of the last step that the rank finished; `is_resumed`: it finished one. `lease_s`: renew the lease within that time, 0: there
    is none.
    """

    incarnation: int
    clock: int
    barrier: int
    world_size: int
    mode: Mode
    timeline: int
    shard_map: ShardMap
    tables: tuple[TableSpec, ...]
    rank: int = -1
    resume: bytes = b""
    is_resumed: bool = False
    lease_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RenewLease:
    """The worker of this rank lives, at step `clock`."""

    rank: int
    incarnation: int
    clock: int


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """`orders`: what the worker is to put into its next `finished` (R8). `timeline`: beyond the worker's own after a rollback."""

    orders: tuple[StepOrder, ...]
    timeline: int


@dataclass(frozen=True, slots=True)
class LeaveJob:
    """The rank is done; sent after every server acknowledged its leaving."""

    rank: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class CreateTable:
    """Create the table on every server, or check that the one that exists is the same. `wait_s`: as in JoinJob."""

    spec: TableSpec
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TableCreated:
    """`spec`: the table as it stands, with the first creator's hyperparameters."""

    spec: TableSpec


@dataclass(frozen=True, slots=True)
class GetCluster:
    """Ask for the cluster as it is; with `wait_s`, wait that long for the shard map to be planned."""

    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TakeCheckpoint:
    """Write a checkpoint under the root `path`, "": the configured one; answered once it is complete.

    `full`: no increment. `at_least`: of a step no lower than this, where a table is synchronous. `wait_s`: how long the servers may take to
    come to it.
    """

    path: str
    full: bool
    at_least: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class CheckpointTaken:
    """Where it lies and of which step it is. `took_s`: until it was complete; `stall_s`: the longest turn of a server meanwhile."""

    path: str
    number: int
    step: int
    rows: int
    nbytes: int
    took_s: float
    stall_s: float


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster as the coordinator knows it. `shard_map` is None until the expected servers are there.

    `lost`: the ranks whose lease has run out. `checkpoint`: the number of the last complete one, 0: none. `notice`: what an operator must
    know, such as why a checkpoint failed. `end`: the checkpoint that has all of the job that ran last; None while one runs, and before that
    checkpoint is complete. `job`: the number of the job that runs, or ran last, 0: none in which a worker has taken part since a rollback.
    """

    servers_expected: int
    shard_map: ShardMap | None
    tables: tuple[TableSpec, ...] = ()
    timeline: int = 0
    world_size: int = 0
    mode: Mode | None = None
    ranks: dict[int, int] = field(default_factory=dict)  # rank -> incarnation, of those taking part now
    servers: dict[str, str] = field(default_factory=dict)  # name -> address, of those registered
    lost: tuple[int, ...] = ()
    checkpoint: int = 0
    notice: str = ""
    left: tuple[int, ...] = ()  # ranks whose first workers have left the job that runs, or ran last, by their own word
    end: CheckpointTaken | None = None
    job: int = 0
    missed: tuple[int, ...] = ()  # ranks without which the job ended that ran last: they were removed from it


@dataclass(frozen=True, slots=True)
class SkippedTurn:
    """A rank goes on behind a turn, and comes to none of its barriers: those from `generation` on, without a gap, asked for in it."""

    generation: int
    turn: int


@dataclass(frozen=True, slots=True)
class Barrier:
    """Wait until every rank that has not left is at barrier `generation`. `value`: what this one brings to it.

    is_between  do not wait: the rank goes on where it was, which is before that barrier and behind the one before.
    turn        the rank's clock, where it asks in the turn of a loop whose step is made; else 0.
    skipped     turns whose barriers the rank counts as if there were none, ascending; until an answer tells how many there were.
    """

    rank: int
    incarnation: int
    generation: int
    wait_s: float
    value: int = 0
    is_between: bool = False
    turn: int = 0
    skipped: tuple[SkippedTurn, ...] = ()


@dataclass(frozen=True, slots=True)
class BarrierPassed:
    """Every rank is there. `minimum`: the least value that one of them brought, the same for all. `generation`: the barrier's number.

    That is higher than the one asked for where the rank had skipped some.
    """

    minimum: int = 0
    generation: int = 0
