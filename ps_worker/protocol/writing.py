"""What a worker writes: each under a name, sent to its owners until all have acknowledged it (R2, R3, R14)."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ps_proto.errors import ParameterServerError, PushPartlyTaken, RolledBack, StaleIncarnation, UnfinishedPush
from ps_proto.requests import UNNAMED, Assign, ClearTable, ColumnLayout, Ids, Push, Rows
from ps_worker.asking import Operation
from ps_worker.protocol.key_lists import KeyLists
from ps_worker.protocol.merged import Merged, lay
from ps_worker.protocol.named import Named
from ps_worker.protocol.peers import Peers
from ps_worker.protocol.steps import Steps
from ps_worker.protocol.tables import Tables
from ps_worker.protocol.view import View
from ps_worker.retry import is_refusal
from ps_worker.rooms import Lend, lends_nothing
from ps_worker.router import Part
from sharding.wire_format import FLOAT32


class Writer:
    """Sends pushes and what else changes rows. One of them at most is unacknowledged, and only it may follow itself (R14)."""

    def __init__(self, view: View, peers: Peers, tables: Tables, steps: Steps, key_lists: KeyLists, lend: Lend) -> None:
        """`lend`: what the transport sends from without one more copy."""
        self._lend = lend
        self._view = view
        self._peers = peers
        self._tables = tables
        self._steps = steps
        self._key_lists = key_lists
        self._unacknowledged: Named | None = None

    def push(self, tables: Sequence[tuple[str, Ids, Rows]]) -> Operation[None]:
        """Push gradients, float32[n, dim] for ids uint64[n], repeats summed in the caller's order."""
        self._view.check_ranked("push")
        merged = self._laid([self._of_list(Merged.of(table, ids, rows, repeats=True)) for table, ids, rows in tables], is_push=True)
        clock, seq = self._steps.take_name(is_push=True)
        return self._send(Named(clock, seq, merged))

    def assign(self, tables: Sequence[tuple[str, Ids, Rows]], only_absent: bool) -> Operation[None]:
        """Set rows; ids must not repeat. `only_absent`: rows that exist stay, and it takes no name: to do it again changes nothing."""
        self._view.check_ranked("assign rows")
        merged = self._laid([Merged.of(table, ids, rows, repeats=False) for table, ids, rows in tables], is_push=False)
        clock, seq = (self._view.clock, UNNAMED) if only_absent else self._steps.take_name(is_push=False)
        return self._send(Named(clock, seq, merged, assign=True, only_absent=only_absent))

    def restore(self, table: str, ids: Ids, records: Rows, columns: tuple[ColumnLayout, ...]) -> Operation[None]:
        """Set whole records float32[n, width], row and state columns; ids must not repeat."""
        self._view.check_ranked("restore rows")
        merged = Merged.of(table, ids, records, repeats=False).checked(state_words=sum([column.words for column in columns]))
        clock, seq = self._steps.take_name(is_push=False)
        return self._send(Named(clock, seq, (merged,), assign=True, columns=columns))

    def clear(self, table: str) -> Operation[None]:
        """Drop all rows of a table on every server."""
        self._view.check_ranked("clear a table")
        clock, seq = self._steps.take_name(is_push=False)
        return self._send(Named(clock, seq, clears=table))

    def retry(self) -> Operation[None]:
        """Send what was not acknowledged everywhere again, under its name; nothing to do where there is none."""
        if self._unacknowledged is not None:
            yield from self._send(self._unacknowledged)

    def check_all_acknowledged(self) -> None:
        """Raise UnfinishedPush where a push was not acknowledged everywhere."""
        if self._unacknowledged is not None:
            raise UnfinishedPush(self._unacknowledged.clock, self._unacknowledged.seq)

    def _of_list(self, item: Merged) -> Merged:
        return item.of_list(self._key_lists.find(item.wanted, self._view.map.version))

    def _laid(self, merged: Sequence[Merged], is_push: bool) -> tuple[Merged, ...]:
        """Check what is given (R17), and lay it where it is sent from, if one server gets all of it as it is."""
        travels_as_it_is = len(self._view.map.servers) == 1 and not (is_push and any([self._is_compressed(item) for item in merged]))
        return lay(merged, self._lend if travels_as_it_is else lends_nothing)

    def _is_compressed(self, item: Merged) -> bool:
        """Return whether gradients of the table travel in another form, or may, since its spec is not known yet."""
        spec = self._view.tables.get(item.wanted.table)
        return spec is None or spec.wire != FLOAT32.name

    def _send(self, named: Named) -> Operation[None]:
        """Send each owner its part until all have acknowledged. One unacknowledged push per rank; it keeps its name (R2, R14)."""
        if self._unacknowledged is not named:
            self.check_all_acknowledged()
        yield from self._tables.know(named.tables)
        self._unacknowledged = named = named.encoded(self._view.tables)
        try:
            yield from self._steps.announce_before(named.clock)
            shard_map = self._view.map
            # Not after NotOwner: some may have taken a part under the map before.
            replies = yield from self._peers.under_newest_map(lambda: self._write(named, may_forget=self._view.map is shard_map))
            self._unacknowledged = None
            if not named.assign and any([self._view.is_synchronous(table) for table in named.tables]):
                self._steps.note_pushed(named.clock, max([reply.step for reply in replies.values()], default=named.clock))
        except (StaleIncarnation, RolledBack):
            self._unacknowledged = None  # whatever became of it, this worker is not the one to go on
            raise
        except ParameterServerError as error:
            if self._unacknowledged is not None and is_refusal(error):
                raise PushPartlyTaken(named.clock, named.seq, str(error)) from error
            raise
        finally:
            if self._unacknowledged is not None:
                self._unacknowledged = named.copied()

    def _write(self, named: Named, may_forget: bool) -> Operation[dict[str, Any]]:
        """Ask each owner once. `may_forget`: let go of what every one of them refuses."""
        in_full: dict[str, Callable[[], Any]] = {}
        if named.clears is None:
            routed = named.routed(self._view.map)
            bodies: dict[str, Any] = {server: self._body(named, parts) for server, parts in routed.items()}
            naming = [server for server, parts in routed.items() if any([part.pull for part in parts])]
            in_full = {server: partial(self._in_full, named, routed[server]) for server in naming}
        else:
            clear = ClearTable(self._view.fence(named.clock), named.seq, named.clears)
            bodies = dict.fromkeys(self._peers.servers(), clear)
        return self._peers.ask(bodies, self._forget if may_forget else None, in_full)

    def _in_full(self, named: Named, parts: Sequence[Part]) -> Push | Assign:
        """Return what a server gets that does not know the pulls which a push names."""
        for part in parts:
            self._key_lists.forget(named.merged[part.position].wanted.table, part.pull)
        return self._body(named, [part._replace(pull=0) for part in parts])

    def _forget(self) -> None:
        """Let go of a push that nobody took: its name stays unused, and others may follow."""
        self._unacknowledged = None

    def _body(self, named: Named, parts: Sequence[Part]) -> Push | Assign:
        fence, tables = self._view.fence(named.clock), named.rows_of(parts, self._lend)
        if named.assign:
            return Assign(fence, named.seq, tables, named.only_absent, named.columns)
        return Push(fence, named.seq, tables, self._tables.changed([part.table for part in tables]))
