"""Snapshots that readers hold open."""

import numpy as np
import pytest

from conversation import USER, rows
from ps_proto.errors import InvalidRequest
from ps_server.shard.exports import IDLE_S, Exports
from ps_server.shard.table import Table

PARAMETERS = USER.optimizer.parameters()


def table_of(values: dict[int, float]) -> Table:
    table = Table(USER)
    part = rows("user", values)
    table.assign(part.ids, part.rows)
    return table


def test_rows_come_ascending_by_id_in_parts_of_any_size() -> None:
    exports = Exports("server-0")
    number, count = exports.open(table_of({2**64 - 1: 3.0, 5: 1.0, 2**63: 2.0}), 0.0)
    assert count == 3
    first, second = exports.read(number, 0, 2, 0.0), exports.read(number, 2, 2**63 - 1, 0.0)
    assert [first.ids.tolist(), second.ids.tolist()] == [[5, 2**63], [2**64 - 1]]
    assert [first.rows.tolist(), second.rows.tolist()] == [[[1.0], [2.0]], [[3.0]]]
    assert exports.read(number, 3, 1, 0.0).ids.size == 0


def test_a_snapshot_stays_while_the_table_goes_on() -> None:
    table, exports = table_of({5: 1.0}), Exports("server-0")
    number, _ = exports.open(table, 0.0)
    gradient = rows("user", {5: 1.0, 6: 1.0})
    table.update(gradient.ids, gradient.rows, PARAMETERS)
    part = exports.read(number, 0, 10, 0.0)
    assert (part.ids.tolist(), part.rows.tolist()) == ([5], [[1.0]])
    assert table.pull(np.array([5], np.uint64)).tolist() == [[0.0]]


def test_an_empty_table_is_exported_as_nothing() -> None:
    exports = Exports("server-0")
    number, count = exports.open(table_of({}), 0.0)
    assert count == 0
    assert exports.read(number, 0, 5, 0.0).rows.shape == (0, 1)


@pytest.mark.parametrize(("rows_begin", "rows_max"), [(-1, 1), (2, 1), (0, 0), (0, -5)])
def test_a_part_beyond_the_snapshot_is_refused(rows_begin: int, rows_max: int) -> None:
    exports = Exports("server-0")
    number, _ = exports.open(table_of({5: 1.0}), 0.0)
    with pytest.raises(InvalidRequest):
        exports.read(number, rows_begin, rows_max, 0.0)


def test_closing_ends_it_and_a_second_time_is_fine() -> None:
    exports = Exports("server-0")
    number, _ = exports.open(table_of({5: 1.0}), 0.0)
    exports.close(number)
    exports.close(number)
    with pytest.raises(InvalidRequest, match="not open"):
        exports.read(number, 0, 1, 0.0)
    assert len(exports) == 0


def test_an_idle_one_is_dropped_and_a_read_one_is_not() -> None:
    exports, table = Exports("server-0"), table_of({5: 1.0})
    idle, _ = exports.open(table, 0.0)
    used, _ = exports.open(table, 0.0)
    exports.read(used, 0, 1, 30.0)
    assert exports.deadline_s() == IDLE_S
    exports.drop_idle(IDLE_S - 0.1)
    assert len(exports) == 2
    exports.drop_idle(IDLE_S)
    assert len(exports) == 1
    assert exports.deadline_s() == 30.0 + IDLE_S
    exports.read(used, 0, 1, IDLE_S)
    with pytest.raises(InvalidRequest):
        exports.read(idle, 0, 1, IDLE_S)


def test_one_is_idle_at_the_very_time_that_was_said() -> None:
    exports, used_s = Exports("server-0"), 495.43508709194094
    assert used_s + IDLE_S - used_s < IDLE_S  # floats round
    exports.open(table_of({1: 1.0}), used_s)
    due_s = exports.deadline_s()
    assert due_s is not None
    exports.drop_idle(due_s)
    assert len(exports) == 0
