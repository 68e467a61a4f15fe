"""What reads rows: pulls and exports. One that may not read yet is parked; nothing here changes a row (R18, R19)."""

from ps_proto.errors import ParameterServerError, RequestTooLarge, RowsUnset
from ps_proto.requests import OBSERVER, CloseExport, Done, ExportOpened, ExportPart, OpenExport, Pull, Pulled, ReadExport
from ps_proto.values import Assigned
from ps_server.events import Body, MakeRows
from ps_server.shard.catalog import Catalog
from ps_server.shard.counters import Counters
from ps_server.shard.exports import Exports
from ps_server.shard.gate import Gate
from ps_server.shard.key_lists import KeyLists
from ps_server.shard.membership import Membership
from ps_server.shard.parking import Parking, Wait
from ps_server.shard.steps import Steps
from sharding.arrays import empty_aligned
from sharding.wire_format import FORMATS


class Reader:
    """Turns of the requests that read. `bytes_max`: of the rows that one of them gets."""

    def __init__(
        self,
        membership: Membership,
        catalog: Catalog,
        steps: Steps,
        parking: Parking,
        exports: Exports,
        key_lists: KeyLists,
        counters: Counters,
        bytes_max: int,
    ) -> None:
        self.gate = Gate(membership.server, steps)
        self.bytes_max = bytes_max
        self._membership = membership
        self._catalog = catalog
        self._steps = steps
        self._parking = parking
        self._exports = exports
        self._key_lists = key_lists
        self._counters = counters

    # --- pulls ---------------------------------------------------------------------------------------------------------------

    def pull(self, request: int, pull: Pull, now_s: float, make_rows: MakeRows = empty_aligned, is_borrowed: bool = False) -> Body | None:
        """Take what the pull says is finished; answer it once its tables may be read. `make_rows`, `is_borrowed`: as in Asked."""
        self._membership.check(pull.fence)
        self._check_size(sum([part.ids.size * self._row_size_bytes(part.table) for part in pull.tables]))
        for part in pull.tables:
            self._membership.check_owned(part.table, part.ids)
        if pull.finished is not None:
            self._steps.learn(pull.fence.rank, pull.finished)

        def attempt() -> Pulled | None:
            return self._try_pull(pull, make_rows, is_borrowed)

        wait = Wait(pull.fence, pull.wait_s, attempt, lambda after_s: self._timeout(pull, after_s))
        return self._parking.answer_or_park(request, wait, now_s)

    def _row_size_bytes(self, table: str) -> int:
        """Return what a row takes in an answer."""
        spec = self._catalog.get(table).spec
        return FORMATS[spec.wire].row_size_bytes(spec.dim)

    def _check_size(self, nbytes: int) -> None:
        """Raise RequestTooLarge for an answer of more rows than one may have."""
        if nbytes > self.bytes_max:
            raise RequestTooLarge(self._membership.server, nbytes, self.bytes_max)

    def _try_pull(self, pull: Pull, make_rows: MakeRows, is_borrowed: bool) -> Pulled | None:
        tables = [self._catalog.get(part.table) for part in pull.tables]
        if not all([self.gate.may_read(self._catalog.mode(table), pull.fence, pull.at_step) for table in tables]) or self._unset(pull):
            return None
        read = [table.pull_with_places(part.ids, make_rows) for table, part in zip(tables, pull.tables, strict=True)]
        self._counters.pulls += 1
        if pull.fence.rank != OBSERVER and tables:
            self._counters.saw_staleness(pull.fence.clock - self._steps.clocks.min_clock)
        for table, part, (rows, places) in zip(tables, pull.tables, read, strict=True):
            if pull.fence.rank != OBSERVER and not self._catalog.is_synchronous(part.table):
                self._steps.reads.keep(table, pull.fence, part.ids, rows, is_borrowed)
            if pull.fence.rank != OBSERVER and part.pull:
                self._key_lists.keep(pull.fence, part.table, part.pull, part.ids, places)
            counters = self._counters.table(part.table)
            counters.rows_pulled += part.ids.size
            counters.bytes_in += part.ids.nbytes
            counters.bytes_out += rows.nbytes
        return Pulled(tuple([rows for rows, _ in read]), self._steps.step)

    def _unset(self, pull: Pull) -> tuple[str, int] | None:
        """Return the first table, and how many of the rows asked for, that rank 0 has yet to assign (R18)."""
        for part in pull.tables:
            table = self._catalog.tables[part.table]
            if isinstance(table.spec.initializer, Assigned):
                absent = table.count_absent(part.ids)
                if absent:
                    return part.table, absent
        return None

    def _timeout(self, pull: Pull, after_s: float) -> ParameterServerError:
        for part in pull.tables:
            mode = self._catalog.mode(self._catalog.tables[part.table])
            if not self.gate.may_read(mode, pull.fence, pull.at_step):
                return self.gate.timeout(mode, pull.fence, pull.at_step, after_s)
        unset = self._unset(pull)
        assert unset is not None
        return RowsUnset(unset[0], unset[1], after_s)

    # --- exports -------------------------------------------------------------------------------------------------------------

    def open_export(self, request: int, export: OpenExport, now_s: float) -> Body | None:
        """Take a snapshot once the table may be read."""
        self._membership.check(export.fence)
        mode = self._catalog.mode(self._catalog.get(export.table))

        def attempt() -> ExportOpened | None:
            table = self._catalog.get(export.table)
            columns = table.columns if export.with_state else ()
            if not self.gate.may_read(mode, export.fence, export.at_step):
                return None
            return ExportOpened(*self._exports.open(table, now_s, export.with_state), self._steps.step, columns)

        wait = Wait(export.fence, export.wait_s, attempt, lambda after_s: self.gate.timeout(mode, export.fence, export.at_step, after_s))
        return self._parking.answer_or_park(request, wait, now_s)

    def read_export(self, request: int, read: ReadExport, now_s: float) -> ExportPart:
        """Return the next rows of a snapshot."""
        self._membership.check(read.fence)
        return self._exports.read(read.export, read.rows_begin, read.rows_max, now_s)

    def close_export(self, request: int, close: CloseExport, now_s: float) -> Done:
        """Give a snapshot back; whoever has its number may."""
        self._exports.close(close.export)
        return Done(self._steps.step)
