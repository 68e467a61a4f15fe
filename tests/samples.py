"""One value of every request and reply, with no field at its default, and a comparison that looks into arrays."""

import struct
from dataclasses import fields, is_dataclass

import numpy as np

from ps_proto.orders import (
    AdmitRank,
    AskCheckpoint,
    AskProcess,
    AskRestore,
    BeginCheckpoint,
    CancelCheckpoint,
    CheckpointState,
    FenceRank,
    InstallMap,
    InstallTable,
    JobState,
    PartWritten,
    ProcessNamed,
    RankFenced,
    RankState,
    ResolveRank,
    RestoreState,
    RollBack,
    Source,
    StartJob,
)
from ps_proto.requests import (
    Assign,
    Barrier,
    BarrierPassed,
    CheckpointTaken,
    ClearTable,
    CloseExport,
    Cluster,
    ColumnLayout,
    CreateTable,
    Decision,
    Done,
    ExportOpened,
    ExportPart,
    Fence,
    Finish,
    Finished,
    GetCluster,
    GetStats,
    Hyperparameters,
    JobJoined,
    JoinJob,
    LaneOffered,
    LeaseRenewed,
    LeaveJob,
    OpenExport,
    OpenLane,
    Pull,
    Pulled,
    Push,
    ReadExport,
    RegisterServer,
    RenewLease,
    ServerRegistered,
    SkippedTurn,
    Stats,
    StepDecided,
    StepOrder,
    TableCreated,
    TableIds,
    TableRows,
    TakeCheckpoint,
)
from ps_proto.values import Adagrad, Adam, Async, BoundedStaleness, Normal, Sync, TableSpec, Uniform
from sharding.hashing import NUM_BUCKETS
from sharding.shard_map import Server, ShardMap
from sharding.wire_rows import encode_rows

FENCE = Fence(map_version=3, rank=1, incarnation=4, clock=7, timeline=2)
ORDERS = (StepOrder(3, "admit", 2, 5), StepOrder(4, "admit", 0, 1))
FINISHED = Finished(6, (Hyperparameters("user", {"lr": 0.1, "eps": 1e-10}), Hyperparameters("item", {})), b"\x00resume\xff", ORDERS)
IDS = np.array([7, 0, 2**64 - 1, 2**63], dtype=np.uint64)
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
TABLES = (TableRows("user", IDS, ROWS), TableRows("item", IDS[:1], ROWS[:1, :2].copy()), TableRows("none", IDS[:0], ROWS[:0]))
GRADIENTS = (*TABLES, TableRows("halves", IDS, encode_rows(ROWS, "bfloat16")), TableRows("bytes", IDS[:3], encode_rows(ROWS[:3], "int8")))
LISTED = TableRows("listed", IDS[:0], ROWS, 2**63 - 1)  # of the ids of a pull
COLUMNS = (ColumnLayout("m", 64, "float32"), ColumnLayout("t", 1, "uint32"))
SPECS = (
    TableSpec("user", 64, Adam(0.5, (0.8, 0.9), 1e-6), Normal(1.0, 2.0), 2**64 - 1, BoundedStaleness(3)),
    TableSpec("größe", 1, Adagrad(0.05, 0.1, 1e-3), Uniform(-0.01, 0.01), 7, wire="int8"),
)
SHARD_MAP = ShardMap(
    9, (Server("server-0", "127.0.0.1:4001", 2, 1.5), Server("server-1", "[::1]:4002")), np.arange(NUM_BUCKETS, dtype=np.int32) % 2
)
CLUSTER = 2**64 - 3
JOB = JobState(6, 8, BoundedStaleness(2), 12, 17, (RankState(0, FINISHED, 6, True), RankState(7, None, -1, False)))
PART = PartWritten("server-0", "checkpoint-0000000009/shard-0/part.json", 2**40, "00ff", 17, 2, 9, 10, 2**50, 0.25)

TAKEN = CheckpointTaken("/checkpoints", 9, 17, 20, 2**51, 1.5, 0.25)
REQUESTS: tuple[object, ...] = (
    Pull(FENCE, (*[TableIds(table.table, table.ids) for table in TABLES], TableIds("listed", IDS, 2**63 - 1)), FINISHED, 2.5, 11),
    Push(FENCE, 3, (LISTED, *GRADIENTS), FINISHED.hyperparameters),
    Assign(FENCE, 4, TABLES, True, COLUMNS),
    ClearTable(FENCE, 5, "user"),
    Finish(FENCE, FINISHED, True, 1.5),
    OpenExport(FENCE, "user", 2.0, 5, True),
    ReadExport(FENCE, 17, 100, 50),
    CloseExport(FENCE, 17),
    GetStats(FENCE),
    AskProcess(),
    OpenLane(1),
    InstallMap(SHARD_MAP),
    InstallTable(5, SPECS[0], 3, CLUSTER),
    StartJob(5, 6, 8, BoundedStaleness(2), 12, CLUSTER, 2),
    FenceRank(5, 1, 4, CLUSTER),
    ResolveRank(5, 1, 4, FINISHED, 7, True, CLUSTER, 2),
    AdmitRank(5, CLUSTER, 1, 4, 18, 2),
    BeginCheckpoint(5, CLUSTER, 9, "s3://bucket/größe", 1, 20, 8, True, True),
    AskCheckpoint(5, 2**64 - 1, 9),
    CancelCheckpoint(5, 2**64 - 1, 9),
    RollBack(5, CLUSTER, 3, SHARD_MAP, SPECS, JOB, Source("/checkpoints", 9)),
    AskRestore(5, 2**64 - 1, 3),
    StepDecided(Fence(3, timeline=2), 6, Decision(7, (0, 2), 3, FINISHED.hyperparameters, ORDERS)),
    RegisterServer("server-0", "127.0.0.1:4001", 2.0, 2**64 - 2),
    JoinJob(1, 8, Sync(), 2**64 - 1, 4.0, True, "continue", "spare", 2**40),
    LeaveJob(1, 4),
    RenewLease(1, 4, 7),
    CreateTable(SPECS[1], 5.0),
    GetCluster(3.0),
    Barrier(1, 4, 9, 20.0, -3, True, 5, (SkippedTurn(7, 3), SkippedTurn(2**63 - 1, 4))),
    TakeCheckpoint("/checkpoints", True, 7, 30.0),
)
REPLIES: tuple[object, ...] = (
    Pulled((ROWS, ROWS[:0], ROWS[:1, :2].copy(), encode_rows(ROWS, "int8"), encode_rows(ROWS[:2], "bfloat16")), 7),
    Done(7),
    ExportOpened(17, 1_000, 7, COLUMNS),
    ExportPart(IDS, ROWS),
    Stats({"rows": 4.0, "wait_s": 0.25}, {"user": {"rows": 4.0}, "item": {}}),
    ProcessNamed(2**64 - 2),
    LaneOffered("server-0", 1, "größe/lane", 65_535, b"\x00token\xff", 2**63 - 1),
    RankFenced(FINISHED, -1, 7, True, 6, 5),
    CheckpointState(9, "written", 17, 3, PART, "nothing"),
    RestoreState(3, "failed", 10, "a file is missing"),
    ServerRegistered("server-0", 2, True, CLUSTER),
    JobJoined(4, 7, 3, 8, Async(), 2, SHARD_MAP, SPECS, 5, b"\x00resume\xff", True, 10.0),
    LeaseRenewed(ORDERS, 3),
    TableCreated(SPECS[0]),
    Cluster(
        2,
        SHARD_MAP,
        SPECS,
        2,
        8,
        Sync(),
        {0: 1, 1: 4},
        {"server-0": "127.0.0.1:4001"},
        (1, 3),
        9,
        "checkpoint 8 failed",
        (2, 7),
        TAKEN,
        2**40,
        (4, 5),
    ),
    BarrierPassed(-3, 11),
    TAKEN,
)


def type_name(value: object) -> str:
    """Return what a test with this value is called."""
    return type(value).__name__


def same(one: object, other: object) -> bool:
    """Say whether two values are equal, arrays bit for bit and of the same dtype and shape."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(same(left, right) for left, right in zip(one, other, strict=True))
    if is_dataclass(one) and not isinstance(one, ShardMap):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack("<d", one) == struct.pack("<d", other)  # nan too
    return one == other
