"""The plan that takes a checkpoint.

It needs no agreement beforehand, only a look afterwards: the coordinator names a boundary that no server has passed, each server takes its
part in the turn in which its step is the boundary, and the parts count only if all are of it. So all are of one fold, as R8 wants, but no
worker has to carry an order, and it works without a job, too. Where a server has passed the boundary meanwhile, the next attempt looks
further ahead. Without synchronous tables there is no common instant, and each server takes its part at once.

    server         armed ──its step is the boundary──> taken ──its files are on the disk──> written
                     └──its step was beyond already──> passed            └──> failed
    coordinator    asks for the steps, begins, asks until all are written, publishes: only the manifest makes it a checkpoint

Every attempt has a number of its own, so that what an earlier one still writes lies elsewhere. What a server touched since its last part
counts as saved once an order names that part's number as the base. So a lost answer, or a checkpoint that failed, heals with the next one.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from ps_proto.errors import CheckpointFailed, ParameterServerError, StalenessTimeout, StorageFailed, Unreachable
from ps_proto.orders import AskCheckpoint, BeginCheckpoint, CancelCheckpoint, CheckpointState, JobState, PartWritten, Source
from ps_proto.requests import OBSERVER, CheckpointTaken, Done
from ps_proto.values import Sync
from ps_server.coordinator.journal import Journal
from ps_server.coordinator.lineage import Lineage
from ps_server.coordinator.members import Members
from ps_server.coordinator.notices import Notices
from ps_server.coordinator.numbering import Numbering
from ps_server.coordinator.plans import Do, Each, Now, Plan, Wait
from ps_server.coordinator.ranks import Ranks
from ps_server.coordinator.schedule import Schedule
from ps_server.coordinator.stored import CHECKPOINT, StoredCheckpoint
from ps_server.coordinator.tables import TableRegistry
from ps_server.storage.layout import NUMBER_MAX, folder_of
from ps_server.tasks import AbandonCheckpoint, BarrierRun, CheckParts, FindCheckpoint, FoundCheckpoint, PublishCheckpoint, Published
from sharding.shard_map import ShardMap

POLL_S_MIN, POLL_S_MAX = 0.1, 1.0  # between two looks at the parts
BOUNDARY_S = 5.0  # as long as others keep what they have taken for one that has not come to the boundary
ANSWER_S = 30.0  # for a server that does not answer
CANCEL_S = 2.0  # for one that need not hear it: the next order says the same

TRIAL = 0  # a number that no checkpoint has

Part = Generator[Any, Any, Any]  # of the plan


@dataclass(frozen=True, slots=True)
class Wish:
    """A checkpoint that is wanted. `every`: at the next multiple of so many steps; 0: as soon as can be. Else as in TakeCheckpoint."""

    root: str
    full: bool = False
    at_least: int = -1
    wait_s: float = math.inf
    every: int = 0


class _Attempt(NamedTuple):
    """What a number was taken for. `base`: the checkpoint on which its increments stand; `tracks`: increments may stand on it.

    The rest is as it was when it began.
    """

    number: int
    base: int | None
    tracks: bool
    full: bool
    shard_map: ShardMap
    job: JobState | None
    is_synchronous: bool


class _AgainError(Exception):
    """No instant was found at which all servers take their parts. `was_passed`: one was beyond the boundary already."""

    def __init__(self, was_passed: bool) -> None:
        super().__init__()
        self.was_passed = was_passed


class Taking:
    """Takes one checkpoint at a time.

    last      the last complete one, under any root.     instants  how many attempts have begun.
    is_armed  the one at work is the schedule's, waits for its step, and no server has taken anything of it yet.
    """

    def __init__(
        self,
        schedule: Schedule,
        numbering: Numbering,
        members: Members,
        tables: TableRegistry,
        ranks: Ranks,
        lineage: Lineage,
        journal: Journal,
        notices: Notices,
        last: StoredCheckpoint | None = None,
    ) -> None:
        self.last = last
        self.instants = 0
        self.is_armed = False
        self._schedule = schedule
        self._numbering = numbering
        self._members = members
        self._tables = tables
        self._ranks = ranks
        self._lineage = lineage
        self._journal = journal
        self._notices = notices
        self._base: int | None = None  # the last complete one under the schedule's root, while this coordinator knows of it
        self._root = ""  # of the one at work, or the last
        self._increments = 0  # since the last with all rows
        self._roots: set[str] = set()  # those whose numbers are known, and that were well when they were used last
        self._told: dict[str, tuple[str, str]] = {}  # root -> who failed there last, and why

    def begin_from(self, source: Source | None, step: int, increments: int = 0) -> None:
        """Stand on a checkpoint that all servers have loaded, the last of so many increments; on none where they began anew."""
        self.last = StoredCheckpoint(source.root, source.number, step) if source is not None else None
        self._base = source.number if source is not None and source.root == self._schedule.root else None
        self._increments = increments  # or else a cluster that begins again and again would never write all rows again
        if self.last is not None:
            self._journal.put(CHECKPOINT, self.last)
            self._numbering.pass_checkpoint(self.last.number)

    def failed(self, reason: str) -> CheckpointFailed:
        """Return the error of the checkpoint at work, if there is one, which ends for this reason."""
        return CheckpointFailed(self._root or self._schedule.root, "the coordinator", reason)

    def plan(self, wish: Wish) -> Plan:
        """Take a checkpoint: CheckpointTaken once it is complete, CheckpointFailed with whom and why, StalenessTimeout with the slowest."""
        begun_s: float = yield Now()
        self._root = wish.root
        try:
            yield from self._look_at(wish.root)
            attempt, published = yield from self._published(wish, begun_s)
        except StalenessTimeout:  # nothing failed, but a rank did not come
            raise
        except ParameterServerError as error:
            failed = _failed(wish.root, error)
            self._tell(wish.root, failed)
            raise failed from error
        finally:
            self.is_armed = False
        took_s = (yield Now()) - begun_s
        self._complete(wish.root, attempt, published)
        self._notices.mention(
            f"Checkpoint {attempt.number} of {wish.root} is complete, of step {published.step}: "
            f"{published.rows:,} rows, {published.nbytes / 1e6:,.1f} MB."
        )
        return CheckpointTaken(wish.root, attempt.number, published.step, published.rows, published.nbytes, took_s, published.stall_s)

    def trial(self) -> Plan:
        """Let every server write a part under the schedule's root while there are no rows, look for all of them, and remove them again.

        So a server that cannot write there, or has another folder under that path, shows now and not at the first checkpoint.
        """
        begun_s: float = yield Now()
        self._root = root = self._schedule.root
        attempt = _Attempt(TRIAL, None, tracks=False, full=True, shard_map=self._members.check_map(), job=None, is_synchronous=False)
        failed: CheckpointFailed | None = None
        try:
            parts, _ = yield from self._parts(Wish(root), attempt, 0, begun_s)
            yield Do(CheckParts(root, TRIAL, tuple(parts)))
        except ParameterServerError as error:
            failed = _failed(root, error)
        yield from self._forget(root, TRIAL)
        if failed is None:
            self._notices.mention(f"All servers can write checkpoints to {root}.")
        else:
            self._notices.say(f"Checkpoints to {root} will fail, as a trial has shown: of {failed.server} it is said that {failed.reason}.")
        return Done()

    def _look_at(self, root: str) -> Part:
        """See that numbers go on above all that lie under a root: others may have used it. And that it answers."""
        if root not in self._roots:
            found: FoundCheckpoint = yield Do(FindCheckpoint((root,)))
            if found.number_max >= NUMBER_MAX:  # somebody made it up: counting does not come there
                raise CheckpointFailed(
                    root, "the coordinator", f"{folder_of(found.number_max)} lies there, and there is no number above it"
                )
            self._numbering.pass_checkpoint(found.number_max)
            self._roots.add(root)

    def _tell(self, root: str, failed: CheckpointFailed) -> None:
        """Tell the operator, once of what goes on failing, and look at the root before it is used again."""
        what = (failed.server, failed.reason)
        (self._notices.mention if self._told.get(root) == what else self._notices.say)(str(failed))
        self._told[root] = what
        self._roots.discard(root)

    def _published(self, wish: Wish, begun_s: float) -> Part:
        """Return the attempt that made a checkpoint, and what was Published."""
        extra, full, was_refused = 0, wish.full, False
        while True:
            attempt = self._attempt(wish.root, full)
            try:
                parts, barriers = yield from self._parts(wish, attempt, extra, begun_s)
            except _AgainError as again:
                extra = (2 * extra or 1) if again.was_passed else 0
                yield from self._forget(wish.root, attempt.number)
                continue
            except ParameterServerError:
                yield from self._forget(wish.root, attempt.number)
                raise
            try:
                return attempt, (yield Do(self._publication(wish.root, attempt, parts, barriers)))
            except ParameterServerError as error:
                yield from self._forget(wish.root, attempt.number)
                if was_refused or isinstance(error, StorageFailed):
                    raise
                was_refused = full = True  # a job may have begun meanwhile, or the base is gone: both heal, once

    def _attempt(self, root: str, full: bool) -> _Attempt:
        is_tracked = root == self._schedule.root
        job = self._ranks.job
        modes = [spec.mode or job.mode for spec in self._tables.specs.values()] if job is not None else []
        return _Attempt(
            self._numbering.next_checkpoint(),
            self._base if is_tracked else None,
            is_tracked,
            full or not is_tracked or self._increments + 1 >= self._schedule.full_every,
            self._members.check_map(),
            JobState(job.number, job.world_size, job.mode, job.first_clock, 0, ()) if job is not None else None,
            any([isinstance(mode, Sync) for mode in modes]),
        )

    def _parts(self, wish: Wish, attempt: _Attempt, extra: int, begun_s: float) -> Part:
        """Return what every server has written, in the map's order, and the barriers that the job had passed when all had taken it.

        _AgainError where another attempt is needed.
        """
        servers = attempt.shard_map.servers
        question = AskCheckpoint(self._numbering.term, self._numbering.cluster, attempt.number)
        ask = Each({server.name: question for server in servers}, ANSWER_S)
        asked: list[CheckpointState] = yield ask
        boundary = _boundary(wish, attempt, max([state.step for state in asked]), extra)
        self.instants += 1
        states: list[CheckpointState] = yield Each(
            {server.name: self._begin(wish.root, attempt, shard, boundary) for shard, server in enumerate(servers)}, ANSWER_S
        )
        barriers: tuple[BarrierRun, ...] | None = None
        pause_s = POLL_S_MIN
        apart_s = now_s = yield Now()  # since when some wait for the boundary, and others have come to it
        while True:
            if barriers is None and all([state.phase in ("taken", "written") for state in states]):
                barriers = self._ranks.barriers_passed(attempt.job)
            parts = [state.part for state in states if state.part is not None and state.phase == "written"]
            if len(parts) == len(servers):
                return parts, barriers
            for server, state in zip(servers, states, strict=True):
                if state.phase in ("failed", "none"):
                    why = state.why or "it does not know of its part any more"
                    raise CheckpointFailed(_path(wish.root, attempt.number), server.name, why.rstrip("."))
            armed = {server.name: state for server, state in zip(servers, states, strict=True) if state.phase == "armed"}
            if any([state.phase == "passed" for state in states]):
                raise _AgainError(was_passed=True)
            if armed and now_s - begun_s >= wish.wait_s:
                raise _timeout(_path(wish.root, attempt.number), boundary, armed, now_s - begun_s)
            if len(armed) in (0, len(states)):
                apart_s = now_s
            elif now_s - apart_s >= BOUNDARY_S:
                raise _AgainError(was_passed=False)
            self.is_armed = wish.every > 0 and len(armed) == len(states)
            yield Wait(pause_s)
            pause_s = min(2 * pause_s, POLL_S_MAX)
            states = yield ask
            now_s = yield Now()

    def _begin(self, root: str, attempt: _Attempt, shard: int, boundary: int) -> BeginCheckpoint:
        base = -1 if attempt.base is None else attempt.base
        return BeginCheckpoint(
            self._numbering.term, self._numbering.cluster, attempt.number, root, shard, boundary, base, attempt.tracks, attempt.full
        )

    def _publication(
        self, root: str, attempt: _Attempt, parts: Sequence[PartWritten], barriers: tuple[BarrierRun, ...]
    ) -> PublishCheckpoint:
        """Return the task that makes the parts a checkpoint. A part may have a table that another server has not opened yet."""
        keep = self._schedule.keep if root == self._schedule.root else 0
        tables = tuple([spec for _, spec in sorted(self._tables.specs.items())])
        return PublishCheckpoint(
            root,
            attempt.number,
            attempt.base,
            self._numbering.cluster,
            tuple(parts),
            attempt.shard_map,
            tables,
            attempt.job,
            keep,
            self._lineage.told(),
            tuple([(one.rank, one.last) for one in self._ranks.job.removals]) if self._ranks.job is not None else (),
            barriers,
        )

    def _forget(self, root: str, number: int) -> Part:
        """Let the servers keep nothing for an attempt any more, and remove its files; what fails here, a later checkpoint makes good."""
        with suppress(ParameterServerError):
            order = CancelCheckpoint(self._numbering.term, self._numbering.cluster, number)
            yield Each({server.name: order for server in self._members.check_map().servers}, CANCEL_S)
        with suppress(ParameterServerError):
            yield Do(AbandonCheckpoint(root, number))

    def _complete(self, root: str, attempt: _Attempt, published: Published) -> None:
        self.last = StoredCheckpoint(root, attempt.number, published.step)
        self._journal.put(CHECKPOINT, self.last)
        self._told.pop(root, None)
        if root == self._schedule.root:
            self._base = attempt.number
            self._increments = 0 if attempt.full or attempt.base is None else self._increments + 1


def _boundary(wish: Wish, attempt: _Attempt, step_max: int, extra: int) -> int:
    """Return the step at which every server takes its part; -1: at once."""
    if wish.every:
        return ((step_max + extra) // wish.every + 1) * wish.every
    return max(step_max, wish.at_least) + extra if attempt.is_synchronous else -1


def _timeout(path: str, boundary: int, armed: Mapping[str, CheckpointState], after_s: float) -> ParameterServerError:
    """Return the error of one who waited in vain for a step: it names the rank that all wait for, if there is one."""
    server, state = min(armed.items(), key=lambda item: item[1].step)
    if state.slowest == OBSERVER:
        return CheckpointFailed(path, server, f"it came to step {state.step} in {after_s:.1f} s, and not to step {boundary}")
    return StalenessTimeout(boundary, state.step, 0, state.slowest, after_s)


def _failed(root: str, error: ParameterServerError) -> CheckpointFailed:
    match error:
        case CheckpointFailed():
            return error
        case Unreachable():
            return CheckpointFailed(root, error.peer, f"it did not answer for {error.after_s:.1f} s ({error.cause})")
    return CheckpointFailed(root, "the coordinator", str(error).rstrip("."))


def _path(root: str, number: int) -> str:
    return f"{root}/{folder_of(number)}"
