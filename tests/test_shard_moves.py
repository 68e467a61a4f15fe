"""Buckets that move between shards, with what was pushed to them, as conversations.

Rows of "user" and "item" are 0 at first and SGD has lr 1, so a row is minus what was pushed to it.
"""

import numpy as np
import pytest

from conversation import Conversation, map_of
from ps_proto.values import Adagrad, Async, Sync, TableSpec


def test_a_push_that_is_split_again_is_applied_where_it_had_not_arrived() -> None:
    values = {id: 1.0 for id in range(60)}
    both = map_of(1, "server-0", "server-1")
    first, second = (Conversation(Async(), server=name, shard_map=both) for name in ("server-0", "server-1"))
    owned = {id: value for id, value in values.items() if first.shard.membership.owns("user", np.array([id], np.uint64))}
    assert 0 < len(owned) < len(values)
    first.push(0, 0, owned)  # the rest of it is lost on its way to server-1
    leaving = both.owners == 0
    second.shard.adopt(first.shard.release(leaving))
    for talk in (first, second):
        talk.take_map(map_of(2, "server-0", "server-1", all_to="server-1"))
        talk.shard.check_invariants()
    second.push(0, 0, values)
    assert second.read(*values) == [-1.0] * len(values)
    assert second.stats().tables["user"]["rows_repeated"] == len(owned)
    assert len(first.shard.tables["user"]) == 0


def test_moved_rows_keep_their_optimizer_state() -> None:
    spec = TableSpec("user", 1, Adagrad(lr=1.0, eps=0.0))
    one, other = (Conversation(Async(), tables=(spec,), server=name, shard_map=map_of(1, "a", "b", all_to="a")) for name in ("a", "b"))
    one.push(0, 0, {7: 3.0})  # row -1, accumulator 9
    other.shard.adopt(one.shard.release(np.ones(16_384, np.bool_)))
    other.take_map(map_of(2, "a", "b", all_to="b"))
    other.push(0, 0, {7: 4.0}, seq=2)
    assert other.read(7) == [pytest.approx(-1.0 - 4.0 / 5.0)]


def test_staged_pushes_do_not_move() -> None:
    talk = Conversation(Sync())
    talk.push(0, 0, {7: 1.0})
    with pytest.raises(AssertionError, match="step boundary"):
        talk.shard.release(np.ones(16_384, np.bool_))
