"""What a step is folded from: its whole roster (R5), or with backup workers those that finished it first (R9).

Backup workers are Chen et al., "Revisiting distributed synchronous SGD" (2016), §3: of N + b workers the first N gradients of a step are
averaged and the others dropped. Unlike there, b of the world_size ranks are the backup, the count follows the roster as ranks leave, and
a rank that is late goes on at the newest step, so that its next gradient is of no stale weights.
"""

from collections.abc import Mapping
from dataclasses import replace

from ps_proto.errors import InvalidRequest, Recovering
from ps_proto.requests import Decision, Finished
from ps_server.shard.catalog import Catalog
from ps_server.shard.clocks import Clocks
from ps_server.shard.counters import Counters
from ps_server.shard.membership import CLOCK_MAX, Membership
from ps_server.shard.step_orders import StepOrders
from ps_server.shard.wishes import Wishes


class Decider:
    """Says when a step may be folded, and from what.

    Without backup workers every server knows it by itself, since all hear the same facts. With them it depends on who came first, which
    each server sees in its own way: so the owner of bucket 0 alone decides, and the others fold by what they hear from it. The same holds
    for the orders that ranks bring with the ends of their steps: servers may have folded such a step before they hear of it.
    """

    def __init__(self, membership: Membership, catalog: Catalog, wishes: Wishes, orders: StepOrders, counters: Counters) -> None:
        self.backup_workers = 0
        self._heard: dict[int, Decision] = {}  # of steps that are not folded here; one may come before that of the step before
        self._news: list[Decision] = []
        self._membership = membership
        self._catalog = catalog
        self._wishes = wishes
        self._orders = orders
        self._counters = counters

    def start(self, backup_workers: int) -> None:
        """Begin a job."""
        self.backup_workers = backup_workers
        self._heard.clear()
        self._news.clear()

    @property
    def decides(self) -> bool:
        """Whether this server needs no other to know what a step is folded from."""
        return self.backup_workers == 0 or self._membership.is_first_owner

    # --- orders ----------------------------------------------------------------------------------------------------------------

    def check_orders(self, finished: Finished, world_size: int) -> None:
        """Raise InvalidRequest for orders that this server is to keep, and that cannot be followed."""
        if self.decides:
            self._orders.check(finished.orders, world_size)

    def keep_orders(self, finished: Finished, step: int) -> Finished:
        """Keep the orders that a rank brings with the end of a step, where `step` is the one at work; return the fact to be kept.

        They hold from the fold of the rank's step on, since no server folds that without them. With backup workers servers do: there the
        one that decides puts them into its next decision, and what another one hears of them is nothing: the coordinator gives them
        to every rank until all servers have followed them.
        """
        if not self.backup_workers:
            if finished.clock >= step:
                self._orders.keep(finished.clock, finished.orders)
            return finished
        if self.decides:
            self._orders.keep(step, finished.orders)
        return replace(finished, orders=())

    # --- decisions -------------------------------------------------------------------------------------------------------------

    def next(self, step: int, clocks: Clocks, facts: Mapping[int, Finished]) -> Decision | None:
        """Return what `step`, the one at work, is folded from, once that is settled; until it is folded, call it only once."""
        if step in self._heard:
            return self._heard.pop(step)
        if not self.backup_workers:
            return self._of(step, clocks.roster(step), facts) if clocks.can_fold(step) else None
        first = clocks.first_finished(step, self.backup_workers) if self.decides else []
        if not first:
            return None
        decision = self._of(step, first, facts)
        self._counters.steps_decided += 1
        self._news.append(decision)
        return decision

    def _of(self, step: int, ranks: list[int], facts: Mapping[int, Finished]) -> Decision:
        """Decide for these ranks; one that was taken anew beyond the step never said that it finished it: it has no gradient in it (R7)."""
        own = [rank for rank in ranks if rank in facts and facts[rank].clock >= step]
        return Decision(step, tuple(own), len(ranks), self._wishes.of(step, own), tuple(self._orders.take(step)))

    def take_news(self) -> list[Decision]:
        """Return what was decided here since this was asked last, for the other servers."""
        news, self._news = self._news, []
        return news

    def hear(self, decision: Decision, step: int, world_size: int) -> None:
        """Keep what the decider says of a step, where `step` is the one at work; one that is known changes nothing.

        Recovering where it is of a later one, and of ranks that decisions before it may have admitted: it is told again.
        """
        self._check(decision)
        try:
            self._check_ranks(decision, world_size)
        except InvalidRequest as error:
            if decision.step <= step:
                raise
            why = f"it is at step {step} and knows of {world_size} ranks, of which step {decision.step} is not"
            raise Recovering(self._membership.server, why) from error
        if decision.step >= step:
            self._heard.setdefault(decision.step, decision)

    def _check(self, decision: Decision) -> None:
        if self.decides:
            raise InvalidRequest("a decision", f"for {self._membership.server}", "for a server that does not decide: this one does")
        if not 0 <= decision.step <= CLOCK_MAX:
            raise InvalidRequest("step", str(decision.step), f"from 0 to {CLOCK_MAX}")
        self._catalog.parameters(decision.hyperparameters)

    def _check_ranks(self, decision: Decision, world_size: int) -> None:
        if list(decision.ranks) != sorted({rank for rank in decision.ranks if 0 <= rank < world_size}):
            raise InvalidRequest("ranks", str(decision.ranks), f"ascending, each once, from 0 to {world_size - 1}")
        if not max(1, len(decision.ranks)) <= decision.ranks_count <= world_size:
            raise InvalidRequest("ranks_count", str(decision.ranks_count), f"from {max(1, len(decision.ranks))} to {world_size}")
        self._orders.check(decision.orders, world_size)

    def is_settled(self, step: int, clocks: Clocks) -> bool:
        """Return whether `next` would return a decision."""
        if self.backup_workers:
            return step in self._heard or (self.decides and bool(clocks.first_finished(step, self.backup_workers)))
        return clocks.can_fold(step)
