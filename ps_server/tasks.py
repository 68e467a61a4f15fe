"""What a core gives to be done aside, what comes of it, and what the doing asks of its own core. Values only.

    task                 done by             what comes of it
    SavePart             a server            PartWritten
    LoadPart             a server            int: the rows that were loaded
    PublishCheckpoint    the coordinator     Published
    AbandonCheckpoint    the coordinator     None
    FindCheckpoint       the coordinator     FoundCheckpoint
    ProbeRoot            the coordinator     None
    CheckParts           the coordinator     None

A task travels in Work and its outcome in Worked, or the error that stands for it. While SavePart runs it asks OpenPart, ReadPiece and
ReadStall of the shard whose part it is; LoadPart asks LoadRows, LoadNames and LoadFacts. These are never on the wire.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ps_proto.orders import JobState, PartWritten, Source
from ps_proto.requests import ColumnLayout, Finished, Ids
from ps_proto.values import TableSpec
from sharding.shard_map import ShardMap

Records = NDArray[np.uint32]  # uint32[n, row_words]: rows with their state columns, as they lie in a slab


# --- a server's tasks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SavePart:
    """Write what `server` has taken for checkpoint `number` under `root`, as part `shard`."""

    root: str
    number: int
    shard: int
    server: str


@dataclass(frozen=True, slots=True)
class LoadPart:
    """Load of `source` what `server` owns under `shard_map`, for `timeline`."""

    source: Source
    server: str
    shard_map: ShardMap
    timeline: int


# --- the coordinator's tasks, and what comes of them -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BarrierRun:
    """What was agreed upon at barriers of a job in a row, from number `generation` on.

    `turns`: in which ranks asked for them, ascending; see Barrier.
    """

    generation: int
    minimum: int
    count: int = 1
    turns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PublishCheckpoint:
    """Make the parts a complete checkpoint, if they are of one instant; then keep the last `keep` ones of its lineage under `root`.

    `base`: the checkpoint on which increments among the parts stand. `cluster`: the id of the cluster. `lineage`: as in FindCheckpoint.
    `removals`: (rank, step) of ranks that were removed from the job, after that step, and did not leave by their own word.
    `barriers`: those that the job had passed last when all parts were taken, ascending.
    """

    root: str
    number: int
    base: int | None
    cluster: int
    parts: tuple[PartWritten, ...]
    shard_map: ShardMap
    tables: tuple[TableSpec, ...]
    job: JobState | None
    keep: int
    lineage: tuple[tuple[int, int, int], ...] = ()
    removals: tuple[tuple[int, int], ...] = ()
    barriers: tuple[BarrierRun, ...] = ()


@dataclass(frozen=True, slots=True)
class Published:
    """A complete checkpoint of `step`; `removed`: how many older ones were deleted. `stall_s`: the longest turn of a server."""

    number: int
    step: int
    rows: int
    nbytes: int
    stall_s: float
    removed: int


@dataclass(frozen=True, slots=True)
class AbandonCheckpoint:
    """Delete what was written for a checkpoint that will not be complete."""

    root: str
    number: int


@dataclass(frozen=True, slots=True)
class FindCheckpoint:
    """Find the newest complete checkpoint under `roots`, or that of `number`; `bad`: (root, number) of those that could not be loaded.

    `lineage`: (cluster, timeline, number) says that only checkpoints of these clusters count, those of timelines before that one up to that
    number; empty: of every cluster.
    """

    roots: tuple[str, ...]
    number: int | None = None
    bad: tuple[tuple[str, int], ...] = ()
    lineage: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """What was found, with its timeline, tables and job; `source` is None where there is none.

    `passed_over`: a sentence for each newer one that cannot be used. `number_max`: the highest number of any that was begun there, complete
    or not, 0: of none. `cluster`: the id of the one that wrote it. `increments`: how many follow one with all rows, up to it.
    `admitted`: rank -> the first step of whose roster it was when it was admitted last, of ranks that were admitted to its job.
    `removed`: those of its job that had left by then, and not by their own word.
    `barriers`: as in PublishCheckpoint.
    """

    source: Source | None
    timeline: int
    tables: tuple[TableSpec, ...]
    job: JobState | None
    passed_over: tuple[str, ...]
    number_max: int = 0
    cluster: int = 0
    increments: int = 0
    admitted: Mapping[int, int] = field(default_factory=dict)
    removed: frozenset[int] = frozenset()
    barriers: tuple[BarrierRun, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeRoot:
    """See that checkpoints can be written under `root`. `token`: in the name of a file there, so that nobody else has it."""

    root: str
    token: str


@dataclass(frozen=True, slots=True)
class CheckParts:
    """See that the parts are there which the servers wrote for `number`, of each in the map's order, as they wrote them."""

    root: str
    number: int
    parts: tuple[PartWritten, ...]


# --- what SavePart asks of its shard ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenPart:
    """What was taken for checkpoint `number`? Answered with a PartHead."""

    number: int


@dataclass(frozen=True, slots=True)
class TableHead:
    """A table of a part. `is_full`: all of its rows follow, not only those touched since the base. `row_words`: of a record."""

    spec: TableSpec
    is_full: bool
    row_words: int
    columns: tuple[ColumnLayout, ...]


@dataclass(frozen=True, slots=True)
class SavedNames:
    """The window (R2): names uint64[ranks, buckets], the name applied last of each rank in each bucket; buckets int32[n], ascending."""

    ranks: tuple[int, ...]
    buckets: NDArray[np.int32]
    names: NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class PartHead:
    """All of a part's instant but the rows. `incarnation`: of the server.

    `clocks`: rank -> the last step that counts as finished by it. `since`: rank that was admitted -> its first step then.
    `left`: rank -> the last step of whose roster it is. `facts`: rank -> the fact of exactly its clock, where there is one. `counters`: the
    server's numbers of each table, for people.
    """

    step: int
    job: int
    timeline: int
    map_version: int
    incarnation: int
    tables: tuple[TableHead, ...]
    clocks: dict[int, int]
    since: dict[int, int]
    left: dict[int, int]
    facts: dict[int, Finished]
    names: SavedNames
    counters: dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class ReadPiece:
    """Read the next rows of a table, about `bytes_max` of them; answered with a Piece, or Done: no more.

    `table`: its place in the PartHead.
    """

    number: int
    table: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Piece:
    """ids uint64[n], each once in a part, in no order; records uint32[n, row_words]. Whoever asked owns both."""

    ids: Ids
    records: Records


@dataclass(frozen=True, slots=True)
class ReadStall:
    """How long was the server's longest turn since this part's instant? Answered with a Stall."""

    number: int


@dataclass(frozen=True, slots=True)
class Stall:
    """The seconds of a longest turn. The core, which knows no time, says 0.0; the edge puts the seconds in (edge/timed_core.py)."""

    longest_turn_s: float = 0.0


# --- what LoadPart asks of its shard; each is answered with Done, and refused once there is a later timeline ------------------------


@dataclass(frozen=True, slots=True)
class LoadRows:
    """Set these rows with their state: ids uint64[n], each once; records uint32[n, row_words].

    `expected`: how many rows of the table are still to come, these included.
    """

    timeline: int
    table: str
    ids: Ids
    records: Records
    expected: int


@dataclass(frozen=True, slots=True)
class LoadNames:
    """Take these names for the buckets that this server owns."""

    timeline: int
    names: SavedNames


@dataclass(frozen=True, slots=True)
class LoadFacts:
    """Take each rank's fact, with its resume state."""

    timeline: int
    facts: dict[int, Finished]


# --- what a server's edge tells its shard --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Registered:
    """The coordinator has taken this server in, under `incarnation`; as in ServerRegistered."""

    incarnation: int
    must_recover: bool
    cluster: int
