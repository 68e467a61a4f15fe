"""The steps of a job on one server: who finished which, what was staged for them, and their folds (R4, R5, R6)."""

from collections.abc import Callable
from contextlib import suppress

from ps_proto.errors import InvalidRequest, OptimizerFailed, StalenessTimeout
from ps_proto.orders import JobState
from ps_proto.requests import OBSERVER, Decision, Finished
from ps_proto.values import Sync
from ps_server.shard.catalog import Catalog
from ps_server.shard.clocks import Clocks
from ps_server.shard.counters import Counters
from ps_server.shard.deciding import Decider
from ps_server.shard.facts import Facts
from ps_server.shard.membership import CLOCK_MAX, Membership
from ps_server.shard.optimizers.optimizer import Origin
from ps_server.shard.read_rows import ReadRows
from ps_server.shard.staging import Staging, fold
from ps_server.shard.step_orders import StepOrders
from ps_server.shard.wishes import Wishes

RESUME_BYTES_MAX = 64 * 1024


class Steps:
    """The steps of the running job, numbered `job`; 0 before the first.

    `step` is the synchronous step whose rows the tables hold: every roster member has finished all steps before it, and
    those are folded. In a job without synchronous tables it is the least clock.
    """

    def __init__(self, membership: Membership, catalog: Catalog, counters: Counters) -> None:
        self.job = 0
        self.step = 0
        self.clocks = Clocks()
        self.staging = Staging()
        self.reads = ReadRows(counters)
        self.facts = Facts()
        self.on_fold: Callable[[], None] = lambda: None  # called after each fold: the rows are those of one step
        self._wishes = Wishes(catalog)
        self._orders = StepOrders()
        self._membership = membership
        self.decider = Decider(membership, catalog, self._wishes, self._orders, counters)
        self._catalog = catalog
        self._counters = counters

    def start(self, job: int, world_size: int, first_clock: int, backup_workers: int) -> None:
        """Begin a job with its first step; what was staged for another one is gone."""
        self.job, self.step = job, first_clock
        self.clocks = Clocks(world_size, first_clock)
        self.facts.clear()
        self.staging.clear()
        self.reads.clear()
        self._wishes.clear()
        self._orders.clear()
        self.decider.start(backup_workers)

    def restart(self, job: JobState | None) -> None:
        """Begin where a checkpoint left the job; without one, without ranks. What has been since is gone."""
        if job is None:
            self.start(self.job, 0, 0, 0)  # the number stays: a late order to start that job changes nothing
            return
        backup_workers = job.mode.backup_workers if isinstance(job.mode, Sync) else 0
        self.start(job.number, job.world_size, job.first_clock, backup_workers)
        finished = {state.rank: max(state.finished, job.first_clock - 1) for state in job.ranks}
        left_after = {state.rank: finished[state.rank] for state in job.ranks if state.has_left}
        self.clocks = Clocks(job.world_size, job.first_clock, finished, left_after)
        over = self.clocks.least if self.clocks.present else max(left_after.values())
        self.step = max(job.step, job.first_clock, over + 1)  # at once: nothing is staged for a step that all have finished
        for state in job.ranks:
            if state.fact is not None:
                self.facts.keep(state.rank, state.fact, since=state.fact.clock)
        self._fold_what_is_ready()

    # --- what a rank did -----------------------------------------------------------------------------------------------------

    def check_step(self, field: str, rank: int, step: int) -> None:
        """Raise unless `rank` may write to `step` or finish it: in its roster, and no further than one beyond what it finished.

        Every server hears each `finished` before the rank's next push (R4), so a gap is an error, and no clock makes a server
        fold a million empty steps.
        """
        last = self.clocks.finished[rank]
        if step > last + 1:
            raise InvalidRequest(field, str(step), f"at most {last + 1}: the last step that rank {rank} finished here is {last}")
        self._check_roster(field, rank, step)

    def _check_finished(self, rank: int, clock: int) -> None:
        """Raise unless `rank` may say that it finished `clock`.

        With backup workers a late rank leaves steps out, but only such as are decided: where that is this server's business, it knows them.
        """
        if clock < self.step or not self.decider.decides:
            self._check_roster("finished clock", rank, clock)
        else:
            self.check_step("finished clock", rank, clock)

    def _check_roster(self, field: str, rank: int, step: int) -> None:
        clocks = self.clocks
        if clocks.takes_part(rank, step):
            return
        if rank in clocks.left_after:
            raise InvalidRequest(field, str(step), f"at most {clocks.left_after[rank]}, after which rank {rank} left the job")
        raise InvalidRequest(field, str(step), f"at least {clocks.since[rank]}, with which rank {rank} begins")

    def learn(self, rank: int, finished: Finished) -> None:
        """Merge a fact (R4). One that asks for other hyperparameters than a rank before it is refused."""
        if rank == OBSERVER:
            raise InvalidRequest("rank", "none", "a rank: an observer finishes nothing")
        if not 0 <= finished.clock <= CLOCK_MAX:
            raise InvalidRequest("finished clock", str(finished.clock), f"from 0 to {CLOCK_MAX}")
        if len(finished.resume) > RESUME_BYTES_MAX:
            raise InvalidRequest("resume state", f"{len(finished.resume)} bytes", f"at most {RESUME_BYTES_MAX} bytes")
        if finished.clock <= self.clocks.finished[rank]:
            if finished.resume:
                self.facts.add_resume(rank, finished.clock, finished.resume)  # it may follow the bare fact, on the next pull (R4)
            return
        self._check_finished(rank, finished.clock)
        self.decider.check_orders(finished, self.clocks.world_size)
        self._wishes.check(rank, finished, may_differ=self.decider.backup_workers > 0)  # a late rank's scheduler lags
        self._take(rank, finished)
        self._fold_what_is_ready()

    def leave(self, rank: int) -> None:
        """Take the rank out of the roster of all steps after the last one it finished."""
        self.clocks.leave(rank)
        self.reads.forget(rank)
        self._fold_what_is_ready()

    def admit(self, rank: int, first: int) -> None:
        """Take a rank that has left, or the next one, into the roster of step `first` and all later ones (R6)."""
        self._admit(rank, first)
        self._fold_what_is_ready()

    def _admit(self, rank: int, first: int) -> None:
        self.clocks.admit(rank, first)
        self._membership.world_size = self.clocks.world_size

    def settle(self, rank: int, fact: Finished | None, start: int, has_left: bool) -> None:
        """Take `fact` as the last that the rank did, and drop what it staged beyond; then it begins with step `start`, or has left (R7)."""
        self.staging.drop(rank, self.clocks.first_clock - 1 if fact is None else fact.clock)
        self.reads.forget(rank)
        if fact is not None and fact.clock > self.clocks.finished[rank]:
            self._take(rank, fact)
        self.clocks.finish(rank, start - 1)
        if has_left:
            self.clocks.leave(rank)
        self._fold_what_is_ready()

    def _take(self, rank: int, fact: Finished) -> None:
        """Keep what a rank finished; it is news."""
        if fact.clock >= self.step:
            self._wishes.keep(rank, fact)
        fact = self.decider.keep_orders(fact, self.step)
        # The rows of `step` go with what each rank said of the step before, also a rank that is ahead. Where no rows wait for a step's end,
        # they go with what it said last.
        self.facts.keep(rank, fact, since=self.step - 1 if self._catalog.has_synchronous else fact.clock)
        self.clocks.finish(rank, fact.clock)
        self.reads.forget(rank, fact.clock)

    def fact_at(self, rank: int, clock: int) -> Finished | None:
        """Return what a rank said of exactly this step: where a table is synchronous, of the one before `step` and of any later one."""
        return self.facts.at(rank, clock)

    def timeout(self, clock: int, bound: int, after_s: float) -> StalenessTimeout:
        """Return the error of whoever waited in vain for step `clock`; it names the slowest rank."""
        return StalenessTimeout(clock, self.clocks.min_clock, bound, self.clocks.slowest(), after_s)

    # --- folds ---------------------------------------------------------------------------------------------------------------

    def hear(self, decision: Decision) -> None:
        """Take what the decider says of a step (R9)."""
        self.decider.hear(decision, self.step, self.clocks.world_size)
        self._fold_what_is_ready()

    def _fold_what_is_ready(self) -> None:
        while (decision := self.decider.next(self.step, self.clocks, self.facts.newest)) is not None:
            self._fold(decision)

    def _fold(self, decision: Decision) -> None:
        """Apply the step at work: each table's staged gradients of the decided ranks, once, in rank order (R5).

        A table whose optimizer raises keeps no other from it, nor the step from its end.
        """
        ranks = list(decision.ranks)
        parameters = {item.table: item.parameters for item in decision.hyperparameters}
        self._counters.contributions_dropped += self.staging.count_of_others(self.step, ranks)
        for table, contributions in self.staging.take(self.step, ranks).items():
            folded = fold(contributions, decision.ranks_count)
            with suppress(OptimizerFailed):  # nobody asked for this turn: whoever asks for the table next is told
                self._catalog.update(table, folded.ids, folded.rows, parameters.get(table), Origin(self.step), folded.places)
        self._wishes.drop(self.step)
        for order in decision.orders:
            self._admit(order.rank, self.step + 1)
        self.step += 1
        self.facts.forget_before(self.step - 1)
        self._counters.folds += 1
        self.on_fold()

    def check_invariants(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        clocks = self.clocks
        looked = Clocks(clocks.world_size, clocks.first_clock, clocks.finished, clocks.left_after, clocks.since, clocks.past)
        assert clocks == looked, "what the clocks keep is what a look at every rank gives"
        assert not self.decider.is_settled(self.step, self.clocks), "a step that can be folded is folded in the same turn"
        assert all(step >= self.step for step in self._wishes.steps), "hyperparameters of a folded step are dropped"
        assert all(step >= self.step for step in self._orders.steps), "orders that hold from a folded step on are followed"
        assert all(step >= self.step for step in self.staging.steps), "a step that is over holds no pushes"
        assert all(clock >= self.step - 1 for clock in self.facts.earlier_clocks), "facts that no rows go with are dropped"
