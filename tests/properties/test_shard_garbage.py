"""Any request that the wire can carry, however absurd: the shard answers each once, with a reply or one of our errors, and stays sound."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from conversation import Conversation
from ps_proto.errors import ParameterServerError
from ps_proto.orders import (
    AdmitRank,
    AskCheckpoint,
    AskRestore,
    BeginCheckpoint,
    CancelCheckpoint,
    FenceRank,
    InstallTable,
    JobState,
    RankState,
    ResolveRank,
    RollBack,
    Source,
    StartJob,
)
from ps_proto.requests import (
    Assign,
    ClearTable,
    CloseExport,
    ColumnLayout,
    Decision,
    Fence,
    Finish,
    Finished,
    GetStats,
    Hyperparameters,
    OpenExport,
    Pull,
    Push,
    ReadExport,
    StepDecided,
    StepOrder,
    TableIds,
    TableRows,
)
from ps_proto.values import SGD, Adagrad, Assigned, Async, BoundedStaleness, Sync, TableSpec
from ps_server.tasks import LoadFacts, OpenPart, ReadPiece
from sharding.hashing import NUM_BUCKETS
from sharding.shard_map import Server, ShardMap
from sharding.wire_rows import encode_rows

TABLES = (
    TableSpec("user", 1, Adagrad(lr=0.5), mode=Sync()),
    TableSpec("item", 2, SGD(lr=0.5), mode=Async()),
    TableSpec("dense", 1, SGD(lr=0.5), Assigned()),
    TableSpec("word", 2, SGD(lr=0.5), wire="int8"),
)
MAP = ShardMap(1, (Server("server-0", "server-0"), Server("server-1", "server-1")), np.ones(NUM_BUCKETS, np.int32))
WIRES = {spec.name: spec.wire for spec in TABLES}
DIMS = {spec.name: spec.dim for spec in TABLES}
CLOCKS = st.sampled_from([0, 0, 0, 0, 1, 1, 2, 2**31 - 1])
STEPS = st.sampled_from([-1, 0, 1, 2**31 - 1])
WAITS = st.sampled_from([0.0, 1.0, 1e9])
names = st.sampled_from([*DIMS, *DIMS, "nobody's"])
ids = st.lists(st.sampled_from([0, 1, 2, 2**64 - 1]), max_size=3).map(lambda chosen: np.array(chosen, np.uint64))  # repeats included
versions, incarnations = st.sampled_from([1] * 20 + [0, 2]), st.sampled_from([0] * 20 + [1, 2])  # most pass the fences
fences = st.builds(Fence, versions, st.sampled_from([0, 0, 0, 1, 1, -1, 2]), incarnations, CLOCKS)
hyperparameters = st.lists(
    st.builds(
        Hyperparameters,
        names,
        st.sampled_from([{}, {"lr": 0.5}, {"lr": np.nan}, {"lr": 0.1, "initial_accumulator_value": 0.0, "eps": 0.0}, {"beta1": 0.5}]),
    ),
    max_size=2,
).map(tuple)
orders = st.lists(st.builds(StepOrder, st.sampled_from([1, 2]), st.sampled_from(["admit"] * 9 + ["move"]), STEPS, incarnations), max_size=1)
step_orders = st.sampled_from([()] * 9) | orders.map(tuple)
finished = st.none() | st.builds(Finished, CLOCKS, hyperparameters, st.sampled_from([b"", b"", b"", b"x" * 65_537]), step_orders)


@st.composite
def blocks(draw: st.DrawFn) -> TableRows:
    table, picked = draw(names), draw(ids)
    shape = (picked.size, draw(st.sampled_from([DIMS.get(table, 1)] * 20 + [0, 3])))
    rows = np.full(shape, draw(st.sampled_from([1.0, 1.0, -2.0, -2.0, 3e38, np.nan])), np.float32)
    wire = draw(st.sampled_from([WIRES.get(table, "float32")] * 10 + ["float32", "bfloat16", "int8"]))
    return TableRows(table, picked, encode_rows(rows, wire))


layouts = st.sampled_from([(), (), (), (ColumnLayout("sum_of_squares", 1, "float32"),), (ColumnLayout("m", -1, "no"),)])
many_blocks = st.lists(blocks(), max_size=2).map(tuple)
KINDS: dict[str, tuple[int, st.SearchStrategy[object]]] = {  # how often, what
    "pull": (6, st.builds(Pull, fences, st.lists(st.builds(TableIds, names, ids), max_size=2).map(tuple), finished, WAITS, STEPS)),
    "push": (9, st.builds(Push, fences, st.sampled_from([1, 1, 2, 3, 0, 2**32 - 1]), many_blocks, hyperparameters)),
    "assign": (3, st.builds(Assign, fences, st.sampled_from([1, 2, 3]), many_blocks, st.booleans(), layouts)),
    "clear": (1, st.builds(ClearTable, fences, st.sampled_from([0, 1, 2, 3]), names)),
    "finish": (9, st.builds(Finish, fences, finished, st.sampled_from([False, False, False, True]), WAITS)),
    "open": (2, st.builds(OpenExport, fences, names, WAITS, STEPS, st.booleans())),
    "read": (
        2,
        st.builds(ReadExport, fences, st.sampled_from([0, 1, 2]), st.sampled_from([0, 1, 2**63 - 1]), st.sampled_from([1, 2**63 - 1])),
    ),
    "close": (1, st.builds(CloseExport, fences, st.sampled_from([0, 1, 2]))),
    "stats": (1, st.builds(GetStats, fences)),
    "table": (1, st.builds(InstallTable, st.sampled_from([0, 1]), st.sampled_from(TABLES))),
    "job": (1, st.builds(StartJob, st.just(1), STEPS, st.sampled_from([0, 1, 2]), st.just(BoundedStaleness(0)), st.sampled_from([0, 3]))),
    "fence": (1, st.builds(FenceRank, st.just(1), STEPS, st.sampled_from([0, 1, 2]))),
    "resolve": (1, st.builds(ResolveRank, st.just(1), STEPS, st.sampled_from([0, 1, 2]), st.none(), st.sampled_from([-1, 0, 1, 2]))),
}
RANKS = st.sampled_from([(0,), (0,), (1,), (0, 1), (), (1, 0), (0, 0), (2,), (-1,)])
decisions = st.builds(Decision, CLOCKS, RANKS, st.sampled_from([1, 1, 2, 0, 3]), hyperparameters, step_orders)
KINDS["decision"] = (6, st.builds(StepDecided, fences, st.sampled_from([1, 1, 1, 0, 2]), decisions))
NUMBERS, TIMELINES = st.sampled_from([1, 1, 1, 2, 3]), st.sampled_from([0] * 20 + [1])
KINDS["admit"] = (2, st.builds(AdmitRank, st.just(1), st.just(0), STEPS, st.sampled_from([0, 1, 2]), st.sampled_from([0, 1, 5]), TIMELINES))
KINDS["begin"] = (
    3,
    st.builds(
        BeginCheckpoint, st.just(1), st.just(0), NUMBERS, st.sampled_from("ab"), st.just(0), STEPS, NUMBERS, st.booleans(), st.booleans()
    ),
)
KINDS["ask"] = (1, st.builds(AskCheckpoint, st.sampled_from([0, 1]), NUMBERS))
KINDS["cancel"] = (1, st.builds(CancelCheckpoint, st.just(1), NUMBERS))
KINDS["open part"] = (1, st.builds(OpenPart, NUMBERS))
KINDS["read part"] = (2, st.builds(ReadPiece, NUMBERS, st.sampled_from([0, 0, 1, -1, 9]), st.sampled_from([0, 100])))
jobs = st.none() | st.builds(
    lambda world_size, step, ranks: JobState(1, world_size, Sync(), 0, step, ranks),
    st.sampled_from([0, 1, 2]),
    STEPS,
    st.lists(st.builds(RankState, st.sampled_from([0, 1, 2, -1]), st.none(), STEPS, st.booleans()), max_size=2).map(tuple),
)
KINDS["roll back"] = (
    1,
    st.builds(
        lambda timeline, job, source: RollBack(1, 0, timeline, MAP, TABLES, job, source),
        TIMELINES,
        jobs,
        st.none() | st.builds(Source, st.just("a"), NUMBERS),
    ),
)
KINDS["ask restore"] = (1, st.builds(AskRestore, st.just(1), TIMELINES))
KINDS["load facts"] = (1, st.builds(LoadFacts, TIMELINES, st.dictionaries(STEPS, st.builds(Finished, CLOCKS), max_size=2)))
requests = st.sampled_from([kind for kind, (often, _) in KINDS.items() for _ in range(often)]).flatmap(lambda kind: KINDS[kind][1])


@settings(max_examples=80)
@given(
    asked=st.lists(requests, min_size=20, max_size=60),
    world_size=st.sampled_from([0, 1, 1, 2]),
    mode=st.sampled_from([Sync(), Sync(1)]),
    decides=st.booleans(),
)
def test_nothing_breaks_a_shard(asked: list[object], world_size: int, mode: Sync, decides: bool) -> None:
    """`decides`: the server owns bucket 0, which counts with backup workers."""
    owners = np.ones(NUM_BUCKETS, np.int32)
    owners[0] = decides
    shard_map = ShardMap(1, (Server("server-0", "server-0"), Server("server-1", "server-1")), owners)
    talk = Conversation(mode if world_size else None, world_size, TABLES, rows_max=3, server="server-1", shard_map=shard_map)
    questions = [talk.ask(body) for body in asked]
    talk.shard.check_invariants()
    talk.tick(2e9)
    assert not any(question.is_waiting for question in questions)
    for question in questions:
        assert not isinstance(question.outcome, ParameterServerError) or str(question.outcome)
    assert talk.shard.deadline_s() is None
