"""The coordinator as a process."""

import secrets
from pathlib import Path

import structlog

from ps_proto.errors import CorruptFile, InvalidRequest, StaleOrder, StorageFailed, Unreachable
from ps_proto.methods import COORDINATOR
from ps_proto.parts import REQUEST_BYTES_MAX
from ps_server.coordinator.core import CoordinatorCore
from ps_server.coordinator.core_settings import CoreSettings, Restore
from ps_server.coordinator.settings import CoordinatorSettings
from ps_server.coordinator.sqlite_store import SqliteStore
from ps_server.coordinator.state_store import StateStore, Unkept
from ps_server.coordinator.stored import Stored
from ps_server.edge.loop import CoreLoop
from ps_server.edge.sender import Sender
from ps_server.edge.servicer import NO_ANSWERS
from ps_server.edge.serving import run_process
from ps_server.edge.workbench import Workbench
from ps_server.events import Body, Persist
from ps_server.storage.finding import no_checkpoint
from ps_server.tasks import FindCheckpoint, FoundCheckpoint, ProbeRoot

PROBE_S = 30.0  # for one operation at start, where somebody waits

log = structlog.get_logger()


def run_coordinator(settings: CoordinatorSettings) -> int:
    """Run the coordinator until it is told to stop; return the exit code."""
    return run_process("coordinator", settings, lambda sender: CoordinatorRole(settings, sender))


class CoordinatorRole:
    """What the coordinator does beside being a process: it goes on from what is stored; it is ready as soon as it listens.

    Raises StorageFailed or CorruptFile where its state cannot be had.
    """

    service = COORDINATOR
    max_request_bytes = REQUEST_BYTES_MAX
    answers = NO_ANSWERS

    def __init__(self, settings: CoordinatorSettings, sender: Sender) -> None:
        self._sender = sender
        self._store: StateStore = SqliteStore(settings.state) if settings.state is not None else Unkept()
        try:
            stored = self._stored(settings.state)
            core = CoordinatorCore(core_settings(settings), stored)
        except Exception:
            self._store.close()
            raise
        if settings.state is None:
            log.warning("the state of this cluster is in memory, and ends with this process; --state keeps it")
        self._options = settings.store_options()
        self._bench = Workbench("The coordinator", self._options)
        self.loop = CoreLoop(core, self._send, name="The coordinator", do_task=self._bench.do, store=self._keep)
        # Of a cluster that runs nothing is asked: it goes on where a root fails, too.
        self._restore = settings.restored() if stored is None else None
        self._root = settings.checkpoints if stored is None else None

    async def join(self, address: str) -> None:
        """Let the core go on with what the coordinator before it had begun.

        Of a new cluster: NoCheckpoint where it is to begin with one that is not there, StorageFailed where it could write none.
        """
        if self._restore is not None:
            await self._check_there(self._restore)
        if self._root is not None:
            await self._probe(self._root)
        self.loop.begin()

    async def _probe(self, root: str) -> None:
        bench = Workbench("The coordinator", self._options, store_s=PROBE_S)
        try:
            await bench.do(ProbeRoot(root, secrets.token_hex(8)), self.loop.ask)
        except StorageFailed as error:
            raise StorageFailed(root, error.reason) from error

    async def _check_there(self, restore: Restore) -> None:
        found = await self._bench.do(FindCheckpoint((restore.root,), restore.number), self.loop.ask)
        assert isinstance(found, FoundCheckpoint)
        if found.source is None:
            raise no_checkpoint(str(restore), found)

    async def close(self) -> None:
        """Refuse what waits and what comes, and let go of the state."""
        await self.loop.close()
        self._store.close()

    def _stored(self, folder: Path | None) -> Stored | None:
        try:
            return Stored.of(self._store.load())
        except InvalidRequest as error:
            raise CorruptFile(str(folder), str(error)) from None

    def _keep(self, persist: Persist) -> None:
        self._store.commit(persist.puts, persist.deletes)

    async def _send(self, server: str, address: str, order: Body) -> Body:
        """Give an order; one that is refused since the server follows another coordinator of this cluster ends this one (R13).

        One of another cluster that listens there now is none of ours, and ours is gone: Unreachable.
        """
        try:
            return await self._sender.send(server, address, order)
        except StaleOrder as error:
            if error.what == "cluster":
                raise Unreachable(server, address, 0.0, str(error)) from error
            self.loop.break_off(error)
            raise


def core_settings(settings: CoordinatorSettings) -> CoreSettings:
    """Return what the core is told of the process's settings; a cluster that begins here gets an id of its own."""
    return CoreSettings(
        settings.servers,
        cluster=1 + secrets.randbelow(2**64 - 1),
        schedule=settings.schedule(),
        lease_s=settings.lease_s,
        restore=settings.restored(),
        tries_root=True,
    )
