"""A server as a process: a shard behind gRPC and the fast lane, known to the coordinator."""

import asyncio
import secrets

import structlog

from ps_proto.errors import Recovering, Unreachable
from ps_proto.methods import PARAMETER_SERVER
from ps_proto.orders import AskProcess, ProcessNamed
from ps_proto.requests import LaneOffered, OpenLane, RegisterServer, ServerRegistered
from ps_server.edge.aside import run_aside
from ps_server.edge.lane.listener import LaneListener, LaneSettings
from ps_server.edge.loop import CoreLoop
from ps_server.edge.sender import Sender
from ps_server.edge.servicer import Answers
from ps_server.edge.serving import run_process
from ps_server.edge.settings import ServerSettings
from ps_server.edge.table_warm_up import TableWarmUp
from ps_server.edge.timed_core import TimedCore
from ps_server.edge.workbench import Workbench
from ps_server.shard.rehearsal import warm_up, warm_up_for
from ps_server.shard.shard import Shard
from ps_server.tasks import Registered

RETRY_FIRST_S, RETRY_MOST_S = 0.1, 2.0

log = structlog.get_logger()


def run_server(settings: ServerSettings) -> int:
    """Run a server until it is told to stop; return the exit code."""
    return run_process(settings.name, settings, lambda sender: ServerRole(settings, sender))


class ServerRole:
    """What a server does beside being a process: it serves a shard, once its kernels are compiled and the coordinator knows it."""

    service = PARAMETER_SERVER

    def __init__(self, settings: ServerSettings, sender: Sender) -> None:
        shard = Shard(settings.name, settings.rows_max, settings.max_request_bytes, awaits_registration=True)
        bench = Workbench(settings.name, settings.store_options())
        self.loop = CoreLoop(TimedCore(shard), sender.send, name=settings.name, prepare=TableWarmUp(warm_up_for).prepare, do_task=bench.do)
        self.max_request_bytes = settings.max_request_bytes
        self.answers: Answers = {AskProcess: self._name_process, OpenLane: self._offer_lane}
        self._lanes: LaneListener | None = None
        self._settings = settings
        self._sender = sender
        self._nonce = secrets.randbits(64)

    async def join(self, address: str) -> None:
        """Warm up, listen for lanes, then register at the coordinator, which is asked again until it answers."""
        await run_aside("warm-up", warm_up)
        self._lanes = LaneListener(self.loop, LaneSettings(self._settings.host, self._settings.lane_port, self.max_request_bytes))
        log.info("listening for lanes", unix_path=self._lanes.unix_path, port=self._lanes.port)
        request = RegisterServer(self._settings.name, self._settings.advertise or address, self._settings.weight, self._nonce)
        retry_s = RETRY_FIRST_S
        while True:
            try:
                registered = await self._sender.send("The coordinator", self._settings.coordinator, request)
            except (Unreachable, Recovering) as error:
                cause = error.cause if isinstance(error, Unreachable) else str(error)
                log.warning("the coordinator does not answer yet", coordinator=self._settings.coordinator, retry_s=retry_s, cause=cause)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_MOST_S)
            else:
                assert isinstance(registered, ServerRegistered)
                await self.loop.submit(Registered(registered.incarnation, registered.must_recover, registered.cluster))
                log.info("registered", coordinator=self._settings.coordinator, address=request.address)
                return

    async def close(self) -> None:
        """Refuse what waits and what comes, then end the lanes."""
        await self.loop.close()
        if self._lanes is not None:
            await self._lanes.close()

    def _name_process(self, asked: AskProcess) -> ProcessNamed:
        return ProcessNamed(self._nonce)

    def _offer_lane(self, asked: OpenLane) -> LaneOffered:
        if self._lanes is None:
            raise Recovering(self._settings.name, "it is starting")
        return self._lanes.offer(asked)
