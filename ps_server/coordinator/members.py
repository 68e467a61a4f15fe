"""The servers of the cluster and the shard map: who may register, and when the rows are shared out.

A server that is started again under its name takes its place once the old one is known to be gone, never because it is silent for a while
(R12): contenders.py. Before there is a map nobody has lost anything; afterwards its rows are gone, and `on_restarted` is called.
"""

from collections.abc import Callable

from ps_proto.errors import InvalidRequest, ParameterServerError, Recovering
from ps_proto.orders import InstallMap
from ps_proto.requests import Done, RegisterServer, ServerRegistered
from ps_server.coordinator.contenders import Contender, Contenders
from ps_server.coordinator.journal import Journal
from ps_server.coordinator.numbering import Numbering
from ps_server.coordinator.plans import Plan, Plans
from ps_server.coordinator.stored import MAP, Stored, StoredMap, StoredServer, server_key
from ps_server.events import Body, Effect, Refuse, Reply
from sharding.rebalance import plan
from sharding.shard_map import Server, ShardMap


class Members:
    """`servers`: those registered, by name; `shard_map`: set once every server holds it.

    on_restarted  called with the name of a server that was started again although it had a share of the rows.
    on_complete   called in place of sharing out no rows, where the cluster begins with some.
    busy          why there is no map yet, where it is neither for lack of servers nor for one that has not taken it.
    """

    def __init__(
        self,
        servers_expected: int,
        servers: dict[str, Server],
        stored: Stored | None,
        plans: Plans,
        numbering: Numbering,
        journal: Journal,
    ) -> None:
        self.servers_expected = servers_expected
        self.servers = servers
        self.shard_map: ShardMap | None = None
        self.on_restarted: Callable[[str], None] = lambda server: None
        self.on_complete: Callable[[], None] | None = None
        self.busy = ""
        self._recovering: set[str] = set()  # servers that must not serve before a rollback
        self._processes: dict[str, int] = {}  # server -> the nonce of its process
        self._contenders = Contenders(plans)
        self._last_map: ShardMap | None = None  # some server may hold it, although not all do
        self._plans = plans
        self._numbering = numbering
        self._journal = journal
        if stored is not None:
            servers |= {name: one.server for name, one in stored.servers.items()}
            self._processes = {name: one.nonce for name, one in stored.servers.items()}
            self._recovering = {name for name, one in stored.servers.items() if one.must_recover}
            if stored.shard_map is not None:
                self._last_map = stored.shard_map.shard_map
                self.shard_map = self._last_map if stored.shard_map.is_installed else None

    def begin(self) -> None:
        """Go on after a restart: see that every server is there, or let all have a map at last."""
        if self.shard_map is not None:
            self._plans.add_for_all("map", self._find_everyone(self.shard_map), "it was started again, and looks for its servers")
        elif self._map_is_planned():
            self._share_out()

    def _find_everyone(self, shard_map: ShardMap) -> Plan:
        yield InstallMap(shard_map)
        return Done()

    def check_map(self) -> ShardMap:
        """Return the shard map; Recovering where there is none yet."""
        if self.shard_map is None:
            raise self.missing()
        return self.shard_map

    def missing(self) -> ParameterServerError:
        """Return the error that says why there is no shard map yet."""
        if self.busy:
            return Recovering("The coordinator", self.busy)
        if self._map_is_planned():
            return Recovering("The coordinator", "not every server has taken the shard map yet")
        return Recovering("The coordinator", f"{len(self.servers)} of {self.servers_expected} servers have registered")

    # --- registering -----------------------------------------------------------------------------------------------------

    def register(self, request: int, body: RegisterServer, now_s: float) -> Body | None:
        """Take a server in, or find out first who is there, where its name was given before."""
        known = self.servers.get(body.server)
        if known is not None and (known.address, self._processes[known.name]) == (body.address, body.nonce):
            return self._registered(known)
        if known is None and len(self.servers) == self.servers_expected:
            want = f"one of the {self.servers_expected} servers that this cluster was started for: {', '.join(sorted(self.servers))}"
            raise InvalidRequest("server name", repr(body.server), want)
        try:
            server = Server(body.server, body.address, known.incarnation + 1 if known is not None else 1, body.weight)
        except ValueError as error:
            raise InvalidRequest(
                "server", f"{body.server!r} with weight {body.weight}", f"named, with a weight above 0 ({error})"
            ) from None
        if known is not None:
            self._contenders.add(request, Contender(body, server, known, self._processes[known.name]))
            return None
        return self._admit(server, body.nonce)

    def _admit(self, server: Server, nonce: int) -> ServerRegistered:
        self.servers[server.name], self._processes[server.name] = server, nonce
        must_recover = self.shard_map is not None
        if must_recover:
            self._recovering.add(server.name)
        self._journal.put(server_key(server.name), StoredServer(server, nonce, must_recover))
        if must_recover:
            self.on_restarted(server.name)
        elif self._map_is_planned():  # again where it replaces one: nothing else runs before there is a map
            self._share_out()
        return self._registered(server)

    def _registered(self, server: Server) -> ServerRegistered:
        return ServerRegistered(server.name, server.incarnation, server.name in self._recovering, self._numbering.cluster)

    def _map_is_planned(self) -> bool:
        return len(self.servers) == self.servers_expected

    def _share_out(self) -> None:
        if self.on_complete is not None:
            self.on_complete()
        else:
            self._plans.add_for_all("map", self._publish_map(), "the servers are taking a shard map")

    def _publish_map(self) -> Plan:
        shard_map = self.plan_map()
        yield InstallMap(shard_map)
        self.install(shard_map)
        return Done()

    def plan_map(self) -> ShardMap:
        """Plan the next map, which names the servers as they were started last. Where there was one, it counts from now on."""
        self._last_map = planned = plan(self._last_map, [self.servers[name] for name in sorted(self.servers)])
        if self.shard_map is not None:
            self.shard_map = planned
        self._journal.put(MAP, StoredMap(planned, is_installed=self.shard_map is not None))
        return planned

    def install(self, shard_map: ShardMap) -> None:
        """Let a map count that every server holds now."""
        self.shard_map = shard_map
        self._journal.put(MAP, StoredMap(shard_map, is_installed=True))

    # --- two of one name -------------------------------------------------------------------------------------------------

    def question_contenders(self, effects: list[Effect]) -> None:
        """Ask who is there, where somebody wants a name that another has or had."""
        self._contenders.question(effects)

    def take_answer(self, number: int, outcome: Body | ParameterServerError, now_s: float, effects: list[Effect]) -> bool:
        """Take the answer to such a question; return False where the number is of none."""
        if not self._contenders.has_asked(number):
            return False
        contender = self._contenders.take_answer(number, outcome)
        if contender is not None:
            self._decide(contender, now_s, effects)
        return True

    def _decide(self, contender: Contender, now_s: float, effects: list[Effect]) -> None:
        """Admit the contender where it may be, also if nobody waits any more: it asks again, and must not find all as it was."""
        try:
            if self.servers[contender.rival.name] == contender.rival:
                contender.check()
                self._admit(contender.server, contender.body.nonce)
        except ParameterServerError as error:
            effects += [Refuse(request, error) for request in contender.requests]
            return
        for request in contender.requests:
            reply = self.register(request, contender.body, now_s)
            if reply is not None:
                effects.append(Reply(request, reply))

    def forget(self, request: int) -> None:
        """Let a request go that nobody waits for."""
        self._contenders.forget(request)
