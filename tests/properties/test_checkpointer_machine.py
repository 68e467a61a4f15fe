"""Any history of checkpoints, whole ones and broken ones: each part, laid over its base, has the rows of its instant and no others."""

import random

import pytest

from conversation import ITEM, USER, Conversation
from ps_proto.errors import ParameterServerError, StorageFailed
from ps_proto.requests import ClearTable
from ps_proto.values import Async
from ps_server.tasks import OpenPart, SavePart
from saved_parts import ROOT, ReadPart, Records, ask, begin, cancel, read_part, written

TABLES = ("user", "item")
FULL_DISK = StorageFailed(ROOT, "no space left on device")


class History:
    """A shard, and beside it what a coordinator and its disk would know."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.talk = Conversation(Async(), world_size=1, tables=(USER, ITEM))
        self.seq = 0
        self.number = 0
        self.complete: dict[int, dict[str, Records]] = {}  # number -> all rows of it and what it stands on
        self.taken: dict[int, tuple[dict[str, Records], int]] = {}  # number -> the rows when its part was taken last, and its base
        self.increments = 0

    def push(self) -> None:
        self.seq += 1
        values = {self.rng.randrange(12): 1.0 for _ in range(self.rng.randrange(1, 4))}
        self.talk.push(0, 0, values, self.seq, self.rng.choice(TABLES))

    def clear(self) -> None:
        self.seq += 1
        self.talk.get(ClearTable(self.talk.fence(0, 0), self.seq, self.rng.choice(TABLES)))

    def begin(self) -> None:
        """Give an order; its base is the last complete one, or, where the coordinator has forgotten, none or another."""
        self.number += self.rng.choice((1, 1, 2))
        known = [*self.complete, -1]
        base = max(known) if self.rng.random() < 0.8 else self.rng.choice(known)
        tracks = self.rng.random() < 0.9
        self._take(self.number, base if tracks else -1, tracks)

    def begin_again(self) -> None:
        """Repeat an order late, or under its number after a cancellation."""
        if self.number:
            self._take(self.rng.choice((self.number, self.number - 1)), -1, True)

    def _take(self, number: int, base: int, tracks: bool) -> None:
        is_at_work = ask(self.talk, number).phase != "none"
        state = begin(self.talk, number, base=base, tracks=tracks, full=self.rng.random() < 0.1)
        if state.phase == "taken" and not is_at_work:
            self.taken[number] = {table: self._held(table) for table in TABLES}, base

    def _held(self, table: str) -> Records:
        ids, records = self.talk.shard.tables[table].snapshot().read_records(0, 100)
        return {id: tuple(words) for id, words in zip(ids.tolist(), records.view("uint32").tolist(), strict=True)}

    def cancel(self) -> None:
        if self.number:
            cancel(self.talk, self.number)

    def end(self) -> None:
        """Let a task end: it writes its part, and all others may have written theirs; or it fails, as one whose part is over does."""
        if not self.talk.at_work:
            return
        work = self.rng.choice(self.talk.at_work)
        assert isinstance(work.task, SavePart)
        is_over = isinstance(self.talk.ask(OpenPart(work.task.number)).outcome, ParameterServerError)
        if is_over or self.rng.random() < 0.2:
            self.talk.end(work, FULL_DISK)
            return
        part = read_part(self.talk, work)
        self.talk.end(work, written(part))
        self._check(work.task.number, part)

    def _check(self, number: int, part: ReadPart) -> None:
        instant, base = self.taken[number]
        found: dict[str, Records] = {}
        for table in TABLES:
            older = {} if part.is_full(table) else self.complete[base][table]
            self.increments += not part.is_full(table)
            found[table] = older | part.rows[table]
        assert found == instant
        if self.rng.random() < 0.8:
            self.complete[number] = found


@pytest.mark.parametrize("seed", range(15))
def test_a_part_laid_over_its_base_is_its_instant(seed: int) -> None:
    history = History(seed)
    acts = [history.push] * 12 + [history.begin] * 5 + [history.end] * 12 + [history.cancel, history.begin_again, history.clear]
    for _ in range(400):
        history.rng.choice(acts)()
    assert history.increments > 5
    assert len(history.complete) > 5
