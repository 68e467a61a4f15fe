"""What the coordinator orders: the map, tables, a job, and whose a rank is (R1, R7, R13); and what another server decided (R9).

Each may be said again.
"""

from ps_proto.errors import InvalidRequest, Recovering
from ps_proto.orders import AdmitRank, FenceRank, InstallMap, InstallTable, RankFenced, ResolveRank, RollBack, StartJob
from ps_proto.requests import NEVER, Done, StepDecided
from ps_proto.values import Sync
from ps_server.events import Body
from ps_server.shard.catalog import Catalog
from ps_server.shard.key_lists import KeyLists
from ps_server.shard.membership import Membership
from ps_server.shard.parking import Parking, Wait
from ps_server.shard.steps import Steps
from ps_server.shard.writing import Writer
from ps_server.tasks import Registered

ORDERS = (Registered, InstallMap, InstallTable, StartJob, FenceRank, ResolveRank, AdmitRank, RollBack)

REGISTRATION_S = 10.0  # how long a map waits for what the coordinator sent before it


class Orders:
    """Turns of the coordinator's orders."""

    def __init__(
        self, membership: Membership, catalog: Catalog, steps: Steps, key_lists: KeyLists, writer: Writer, parking: Parking
    ) -> None:
        self._membership = membership
        self._catalog = catalog
        self._steps = steps
        self._key_lists = key_lists
        self._writer = writer
        self._parking = parking

    def register(self, request: int, registered: Registered, now_s: float) -> Done:
        """Hear from the edge as what the coordinator has taken this server in."""
        self._membership.register(registered.incarnation, registered.must_recover, registered.cluster)
        return Done(self._steps.step)

    def install_map(self, request: int, order: InstallMap, now_s: float) -> Body | None:
        """Follow a newer map; any peer may hand it on.

        The first map may overtake what the coordinator answered to this server's registration: then it waits for that.
        """

        def attempt() -> Done | None:
            if self._membership.awaits_registration:
                return None
            if self._membership.take_map(order.shard_map):
                self._key_lists.clear()
            return Done(self._steps.step)

        def give_up(after_s: float) -> Recovering:
            return Recovering(self._membership.server, f"the coordinator has not taken it in after {after_s:.1f} s")

        return self._parking.answer_or_park(request, Wait(None, REGISTRATION_S, attempt, give_up), now_s)

    def _check(self, order: InstallTable | StartJob | FenceRank | ResolveRank | AdmitRank) -> None:
        """Raise where the order is not to be followed, or not yet: what is being loaded would not know of it."""
        self._membership.check_order(order.term, order.cluster)
        self._membership.check_recovered()

    def install_table(self, request: int, order: InstallTable, now_s: float) -> Done:
        """Open a table; where another creation of its name failed on some server, in place of that one's."""
        self._check(order)
        self._catalog.install(order.spec, order.creation)
        return Done(self._steps.step)

    def start_job(self, request: int, order: StartJob, now_s: float) -> Done:
        """Begin a job; what ranks of the one before still say is refused."""
        self._check(order)
        self._membership.check_timeline(order.timeline)
        if order.world_size < 1:
            raise InvalidRequest("world_size", str(order.world_size), "at least 1")
        if order.job > self._steps.job:
            self._membership.retire()
            self._key_lists.clear()
            self._membership.world_size = order.world_size
            self._catalog.job_mode = order.mode
            backup_workers = order.mode.backup_workers if isinstance(order.mode, Sync) else 0
            self._steps.start(order.job, order.world_size, order.first_clock, backup_workers)
        return Done(self._steps.step)

    def fence_rank(self, request: int, order: FenceRank, now_s: float) -> RankFenced:
        """Refuse the rank's lower incarnations from now on; say how far it came."""
        self._check(order)
        self._membership.fence_rank(order.rank, order.incarnation)
        self._key_lists.forget(order.rank)
        clocks, window = self._steps.clocks, self._writer.window
        highest = max([clocks.clock_max, *(window.last_clock(rank) for rank in window.ranks)])
        return RankFenced(
            self._steps.facts.newest.get(order.rank),
            window.last_clock(order.rank),
            highest,
            order.rank in clocks.left_after,
            finished=clocks.finished.get(order.rank, NEVER),
            since=clocks.first_of(order.rank),
        )

    def resolve_rank(self, request: int, order: ResolveRank, now_s: float) -> Done:
        """Settle how far the rank came, as the coordinator found it."""
        self._check(order)
        self._membership.check_timeline(order.timeline)
        clocks = self._steps.clocks
        if order.rank not in clocks.finished:
            raise InvalidRequest("rank", str(order.rank), f"from 0 to {clocks.world_size - 1}, as the job's world_size says")
        if self._membership.settle(order.rank, order.incarnation):  # said again, late: what was staged since must stay
            self._steps.settle(order.rank, order.fact, order.start, order.has_left)
        return Done(self._steps.step)

    def admit_rank(self, request: int, order: AdmitRank, now_s: float) -> Done:
        """Take a rank into a job that runs; once for each incarnation, since it may have left again when the order comes late."""
        self._check(order)
        self._membership.check_timeline(order.timeline)
        if self._catalog.has_synchronous:
            want = "told in a finished step, so that all servers follow it between the same two: a table is synchronous"
            raise InvalidRequest("the admission", f"of rank {order.rank} by an order of its own", want)
        next_rank = self._steps.clocks.world_size
        if next_rank == 0:
            raise InvalidRequest("the admission", f"of rank {order.rank} before there is a job", "to one that runs")
        if not 0 <= order.rank <= next_rank:
            raise InvalidRequest("rank", str(order.rank), f"from 0 to {next_rank}, which is the next one")
        if self._membership.settle(order.rank, order.incarnation):
            self._steps.admit(order.rank, order.first)
        return Done(self._steps.step)

    def take_decision(self, request: int, order: StepDecided, now_s: float) -> Done:
        """Fold by what the owner of bucket 0 decided; of a job that is over, nothing."""
        self._membership.check(order.fence)
        if order.job > self._steps.job:
            raise Recovering(self._membership.server, f"it has not heard of job {order.job} yet")
        if order.job == self._steps.job:
            self._steps.hear(order.decision)
        return Done(self._steps.step)
