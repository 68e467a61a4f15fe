"""A shard names each update to its bfloat16 tables: by the step of a fold, or by the push that is applied on arrival."""

import numpy as np
import pytest

from conversation import Conversation
from naive.table import NaiveTable
from ps_proto.requests import push_name
from ps_proto.values import SGD, Async, Constant, Sync, TableSpec

HALVED = TableSpec("user", 1, SGD(lr=1.0), Constant(1.0), seed=4, dtype="bfloat16")
IDS = tuple(range(40))
SMALL = 0.003  # rows of 1 become 1 or 1 - 2^-8, some this and some that


def pushed(talk: Conversation, rank: int, clock: int, seq: int) -> None:
    talk.push(rank, clock, dict.fromkeys(IDS, SMALL), seq)


def update(twin: NaiveTable, step: int, rank: int) -> None:
    twin.update(IDS, [np.array([SMALL], dtype=np.float32)] * len(IDS), SGD(lr=1.0).parameters(), step, rank)


def rows_of(twin: NaiveTable) -> list[float]:
    return [float(row[0]) for row in twin.pull(IDS)]


@pytest.mark.parametrize("first_clock", [0, 7])
def test_a_fold_rounds_by_its_step_whoever_pushed(first_clock: int) -> None:
    talk, twin = Conversation(Sync(), 2, (HALVED,), first_clock), NaiveTable(HALVED)
    for step in range(first_clock, first_clock + 3):
        for rank in (0, 1):
            pushed(talk, rank, step, seq=1)
            talk.finish(rank, step)
        update(twin, step, rank=-1)
        assert talk.read(*IDS) == rows_of(twin)
    assert len(set(rows_of(twin))) > 1


def test_a_push_applied_on_arrival_rounds_by_its_own_name() -> None:
    talk, twin = Conversation(Async(), 2, (HALVED,)), NaiveTable(HALVED)
    for rank, clock, seq in ((0, 0, 1), (0, 0, 2), (1, 0, 1), (1, 1, 1)):
        if clock > 0:
            talk.finish(rank, clock - 1)
        pushed(talk, rank, clock, seq)
        pushed(talk, rank, clock, seq)  # said again: nothing changes
        update(twin, push_name(clock, seq), rank)
        assert talk.read(*IDS) == rows_of(twin)
