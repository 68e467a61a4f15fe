"""Going back to the last complete checkpoint, since a server that held rows was started again (R12, R15); or beginning with one.

    a server is there anew ──> find the newest whole one ──> a timeline and a map: stored ──> RollBack to all, asked until all have loaded
             ^                      ^                                                               │
             └─ another one, at any ├──── one cannot load it: again, and then the next older one ───┘
                time                └──── the coordinator was started again

It runs for all: nothing else is planned meanwhile, and no checkpoint is taken. What it goes back to is never guessed. Where a checkpoint
was complete and none is found whole any more, or none can be loaded, it waits for an operator and says so: to begin anew would throw away
what somebody may bring back.
"""

from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

from ps_proto.errors import InvalidRequest, ParameterServerError, Recovering
from ps_proto.orders import AskRestore, RestoreState, RollBack, Source
from ps_proto.requests import Done
from ps_server.coordinator.core_settings import Restore
from ps_server.coordinator.journal import Journal
from ps_server.coordinator.lineage import Lineage
from ps_server.coordinator.members import Members
from ps_server.coordinator.notices import Notices
from ps_server.coordinator.numbering import Numbering
from ps_server.coordinator.plans import Do, Plan, Plans, Wait
from ps_server.coordinator.ranks import Ranks
from ps_server.coordinator.stored import ORIGIN, ROLLBACK, Stored, StoredOrigin, StoredRollback
from ps_server.coordinator.tables import TableRegistry
from ps_server.coordinator.taking import Taking
from ps_server.tasks import FindCheckpoint, FoundCheckpoint, PublishCheckpoint

POLL_S = 0.1  # between two looks at what is loaded
AGAIN_S = 5.0  # for an operator to mend what keeps all from going on
TRIES = 2  # to load a checkpoint: what kept a server from it may pass, where its files are whole

Part = Generator[Any, Any, Any]  # of the plan


class Rollbacks:
    """The plan that goes back, and when it runs. `why`: what it runs for, "" where it does not. `on_end` is called at its end."""

    def __init__(
        self,
        restore: Restore | None,
        root: str,
        stored: Stored | None,
        numbering: Numbering,
        members: Members,
        tables: TableRegistry,
        ranks: Ranks,
        taking: Taking,
        lineage: Lineage,
        plans: Plans,
        checkpoint_plans: Plans,
        journal: Journal,
        notices: Notices,
    ) -> None:
        """`root`: where checkpoints are that were taken without a word where to. `restore`: as in CoreSettings.

        Raises InvalidRequest where a cluster that has begun otherwise is to begin with `restore`.
        """
        self.why = ""
        self.on_end: Callable[[], None] = lambda: None
        self._root = root
        self._origin = stored.origin if stored is not None else None
        self._restore = restore if self._origin is None else None
        before = stored.rollback if stored is not None else None
        self._is_pending = before is not None and before.is_pending
        self._lineage = lineage
        self._numbering = numbering
        self._members = members
        self._tables = tables
        self._ranks = ranks
        self._taking = taking
        self._plans = plans
        self._checkpoint_plans = checkpoint_plans
        self._journal = journal
        self._notices = notices
        self._failures: Counter[Source] = Counter()  # how often a server could not load it
        self._told: set[str] = set()  # what was said since the last end
        members.on_restarted = lambda server: self._run(f"{server} was started again, and all servers load the last checkpoint")
        if restore is not None:
            _check_new(restore, self._origin, has_map=members.shard_map is not None)
        if self._restore is not None:
            members.on_complete = lambda: self._run(f"the servers load the checkpoint of {self._restore}, with which the cluster begins")

    def begin(self) -> None:
        """Go on with what the coordinator before this one had begun."""
        if self._is_pending:
            self._run("the coordinator was started again while the servers loaded a checkpoint")

    def check_over(self) -> None:
        """Raise Recovering while the cluster goes back."""
        if self.why:
            raise Recovering("The coordinator", self.why)

    def _run(self, why: str) -> None:
        """Begin the plan, or begin it anew: whatever it was doing, it does with the servers as they are now."""
        self.why = self._members.busy = why
        self._journal.put(ROLLBACK, StoredRollback(self._numbering.timeline, True, self._lineage.stored()))
        self._checkpoint_plans.clear(self._taking.failed(why), Recovering("The coordinator", why))
        self._plans.add_for_all("rollback", self._plan(), why)

    # --- the plan --------------------------------------------------------------------------------------------------------

    def _plan(self) -> Plan:
        if self._is_published():  # which a store that hangs makes long
            self._notices.mention("All servers go back once a checkpoint that is being completed is so, or has failed.")
        while self._is_published():
            yield Wait(POLL_S)
        while True:
            found: FoundCheckpoint = yield from self._found()
            timeline = self._numbering.begin_timeline(found.timeline)
            shard_map = self._members.plan_map()
            tables = self._tables.restore(found.tables)
            job = self._ranks.roll_back(found, is_new=self._restore is not None)
            self._say(self._goes_back(found, timeline))
            yield RollBack(self._numbering.term, self._numbering.cluster, timeline, shard_map, tables, job, found.source)
            failed: str | None = yield from self._loaded(timeline)
            if failed is None:
                break
            assert found.source is not None, "nothing can be loaded at once"
            self._failures[found.source] += 1
            self._say(f"{failed} could not load checkpoint {found.source.number} of {found.source.root}.")
        self._members.install(shard_map)
        self._end(found)
        return Done()

    def _found(self) -> Part:
        """Return what to go back to, once that is certain."""
        while True:
            bad = tuple([(source.root, source.number) for source, times in self._failures.items() if times >= TRIES])
            try:
                found: FoundCheckpoint = yield from self._look(bad)
            except ParameterServerError as error:
                self._say(f"Nobody can say what the last checkpoint is. {error}")
            else:
                for sentence in found.passed_over:
                    self._say(sentence)
                last = self._taking.last
                if found.source is not None or (last is None and self._restore is None):
                    return found
                wanted = f"checkpoint {last.number} of {last.root}" if last is not None else f"the checkpoint of {self._restore}"
                self._say(
                    f"There is no checkpoint that all servers can load, and {wanted} was there. Bring it back; until then nothing goes on."
                )
            yield Wait(AGAIN_S)
            self._failures.clear()  # they may have been mended

    def _look(self, bad: tuple[tuple[str, int], ...]) -> Part:
        if self._restore is not None:
            return (yield Do(FindCheckpoint((self._restore.root,), self._restore.number, bad)))
        roots = self._roots()
        if not roots:
            return FoundCheckpoint(None, 0, (), None, ())
        return (yield Do(FindCheckpoint(roots, None, bad, self._lineage.told())))

    def _roots(self) -> tuple[str, ...]:
        """Return where the last checkpoint may lie."""
        last = self._taking.last
        return tuple(dict.fromkeys([root for root in (last.root if last is not None else "", self._root) if root]))

    def _is_published(self) -> bool:
        """Return whether a checkpoint may become complete yet that was given up: later it would be the newest, of a time that is gone."""
        published = [task for task in self._checkpoint_plans.tasks if isinstance(task, PublishCheckpoint)]
        return any([task.root in self._roots() for task in published])

    def _goes_back(self, found: FoundCheckpoint, timeline: int) -> str:
        if found.source is None:
            return f"Timeline {timeline} begins, since {self.why}: there is none, so that all begin anew."
        step = f", of step {found.job.step}" if found.job is not None else ""
        return f"Timeline {timeline} begins, since {self.why}: that is checkpoint {found.source.number} of {found.source.root}{step}."

    def _loaded(self, timeline: int) -> Part:
        """Wait until all servers have loaded; return the sentence of one that could not."""
        while True:
            states: list[RestoreState] = yield AskRestore(self._numbering.term, self._numbering.cluster, timeline)
            for server, state in zip(sorted(self._members.servers), states, strict=True):
                if state.phase == "failed":
                    return f"{state.why} So {server}"
            if all([state.phase == "loaded" for state in states]):
                return None
            yield Wait(POLL_S)

    def _end(self, found: FoundCheckpoint) -> None:
        if self._restore is not None:
            assert found.source is not None, "it began with it"
            self._origin = StoredOrigin(found.source, found.cluster, str(self._restore))
            self._lineage.begin_with(self._origin)
            self._journal.put(ORIGIN, self._origin)
            self._restore = self._members.on_complete = None
        self._taking.begin_from(found.source, found.job.step if found.job is not None else 0, found.increments)
        self._lineage.begin(self._numbering.timeline, found.source.number if found.source is not None else 0)
        self._journal.put(ROLLBACK, StoredRollback(self._numbering.timeline, False, self._lineage.stored()))
        which = f"have loaded checkpoint {found.source.number}" if found.source is not None else "have begun anew"
        self._notices.mention(f"All servers {which}; workers may go on.")
        self.why = self._members.busy = ""
        self._failures.clear()
        self._told.clear()
        self.on_end()

    def _say(self, sentence: str) -> None:
        """Tell the operator, once."""
        if sentence not in self._told:
            self._told.add(sentence)
            self._notices.say(sentence)


def _check_new(restore: Restore, origin: StoredOrigin | None, has_map: bool) -> None:
    """Raise InvalidRequest unless a cluster has not begun yet, or has begun with this."""
    if origin is not None and origin.asked != str(restore):
        want = f"{origin.asked}, with which this cluster began; another cluster needs another place for its state"
        raise InvalidRequest("restore", str(restore), want)
    if origin is None and has_map:
        want = "left out: this cluster began without, and goes on from its state; another cluster needs another place for its state"
        raise InvalidRequest("restore", str(restore), want)
