"""Pushes that name a pull against a dict of sums, under any sequence of calls: on a server that forgets, clears, and follows new maps."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from conversation import Conversation, map_of, settled
from ps_proto.errors import UnknownKeyList
from ps_proto.orders import FenceRank
from ps_proto.requests import NEVER, ClearTable, Finished, Ids, Pull, Push, TableIds, TableRows
from ps_proto.values import Async

WORLD = 2
id_lists = st.lists(st.integers(0, 12) | st.sampled_from([2**63, 2**64 - 1]), max_size=10, unique=True)
ranks = st.integers(0, WORLD - 1)


class KeyListsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.talk = Conversation(Async(), WORLD)
        self.sums: dict[int, float] = {}
        self.pulled: dict[int, dict[int, list[int]]] = {rank: {} for rank in range(WORLD)}
        self.incarnations = dict.fromkeys(range(WORLD), 0)
        self.clocks = dict.fromkeys(range(WORLD), 0)
        self.seqs = dict.fromkeys(range(WORLD), 0)
        self.pulls = 0
        self.map_version = 1

    def send(self, rank: int, ids: list[int], rows: list[float], pull: int, seq: int) -> None:
        """Push to ids, or to those of a pull."""
        array: Ids = np.array([] if pull else ids, np.uint64)
        part = TableRows("user", array, np.array(rows, np.float32).reshape(-1, 1), pull)
        self.talk.get(Push(self.talk.fence(rank, self.clocks[rank], self.incarnations[rank]), seq, (part,)))

    @rule(rank=ranks, ids=id_lists)
    def pull(self, rank: int, ids: list[int]) -> None:
        self.pulls += 1
        asked = TableIds("user", np.array(ids, np.uint64), self.pulls)
        self.talk.get(Pull(self.talk.fence(rank, self.clocks[rank], self.incarnations[rank]), (asked,)))
        self.pulled[rank][self.pulls] = ids

    @precondition(lambda self: any(self.pulled.values()))
    @rule(data=st.data(), times=st.integers(1, 3))
    def push_by_name(self, data: st.DataObject, times: int) -> None:
        """As a worker does: however long ago it was pulled, then in full, under the same name, as often as it likes."""
        rank = data.draw(st.sampled_from([rank for rank, lists in self.pulled.items() if lists]))
        number = data.draw(st.sampled_from(sorted(self.pulled[rank])))
        ids = self.pulled[rank][number]
        rows = [float(1 + place) for place in range(len(ids))]
        self.seqs[rank] += 1
        for _ in range(times):
            try:
                self.send(rank, ids, rows, number, self.seqs[rank])
            except UnknownKeyList:
                self.send(rank, ids, rows, 0, self.seqs[rank])
        self.add(ids, rows)

    @rule(rank=ranks, ids=id_lists)
    def push(self, rank: int, ids: list[int]) -> None:
        self.seqs[rank] += 1
        self.send(rank, ids, [5.0] * len(ids), 0, self.seqs[rank])
        self.add(ids, [5.0] * len(ids))

    def add(self, ids: list[int], rows: list[float]) -> None:
        for id, row in zip(ids, rows, strict=True):
            self.sums[id] = self.sums.get(id, 0.0) - row

    @rule()
    def forget(self) -> None:
        self.talk.shard.key_lists.clear()

    @rule(rank=ranks)
    def clear(self, rank: int) -> None:
        self.seqs[rank] += 1
        self.talk.get(ClearTable(self.talk.fence(rank, self.clocks[rank], self.incarnations[rank]), self.seqs[rank], "user"))
        self.sums.clear()

    @rule()
    def follow_a_map(self) -> None:
        self.map_version += 1
        self.talk.take_map(map_of(self.map_version, "server-0"))

    @rule(rank=ranks)
    def replace_a_rank(self, rank: int) -> None:
        """A new one counts its pulls from 1; here it goes on counting, so that it may name what was the old one's."""
        self.incarnations[rank] += 1
        self.talk.get(FenceRank(1, rank, self.incarnations[rank]))
        self.talk.get(settled(rank, self.incarnations[rank], NEVER if not self.clocks[rank] else self.clocks[rank] - 1))

    @rule(rank=ranks)
    def end_step(self, rank: int) -> None:
        done = Finished(self.clocks[rank])
        self.clocks[rank] += 1
        self.seqs[rank] = 0
        self.talk.get(Pull(self.talk.fence(rank, self.clocks[rank], self.incarnations[rank]), (), done))

    @invariant()
    def every_row_is_the_sum_of_what_was_pushed(self) -> None:
        ids = sorted(self.sums)
        assert self.talk.read(*ids) == [self.sums[id] for id in ids]
        assert len(self.talk.shard.tables["user"]) == len(ids)


TestKeyLists = KeyListsMachine.TestCase
TestKeyLists.settings = settings(settings(), max_examples=40, stateful_step_count=30)
