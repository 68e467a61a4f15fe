"""A process of ours from start to clean stop: what the server and the coordinator have in common."""

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Protocol

import grpc.aio
import structlog
import uvloop

from ps_proto.channel import SERVER_OPTIONS
from ps_proto.errors import ParameterServerError, PluginFailed
from ps_proto.plugins import load_plugins
from ps_server.edge.address import is_loopback, join_address
from ps_server.edge.announce import CannotAnnounce, announce
from ps_server.edge.bound_port import CannotListen, bind
from ps_server.edge.health import Health
from ps_server.edge.log import configure_log
from ps_server.edge.loop import CoreLoop
from ps_server.edge.parent import wait_for_exit_of
from ps_server.edge.sender import Sender
from ps_server.edge.servicer import Answers, add_servicer
from ps_server.edge.settings import ProcessSettings

STOPPED, REFUSED, WRONG_USAGE = 0, 1, 2  # the exit codes
STOP_GRACE_S = 2.0  # for answers that are on their way

log = structlog.get_logger()


class Role(Protocol):
    """What a process does beside being one."""

    service: str  # the full name of its gRPC service
    loop: CoreLoop  # answers that service
    max_request_bytes: int
    answers: Answers  # to requests that need no core

    async def join(self, address: str) -> None:
        """Do what must be done before this process, which listens on `address`, may say that it serves; a ParameterServerError ends it."""
        ...

    async def close(self) -> None:
        """Refuse what waits and what comes, and let go of everything."""
        ...


def run_process(name: str, settings: ProcessSettings, make_role: Callable[[Sender], Role]) -> int:
    """Run until SIGTERM, Ctrl-C or the end of the parent; return the exit code. `make_role` is called in the event loop."""
    configure_log(name, settings.log_format, settings.log_level)
    try:
        load_plugins(os.environ, settings.plugins)
    except PluginFailed as error:
        log.error(str(error))
        return WRONG_USAGE
    return uvloop.run(_run(settings, make_role))


async def _run(settings: ProcessSettings, make_role: Callable[[Sender], Role]) -> int:
    stop = _stop_event(settings)
    sender = Sender()
    try:
        role = make_role(sender)
    except ParameterServerError as error:
        log.error(str(error))
        return REFUSED
    role.loop.on_broken = stop.set
    health = Health(role.service)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    try:
        address = join_address(settings.host, bind(server, settings.host, settings.port))
        add_servicer(server, role.service, role.loop, role.max_request_bytes, answers=role.answers)
        await health.add_to(server)
        await server.start()
        _tell_address(settings, address)
        if await _unless(stop, role.join(address)):
            gc.freeze()  # what was imported and compiled stays to the end: collections would look through it in a turn, and at the exit
            await health.say_serving()
            log.info("serving", address=address)
            await stop.wait()
        if role.loop.broken_by is not None:
            log.error("cannot go on", cause=str(role.loop.broken_by))
        log.info("stopping")
        await health.say_stopping()
    except (CannotAnnounce, CannotListen) as error:
        log.error(str(error))
        return WRONG_USAGE
    except ParameterServerError as error:
        log.error(str(error))
        return REFUSED
    finally:
        await role.close()
        await server.stop(STOP_GRACE_S)
        await sender.close()
    return STOPPED if role.loop.broken_by is None else REFUSED


def _tell_address(settings: ProcessSettings, address: str) -> None:
    log.info("listening", address=address, pid=os.getpid())
    if not is_loopback(settings.host):
        log.warning("listening beyond this machine, without encryption: whoever reaches this address can read and change the model")
    if settings.announce is not None:
        announce(settings.announce, address)


async def _unless(stop: asyncio.Event, work: Coroutine[None, None, None]) -> bool:
    """Await `work` and return True; or, once `stop` is set, cancel it and return False."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()
        return True
    finally:
        working.cancel()
        stopping.cancel()


def _stop_event(settings: ProcessSettings) -> asyncio.Event:
    """Return an event that SIGTERM, Ctrl-C or the end of the parent sets."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if settings.exit_with_parent is not None:
        watch = loop.create_task(wait_for_exit_of(settings.exit_with_parent))
        watch.add_done_callback(lambda _: stop.set())
    return stop
