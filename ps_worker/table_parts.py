"""A whole table over a connection, in parts of some MiB, ids ascending over all of them, as of the instant of the first."""

from collections.abc import Generator, Sequence
from contextlib import closing

import numpy as np

from ps_proto.requests import Ids, Rows
from ps_worker.connection import Connection
from ps_worker.exporting import TableExport, open_export
from ps_worker.records import Records, unpack

Part = tuple[Ids, Rows]  # ids uint64[n], rows float32[n, dim]


def rows_in_parts(connection: Connection, table: str) -> Generator[Part, None, None]:
    """Yield every row held. A reader that wants no more closes the generator: that gives the servers' snapshots back."""
    connection.check_open("export")
    yield from _parts(connection, _open(connection, table, with_state=False))


def records_in_parts(connection: Connection, table: str) -> Generator[Records, None, None]:
    """Yield every row held with its state columns, otherwise as `rows_in_parts`."""
    connection.check_open("export")
    export = _open(connection, table, with_state=True)
    with closing(_parts(connection, export)) as parts:
        for ids, records in parts:
            yield unpack(ids, records, export.columns)


def join_parts(parts: Sequence[Part], dim: int) -> Part:
    """Return the parts of a table as one, which may be empty."""
    ids = np.concatenate([np.empty(0, np.uint64), *(ids for ids, _ in parts)])
    return ids, np.concatenate([np.empty((0, dim), np.float32), *(rows for _, rows in parts)])


def _open(connection: Connection, table: str, with_state: bool) -> TableExport:
    connection.know(table)
    connection.capture.mark()
    return connection.run(open_export(connection.worker, table, with_state))


def _parts(connection: Connection, export: TableExport) -> Generator[Part, None, None]:
    while (part := connection.run(export.next_part())) is not None:
        try:
            yield part
        except GeneratorExit:  # the reader wants no more
            if not connection.is_closed:
                connection.run(export.close())
            raise
        connection.check_open("export")
    connection.run(export.close())
