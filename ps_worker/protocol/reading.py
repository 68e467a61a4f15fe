"""What a worker reads: rows of some ids, and whole tables; all of one step where the mode or the asker needs it (R5, R10, R19)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ps_proto.errors import StepPassed
from ps_proto.requests import OpenExport, Pull, Rows, TableIds
from ps_proto.values import Async, BoundedStaleness
from ps_worker.asking import Operation
from ps_worker.protocol.key_lists import KeyLists
from ps_worker.protocol.peers import Peers
from ps_worker.protocol.steps import Steps
from ps_worker.protocol.tables import Tables
from ps_worker.protocol.view import View
from ps_worker.router import Part, Wanted, join
from sharding.wire_format import WireRows


class Reader:
    """Pulls rows and opens exports. It changes nothing, but tells every server that the step before is finished (R4)."""

    def __init__(self, view: View, peers: Peers, tables: Tables, steps: Steps, key_lists: KeyLists) -> None:
        self._view = view
        self._peers = peers
        self._tables = tables
        self._steps = steps
        self._key_lists = key_lists

    def may_ask_ahead(self, tables: Sequence[str], turn: int) -> bool:
        """Return whether a pull for `turn` could be answered before this worker has finished the steps up to it."""
        modes = [self._view.mode_of(table) for table in tables]
        steps = turn - self._view.turn
        return steps <= 0 or all(
            [isinstance(mode, Async) or (isinstance(mode, BoundedStaleness) and mode.bound >= steps) for mode in modes]
        )

    # --- rows --------------------------------------------------------------------------------------------------------------------

    def pull(self, wanted: Sequence[Wanted], turn: int) -> Operation[list[Rows]]:
        """Read rows as the step of `turn` may see them: float32[n, dim] for each table's n ids as the caller gave them."""
        yield from self._tables.know([item.table for item in wanted])
        answers = yield from self._peers.under_newest_map(lambda: self._read(wanted, turn))
        dims = [self._view.tables[item.table].dim for item in wanted]
        joined = join(dims, [item.ids.size for item in wanted], answers)
        return [item.expand(rows) for item, rows in zip(wanted, joined, strict=True)]

    def _read(self, wanted: Sequence[Wanted], turn: int) -> Operation[list[tuple[Part, WireRows]]]:
        pulling = self._key_lists.route_pull(wanted, self._view.map)
        routed = pulling.parts
        asked = {server: _ids(wanted, parts) for server, parts in routed.items()}
        synchronous = any([self._view.is_synchronous(item.table) for item in wanted])
        if self._view.is_observer:
            replies = yield from self._at_one_step(lambda step: self._pulls(asked, step), synchronous)
        elif synchronous and self._view.backup_workers:
            replies = yield from self._read_though_late(asked, turn)
        else:
            replies = yield from self._read_as_rank(asked, turn + self._view.skipped)
        self._key_lists.answered(pulling)
        return [(part, rows) for server, parts in routed.items() for part, rows in zip(parts, replies[server].rows, strict=True)]

    def _pulls(self, asked: Mapping[str, tuple[TableIds, ...]], at_step: int) -> dict[str, Any]:
        fence = self._view.fence()
        return {server: Pull(fence, ids, None, self._peers.wait_s, at_step) for server, ids in asked.items()}

    def _read_as_rank(self, asked: Mapping[str, tuple[TableIds, ...]], clock: int) -> Operation[dict[str, Any]]:
        """Ask each owner; the first pull of a step goes to every server, and on when all have answered (R4, R5)."""
        yield from self._steps.announce_earlier()
        finished = self._steps.next_unheard()
        servers = asked if finished is None else {**asked, **{name: asked.get(name, ()) for name in self._peers.servers()}}
        fence = self._view.fence(clock)
        replies = yield from self._peers.ask({name: Pull(fence, ids, finished, self._peers.wait_s) for name, ids in servers.items()})
        self._steps.announced(finished)
        return replies

    def _read_though_late(self, asked: Mapping[str, tuple[TableIds, ...]], turn: int) -> Operation[dict[str, Any]]:
        """Ask each owner, where the step may be over: until the rows are of one step, or of one that is late (R9)."""
        while True:
            clock = turn + self._view.skipped
            replies = yield from self._read_as_rank(asked, clock)
            if self._steps.take_rows(turn, clock, max([reply.step for reply in replies.values()], default=clock)):
                return replies

    # --- whole tables ------------------------------------------------------------------------------------------------------------

    def open_exports(self, table: str, with_state: bool) -> Operation[dict[str, Any]]:
        """Open a snapshot of the table on every server, synchronous tables at one and the same step (R19); `with_state`: of records."""
        yield from self._tables.know([table])
        if not self._view.is_observer:
            yield from self._steps.announce()
        return (yield from self._peers.under_newest_map(lambda: self._open_exports(table, with_state)))

    def _open_exports(self, table: str, with_state: bool) -> Operation[dict[str, Any]]:
        def bodies(at_step: int) -> dict[str, Any]:
            fence = self._view.fence(None if self._view.is_observer else max(self._view.clock, at_step))  # a late rank may read ahead (R9)
            asked = OpenExport(fence, table, self._peers.wait_s, at_step, with_state)
            return dict.fromkeys(self._peers.servers(), asked)

        return self._at_one_step(bodies, self._view.is_synchronous(table))

    # --- of one step -------------------------------------------------------------------------------------------------------------

    def _at_one_step(self, bodies: Callable[[int], Mapping[str, Any]], synchronous: bool) -> Operation[dict[str, Any]]:
        """Ask each server what `bodies(at_step)` has for it, synchronous tables until all have answered as of the same step (R19).

        `at_step` is the latest that one of them is at; at first -1, any. An observer starts again where a server has passed it.
        """
        replies: dict[str, Any] = {}
        at_step, started_s = -1, self._peers.now_s()
        while True:
            late = {
                server: body
                for server, body in bodies(at_step).items()
                if server not in replies or (synchronous and replies[server].step < at_step)
            }
            try:
                replies |= yield from self._peers.ask(late)
            except StepPassed:
                if not self._view.is_observer or self._peers.has_waited_enough(started_s):
                    raise  # it has run after the steps, which went on each time, for as long as it would wait for one
                replies, at_step = {}, -1
                continue
            at_step = max([reply.step for reply in replies.values()], default=-1)
            if not synchronous or all([reply.step == at_step for reply in replies.values()]):
                return replies


def _ids(wanted: Sequence[Wanted], parts: Sequence[Part]) -> tuple[TableIds, ...]:
    return tuple([TableIds(wanted[part.position].table, part.ids, part.pull) for part in parts])
