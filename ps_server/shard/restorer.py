"""Going back to a checkpoint: all that a server holds is dropped in one turn, and loaded anew (R12, R15).

    RollBack ──> loading ──the task has loaded all──> loaded: serves again
                    └────────it could not──────────> failed: waits for another RollBack, of a later timeline

From that turn on, whoever still speaks of the timeline before is told that it is over, and those of the new one wait until all is there.
"""

from collections.abc import Callable, Iterator

from ps_proto.errors import InvalidRequest, ParameterServerError, StaleTimeline
from ps_proto.orders import AskRestore, JobState, RestoreState, RollBack, Source
from ps_proto.requests import NEVER, Done
from ps_proto.values import Async
from ps_server.events import Work
from ps_server.shard.catalog import Catalog
from ps_server.shard.checkpointer import Checkpointer
from ps_server.shard.membership import Membership
from ps_server.shard.steps import Steps
from ps_server.shard.window import Window
from ps_server.tasks import LoadFacts, LoadNames, LoadPart, LoadRows


class Restorer:
    """Turns of the orders about rollbacks, and of what the task asks that loads a part."""

    def __init__(
        self,
        membership: Membership,
        catalog: Catalog,
        steps: Steps,
        window: Window,
        checkpointer: Checkpointer,
        forget: Callable[[], None],
        numbers: Iterator[int],
    ) -> None:
        """`forget`: drops what else belongs to the timeline before. `numbers`: of this server's tasks."""
        self._membership = membership
        self._catalog = catalog
        self._steps = steps
        self._window = window
        self._checkpointer = checkpointer
        self._forget = forget
        self._numbers = numbers
        self._source: Source | None = None
        self._phase = "loaded"
        self._why = ""
        self._task: int | None = None  # the number of the task that loads
        self._work: list[Work] = []

    def roll_back(self, request: int, order: RollBack, now_s: float) -> Done:
        """Drop everything, and begin to load; an order that is given again changes nothing."""
        self._membership.check_order(order.term, order.cluster)
        timeline = self._membership.timeline
        if order.timeline < timeline:
            raise StaleTimeline(timeline, order.timeline)
        if order.timeline == timeline:
            if timeline == 0 or order.source != self._source:
                raise InvalidRequest("timeline", str(timeline), f"above {timeline}, which began otherwise")
            return Done(self._steps.step)
        self._check_map(order)
        _check_job(order.job)
        self._begin(order)
        return Done(self._steps.step)

    def _check_map(self, order: RollBack) -> None:
        if self._membership.awaits_registration:
            self._membership.check_recovered()
        self._membership.check_meant(order.shard_map)
        have = self._membership.shard_map
        if have is not None and order.shard_map.version < have.version:
            raise InvalidRequest("shard map", f"version {order.shard_map.version}", f"version {have.version} or a later one")

    def _begin(self, order: RollBack) -> None:
        job, source = order.job, order.source
        self._catalog.restart(order.tables, job.mode if job is not None else Async())
        why = f"it is loading checkpoint {source.number} of {source.root}" if source is not None else "it begins anew"
        self._membership.roll_back(order.timeline, order.shard_map, _clocks(job), why)
        self._membership.world_size = job.world_size if job is not None else 0
        self._window.clear()
        self._checkpointer.clear()
        self._forget()
        self._steps.restart(job)
        self._source, self._phase, self._why, self._task = source, "loading", "", None
        if source is None:
            self._phase = "loaded"
            self._membership.recovered()
        else:
            self._task = next(self._numbers)
            self._work.append(Work(self._task, LoadPart(source, self._membership.server, order.shard_map, order.timeline)))

    def ask(self, request: int, order: AskRestore, now_s: float) -> RestoreState:
        """Say how far this server has loaded."""
        self._membership.check_order(order.term, order.cluster)
        self._membership.check_timeline(order.timeline)
        rows = sum([len(table) for table in self._catalog.tables.values()])
        return RestoreState(order.timeline, self._phase, rows, self._why)

    # --- the task ------------------------------------------------------------------------------------------------------------

    def take_work(self) -> list[Work]:
        """Return the tasks to be done, each once."""
        work, self._work = self._work, []
        return work

    def on_worked(self, number: int, outcome: object | ParameterServerError) -> None:
        """Take the end of a task: serve again, if it has loaded all for this timeline."""
        if number != self._task:
            return
        self._task = None
        if isinstance(outcome, ParameterServerError):
            self._phase, self._why = "failed", str(outcome)
            self._membership.cannot_recover(f"it could not load its rows: {str(outcome).rstrip('.')}")
            return
        assert self._source is not None
        for table in self._catalog.tables.values():
            table.count_as_saved()
        self._checkpointer.stand_on(self._source)
        self._phase = "loaded"
        self._membership.recovered()

    def load_rows(self, request: int, asked: LoadRows, now_s: float) -> Done:
        """Set rows with their state."""
        self._check(asked.timeline)
        self._membership.check_owned(asked.table, asked.ids)
        table = self._catalog.get(asked.table)
        shape, want = asked.records.shape, (asked.ids.size, table.record_words)
        if shape != want:
            lies = "as a record of this table lies here: its optimizer and dim are those of the checkpoint"
            raise InvalidRequest(f"records of table {asked.table!r}", f"uint32{list(shape)}", f"uint32{list(want)}, {lies}")
        table.load(asked.ids, asked.records, asked.expected)
        return Done(self._steps.step)

    def load_names(self, request: int, asked: LoadNames, now_s: float) -> Done:
        """Take the names of the pushes that the rows have."""
        self._check(asked.timeline)
        self._window.restore(asked.names, self._membership.owned_buckets())
        return Done(self._steps.step)

    def load_facts(self, request: int, asked: LoadFacts, now_s: float) -> Done:
        """Take the resume states that belong to the clocks with which the ranks go on; others are of another job."""
        self._check(asked.timeline)
        for rank, fact in asked.facts.items():
            self._steps.facts.add_resume(rank, fact.clock, fact.resume)
        return Done(self._steps.step)

    def _check(self, timeline: int) -> None:
        """Raise unless rows are being loaded for this timeline."""
        if self._task is None or timeline != self._membership.timeline:
            raise StaleTimeline(self._membership.timeline, timeline)


def _clocks(job: JobState | None) -> dict[int, int]:
    """Return the step with which each rank goes on."""
    if job is None:
        return {}
    finished = {state.rank: state.finished for state in job.ranks}
    return {rank: max(finished.get(rank, NEVER) + 1, job.first_clock) for rank in range(job.world_size)}


def _check_job(job: JobState | None) -> None:
    if job is None:
        return
    if job.world_size < 1:
        raise InvalidRequest("world_size", str(job.world_size), "at least 1")
    ranks = [state.rank for state in job.ranks]
    if len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(job.world_size)):
        raise InvalidRequest("ranks", str(ranks), f"each once, from 0 to {job.world_size - 1}")
