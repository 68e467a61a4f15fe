"""What the coordinator orders a server to do, and what the server answers, as values.

The same is true of them as of those in requests.py, of which some ride in these. A shard map is handed on by any peer, all else is the
coordinator's alone.

Read in this order: who is there, what opens a job and settles its ranks, checkpoints, rollbacks.
"""

from dataclasses import dataclass

from ps_proto.requests import NEVER, Finished
from ps_proto.values import Mode, TableSpec
from sharding.shard_map import ShardMap


@dataclass(frozen=True, slots=True)
class AskProcess:
    """Ask which process listens at an address; it answers whatever it can serve yet."""


@dataclass(frozen=True, slots=True)
class ProcessNamed:
    """`nonce`: as in RegisterServer."""

    nonce: int


@dataclass(frozen=True, slots=True)
class InstallMap:
    """Take this shard map if it is newer."""

    shard_map: ShardMap


@dataclass(frozen=True, slots=True)
class InstallTable:
    """Open a table; the same one again is fine.

    creation  counts the coordinator's attempts to create any table: one that some server refused may be followed by another of that name.
    cluster   whose coordinator says so; 0: it does not say.
    """

    term: int
    spec: TableSpec
    creation: int = 0
    cluster: int = 0


@dataclass(frozen=True, slots=True)
class StartJob:
    """A job begins: roster 0..world_size-1 from step `first_clock` on (R6). `cluster`: as in InstallTable, and so in each order.

    timeline  of which the order is, as in each that moves a rank's clock: what was found out before a rollback must not be done after it.
    """

    term: int
    job: int
    world_size: int
    mode: Mode
    first_clock: int
    cluster: int = 0
    timeline: int = 0


@dataclass(frozen=True, slots=True)
class FenceRank:
    """Refuse lower incarnations of this rank from now on, and say how far it came (R7)."""

    term: int
    rank: int
    incarnation: int
    cluster: int = 0


@dataclass(frozen=True, slots=True)
class RankFenced:
    """How far the rank came on this server.

    `fact`: what it finished last in this job. `applied`: the last step of which a push was applied, NEVER where there is none.
    `clock_max`: the highest finished or applied step of any rank. `finished`: the last step that counts as finished by it, with a fact or
    without. `since`: the first step of whose roster it is, since it was admitted last; NEVER where it is in none, or has left.
    """

    fact: Finished | None
    applied: int
    clock_max: int
    has_left: bool = False
    finished: int = NEVER
    since: int = NEVER


@dataclass(frozen=True, slots=True)
class ResolveRank:
    """Take `fact`, the newest that any server heard, as known, and drop what the rank staged beyond it (R7).

    Then its new incarnation begins with step `start`, or the rank has left before it; what lies between counts as finished.
    """

    term: int
    rank: int
    incarnation: int
    fact: Finished | None
    start: int
    has_left: bool = False
    cluster: int = 0
    timeline: int = 0


@dataclass(frozen=True, slots=True)
class AdmitRank:
    """In a job without synchronous tables: this rank is in the roster of step `first` and all later ones (R6)."""

    term: int
    cluster: int
    rank: int
    incarnation: int
    first: int
    timeline: int = 0


# --- checkpoints, from the coordinator to a server ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BeginCheckpoint:
    """Take this server's part of checkpoint `number` once its step is `boundary` (-1: now), and write it to `root` as part `shard`.

    `base`: the number of the checkpoint on which an increment may stand, -1: none. `tracks`: the next part here may be an increment on this
    one. `full`: no increment.
    """

    term: int
    cluster: int
    number: int
    root: str
    shard: int
    boundary: int
    base: int
    tracks: bool
    full: bool


@dataclass(frozen=True, slots=True)
class AskCheckpoint:
    """How far is the part of checkpoint `number`?"""

    term: int
    cluster: int
    number: int


@dataclass(frozen=True, slots=True)
class CancelCheckpoint:
    """Forget the part of checkpoint `number`, whose files count for nothing."""

    term: int
    cluster: int
    number: int


@dataclass(frozen=True, slots=True)
class PartWritten:
    """A part that is on the disk, of one instant of `server`: at `step`, under `map_version`.

    `file`: its part.json, from the root, with its size and checksum. `rows`, `nbytes`: in its tables. `stall_s`: its longest turn
    meanwhile.
    """

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


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """How far a server is with its part of checkpoint `number`.

    `phase`: "none" (it knows of none), "armed" (it waits for the boundary), "taken" (and being written), "passed" (its step is beyond the
    boundary, nothing was taken), "written" (`part` says what) or "failed" (`why` says how). `step`: where the server is. `slowest`: the
    rank that it waits for, OBSERVER where it waits for none.
    """

    number: int
    phase: str
    step: int
    slowest: int
    part: PartWritten | None = None
    why: str = ""


# --- rollback, from the coordinator to a server (R12, R15) -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Source:
    """A complete checkpoint: its number under a root."""

    root: str
    number: int


@dataclass(frozen=True, slots=True)
class RankState:
    """Where a rank goes on after a rollback: it finished all steps up to `finished`; the last with `fact`, if there is one."""

    rank: int
    fact: Finished | None
    finished: int
    has_left: bool


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as a rollback takes it up again: as in StartJob, and the step whose rows the tables hold."""

    number: int
    world_size: int
    mode: Mode
    first_clock: int
    step: int
    ranks: tuple[RankState, ...]


@dataclass(frozen=True, slots=True)
class RollBack:
    """Forget everything, and begin `timeline` with this map, these tables and this job, and the rows of `source`; without one, with none.

    The facts in `job` come without resume states: those are in the checkpoint.
    """

    term: int
    cluster: int
    timeline: int
    shard_map: ShardMap
    tables: tuple[TableSpec, ...]
    job: JobState | None
    source: Source | None


@dataclass(frozen=True, slots=True)
class AskRestore:
    """How far has this server loaded what `timeline` begins with?"""

    term: int
    cluster: int
    timeline: int


@dataclass(frozen=True, slots=True)
class RestoreState:
    """`phase`: "loading", "loaded" or "failed", of which `why` says how. `rows`: those that are there."""

    timeline: int
    phase: str
    rows: int
    why: str = ""
