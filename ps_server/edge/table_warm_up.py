"""Compiling a new table's kernels before the core opens it, while the loop goes on answering the others."""

import asyncio
from collections.abc import Callable, Hashable

from ps_proto.orders import InstallTable, RollBack
from ps_proto.values import TableSpec
from ps_server.edge.aside import run_aside
from ps_server.events import Body


class TableWarmUp:
    """Warms up for tables, once for all that need the same kernels; an order that comes again meanwhile waits for the same thread.

    `warm_up_for` runs in a thread. What it raises is the order's end, and the next order of that kind tries anew.
    """

    def __init__(self, warm_up_for: Callable[[TableSpec], None]) -> None:
        self._warm_up_for = warm_up_for
        self._warm: dict[Hashable, asyncio.Future[None]] = {}

    async def prepare(self, body: Body) -> None:
        """Return once the kernels of the tables that `body` orders are compiled; at once for any other body."""
        match body:
            case InstallTable():
                await self._warm_up(body.spec)
            case RollBack():
                for spec in body.tables:
                    await self._warm_up(spec)

    async def _warm_up(self, spec: TableSpec) -> None:
        needs = _needs(spec)
        warming = self._warm.get(needs)
        if warming is None:
            warming = self._warm[needs] = run_aside("warm-up", lambda: self._warm_up_for(spec))
        try:
            await asyncio.shield(warming)  # who gives the order up leaves the thread at work: the order comes again
        except Exception:
            if self._warm.get(needs) is warming:
                del self._warm[needs]
            raise


def _needs(spec: TableSpec) -> Hashable:
    """Return what decides which kernels a table needs. Numbers do: an optimizer without momentum may have a kernel of its own."""
    return spec.optimizer, spec.initializer, spec.dtype, spec.wire, spec.max_norm is None
