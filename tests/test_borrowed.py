"""Requests whose rows lie in the asker's memory, and whose replies are to lie there: it changes once there is an answer."""

from typing import Any

import numpy as np
import pytest

from conversation import ITEM, USER, Conversation, ids, rows
from ps_proto.requests import Assign, Fence, Finish, Finished, Pull, Pulled, Push, TableRows
from ps_proto.values import SGD, Async, BoundedStaleness, DelayCompensated, Mode, StalenessScaled, Sync, TableSpec
from ps_server.events import Asked, Body, Refuse, Reply
from sharding.arrays import empty_aligned
from sharding.wire_format import WireRows

NOW = Fence(1, 0, 0, 0)


class Borrower:
    """Asks a shard with memory of its own."""

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk
        self.made: list[WireRows] = []

    def ask(self, body: Body) -> Body:
        (effect,) = self._talk.shard.handle(Asked(10**6 + len(self.made), body, self._make, is_borrowed=True), self._talk.now_s)
        assert not isinstance(effect, Refuse), effect
        assert isinstance(effect, Reply)
        return effect.body

    def _make(self, shape: tuple[int, int], dtype: "np.dtype[Any]") -> WireRows:
        self.made.append(empty_aligned(shape, dtype))
        return self.made[-1]


def test_what_is_staged_is_the_shards_own() -> None:
    talk = Conversation(Sync(), world_size=1, tables=(USER, ITEM))
    parts = rows("user", {7: 2.0, 8: 3.0}), rows("item", {7: 5.0})
    Borrower(talk).ask(Push(NOW, 1, parts))
    for part in parts:
        part.rows[...] = 100.0
    talk.get(Finish(NOW, Finished(0)))
    assert talk.read(7, 8) == [-2.0, -3.0]
    assert talk.read(7, table="item") == [-5.0]


@pytest.mark.parametrize("mode", [Async(), BoundedStaleness(1)], ids=str)
def test_what_is_applied_on_arrival_is_applied(mode: Mode) -> None:
    talk = Conversation(mode, world_size=1)
    part = rows("user", {7: 2.0})
    Borrower(talk).ask(Push(NOW, 1, (part,)))
    part.rows[...] = 100.0
    assert talk.read(7) == [-2.0]


@pytest.mark.parametrize("mode", [Sync(), Async()], ids=str)
def test_what_is_assigned_is_assigned(mode: Mode) -> None:
    talk = Conversation(mode, world_size=1)
    part = rows("user", {7: 2.0})
    Borrower(talk).ask(Assign(NOW, 1, (part,)))
    part.rows[...] = 100.0
    assert talk.read(7) == [2.0]


@pytest.mark.parametrize("mode", [Sync(), Async()], ids=str)
def test_a_reply_lies_where_the_asker_has_it_and_changes_no_row(mode: Mode) -> None:
    talk = Conversation(mode, world_size=1, tables=(USER, ITEM))
    Borrower(talk).ask(Assign(NOW, 1, (rows("user", {7: 2.0}), rows("item", {9: 3.0}))))
    borrower = Borrower(talk)
    pulled = borrower.ask(Pull(NOW, (ids("user", 7, 1), ids("item", 9))))
    assert isinstance(pulled, Pulled)
    assert [part is made for part, made in zip(pulled.rows, borrower.made, strict=True)] == [True, True]
    assert [part[:, 0].tolist() for part in borrower.made] == [[2.0, 0.0], [3.0]]
    for part in borrower.made:
        part[...] = 100.0
    assert talk.read(7, 1) == [2.0, 0.0]


def test_what_is_parked_is_answered_where_the_asker_has_it() -> None:
    talk = Conversation(Sync(), world_size=2)
    made: list[WireRows] = []

    def make(shape: tuple[int, int], dtype: "np.dtype[Any]") -> WireRows:
        made.append(empty_aligned(shape, dtype))
        return made[-1]

    later = Fence(1, 0, 0, 1)
    assert talk.shard.handle(Asked(10**6, Pull(later, (ids("user", 7),), Finished(0), 10.0), make, is_borrowed=True), talk.now_s) == []
    talk.push(1, 0, {7: 4.0})
    (effect, _) = talk.shard.handle(Asked(10**6 + 1, Finish(Fence(1, 1), Finished(0))), talk.now_s)[::-1]
    assert isinstance(effect, Reply)
    assert isinstance(effect.body, Pulled)
    assert effect.body.rows[0] is made[0]
    assert made[0].tolist() == [[-2.0]]


def test_rows_that_are_kept_for_compensation_are_the_shards_own() -> None:
    spec = TableSpec("user", 1, DelayCompensated(SGD(lr=1.0), compensation=0.5))
    talk = Conversation(Async(), world_size=2, tables=(spec,))
    borrower = Borrower(talk)
    borrower.ask(Pull(NOW, (ids("user", 7),)))
    borrower.made[0][...] = 100.0
    talk.pull(1, 0, 7)
    talk.push(1, 0, {7: 4.0})
    talk.push(0, 0, {7: 2.0})  # g = 2 + 0.5 · 2 · 2 · (-4 - 0) = -6
    assert talk.read(7) == [2.0]


def test_nothing_is_copied_that_lies_in_our_memory() -> None:
    spec = TableSpec("user", 1, DelayCompensated(SGD(lr=1.0), compensation=0.5))
    talk = Conversation(Async(), world_size=1, tables=(spec, ITEM))
    talk.pull(0, 0, 7)
    (read,) = talk.shard.steps.reads._reads[0]["user", 0]
    assert read.rows.base is not None
    staged = Conversation(Sync(), world_size=1)
    part = TableRows("user", np.array([7], np.uint64), np.ones((1, 1), np.float32))
    staged.get(Push(NOW, 1, (part,)))
    (kept,) = staged.shard.staging.take(0, [0])["user"]
    assert kept is part


def test_a_scaled_table_keeps_no_rows_at_all() -> None:
    talk = Conversation(Async(), world_size=1, tables=(TableSpec("user", 1, StalenessScaled(SGD(lr=1.0))),))
    Borrower(talk).ask(Pull(NOW, (ids("user", 7),)))
    (read,) = talk.shard.steps.reads._reads[0]["user", 0]
    assert read.rows.size == 0
