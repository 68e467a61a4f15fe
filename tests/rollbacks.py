"""Going back to parts that were read, without a disk: the coordinator's order and what the task asks."""

from collections.abc import Sequence

import numpy as np

from conversation import USER, Conversation, map_of
from ps_proto.orders import AskRestore, JobState, RankState, RestoreState, RollBack, Source
from ps_proto.requests import Done, Finished
from ps_proto.values import Mode, TableSpec
from ps_server.events import Work
from ps_server.tasks import LoadFacts, LoadNames, LoadPart, LoadRows
from saved_parts import ROOT, ReadPart
from sharding.shard_map import ShardMap

SOURCE = Source(ROOT, 7)


def order(
    timeline: int = 1,
    job: JobState | None = None,
    shard_map: ShardMap | None = None,
    tables: tuple[TableSpec, ...] = (USER,),
    source: Source | None = SOURCE,
) -> RollBack:
    return RollBack(1, 0, timeline, shard_map or map_of(timeline + 1, "server-0"), tables, job, source)


def job_of(parts: Sequence[ReadPart], world_size: int, mode: Mode, first_clock: int = 0) -> JobState:
    """Return the job as a manifest of these parts has it: each rank's least clock, and its fact where one part has it."""
    ranks = []
    for rank in range(world_size):
        clock = min(part.head.clocks[rank] for part in parts)
        has_fact = any(rank in part.head.facts and part.head.facts[rank].clock == clock for part in parts)
        has_left = all(rank in part.head.left for part in parts)
        ranks.append(RankState(rank, Finished(clock) if has_fact else None, clock, has_left))
    return JobState(parts[0].head.job, world_size, mode, first_clock, min(part.head.step for part in parts), tuple(ranks))


def loading(talk: Conversation) -> Work:
    """Return the task that loads a part; there is one."""
    (work,) = [work for work in talk.at_work if isinstance(work.task, LoadPart)]
    return work


def load(talk: Conversation, parts: Sequence[ReadPart], work: Work | None = None) -> int:
    """Do as the task does that loads full parts: what this server owns of each; return how many rows those are."""
    work = work or loading(talk)
    assert isinstance(work.task, LoadPart)
    timeline, membership = work.task.timeline, talk.shard.membership
    count = 0
    for part in parts:
        for table, records in part.rows.items():
            own = {id: words for id, words in records.items() if membership.owns(table, np.array([id], np.uint64))}
            if own:
                ids, rows = np.array(list(own), np.uint64), np.array(list(own.values()), np.uint32)
                assert isinstance(talk.get(LoadRows(timeline, table, ids, rows, ids.size)), Done)
            count += len(own)
        talk.get(LoadNames(timeline, part.head.names))
        talk.get(LoadFacts(timeline, part.head.facts))
    return count


def restore(talk: Conversation, parts: Sequence[ReadPart], rollback: RollBack) -> None:
    """Let a server go back, load all of it, and speak as those who come after."""
    talk.get(rollback)
    work = loading(talk)
    talk.end(work, load(talk, parts, work))
    assert phase(talk, rollback.timeline) == "loaded"
    talk.follow(rollback.shard_map, rollback.timeline)


def ask(talk: Conversation, timeline: int) -> RestoreState:
    state = talk.get(AskRestore(1, 0, timeline))
    assert isinstance(state, RestoreState)
    return state


def phase(talk: Conversation, timeline: int) -> str:
    return ask(talk, timeline).phase
