"""Records that a shard exports and takes back, and tables that it clears, as conversations.

Rows of "user" and "item" are 0 at first and SGD has lr 1, so a row is minus what was pushed to it.
"""

import numpy as np
import pytest

from conversation import ITEM, USER, Conversation, rows
from ps_proto.errors import InvalidRequest, UnknownTable
from ps_proto.requests import Assign, ClearTable, ColumnLayout, ExportOpened, ExportPart, OpenExport, ReadExport, TableRows
from ps_proto.values import SGD, Adam, Assigned, Async, BoundedStaleness, Mode, Sync, TableSpec

MODES: list[Mode] = [Sync(), Async(), BoundedStaleness(1)]
START = TableSpec("dense", 1, SGD(lr=1.0), Assigned())


MOMENTS = TableSpec("user", 1, Adam(lr=1.0))
LAYOUT = (ColumnLayout("m", 1, "float32"), ColumnLayout("v", 1, "float32"), ColumnLayout("t", 1, "uint32"))


def record(id: int, row: float, m: float, v: float, t: int) -> TableRows:
    words = np.array([[row, m, v, 0.0]], np.float32)
    words.view(np.uint32)[0, 3] = t
    return TableRows("user", np.array([id], np.uint64), words)


def records_of(talk: Conversation) -> dict[int, list[float]]:
    """Return all records of "user" by id; t as the number that it is."""
    opened = talk.get(OpenExport(talk.fence(), "user", with_state=True))
    assert isinstance(opened, ExportOpened)
    assert opened.columns == LAYOUT
    part = talk.get(ReadExport(talk.fence(), opened.export, 0, 100))
    assert isinstance(part, ExportPart)
    return {id: [*words[:3].tolist(), int(words.view(np.uint32)[3])] for id, words in zip(part.ids.tolist(), part.rows, strict=True)}


def test_records_are_exported_with_the_state_that_training_left() -> None:
    talk = Conversation(Async(), tables=(MOMENTS,))
    talk.push(0, 0, {7: 2.0})
    (row, m, v, t) = records_of(talk)[7]
    assert [row, m, v, t] == pytest.approx([-1.0, 0.2, 0.004, 1])


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_records_are_restored_at_once_and_once(mode: Mode) -> None:
    talk = Conversation(mode, world_size=1, tables=(MOMENTS,))
    restore = Assign(talk.fence(0), 1, (record(7, 5.0, 0.5, 0.25, 2**32 - 1),), columns=LAYOUT)
    talk.get(restore)
    assert records_of(talk) == {7: [5.0, 0.5, 0.25, 2**32 - 1]}
    talk.assign(0, 0, {7: 1.0}, seq=2)
    talk.get(restore)  # late
    assert records_of(talk) == {7: [1.0, 0.5, 0.25, 2**32 - 1]}


def test_a_restored_row_trains_on_as_the_one_that_was_exported() -> None:
    one, other = (Conversation(Async(), tables=(MOMENTS,)) for _ in range(2))
    for seq in (1, 2):
        one.push(0, 0, {7: 2.0, 8: 1.0}, seq)
    (row, m, v, t) = records_of(one)[7]
    other.get(Assign(other.fence(0), 1, (record(7, row, m, v, int(t)),), columns=LAYOUT))
    for talk in (one, other):
        talk.push(0, 0, {7: -3.0}, seq=3)
    assert other.read(7) == one.read(7)


@pytest.mark.parametrize(
    ("columns", "part"),
    [
        (LAYOUT[:2], record(7, 5.0, 0.5, 0.25, 1)),
        ((LAYOUT[1], LAYOUT[0], LAYOUT[2]), record(7, 5.0, 0.5, 0.25, 1)),
        (LAYOUT, rows("user", {7: 1.0})),
        ((), record(7, 5.0, 0.5, 0.25, 1)),
        (LAYOUT, record(7, np.nan, 0.5, 0.25, 1)),
    ],
    ids=["fewer", "order", "width", "unsaid", "nan"],
)
def test_records_that_do_not_fit_change_nothing(columns: tuple[ColumnLayout, ...], part: TableRows) -> None:
    talk = Conversation(Async(), tables=(MOMENTS,))
    talk.push(0, 0, {7: 2.0})
    before = records_of(talk)
    with pytest.raises(InvalidRequest):
        talk.get(Assign(talk.fence(0), 2, (part,), columns=columns))
    assert records_of(talk) == before


def test_state_need_not_be_finite() -> None:
    talk = Conversation(Async(), tables=(MOMENTS,))
    talk.get(Assign(talk.fence(0), 1, (record(7, 5.0, np.inf, 0.25, 0x7F800000),), columns=LAYOUT))
    assert records_of(talk) == {7: [5.0, np.inf, 0.25, 0x7F800000]}


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_clearing_drops_rows_and_state_at_once_and_once(mode: Mode) -> None:
    talk = Conversation(mode, tables=(MOMENTS, ITEM))
    for table in ("user", "item"):
        talk.assign(0, 0, {7: 5.0, 2**64 - 1: 6.0}, seq=1 + (table == "item"), table=table)
    clear = ClearTable(talk.fence(0), 3, "user")
    talk.get(clear)
    assert records_of(talk) == {}
    assert talk.read(7, 2**64 - 1, table="item") == [5.0, 6.0]
    talk.assign(0, 0, {7: 1.0}, seq=4)
    talk.assign(1, 0, {8: 2.0})
    talk.get(clear)  # late: it must not undo what followed, whoever did it
    assert records_of(talk) == {7: [1.0, 0.0, 0.0, 0], 8: [2.0, 0.0, 0.0, 0]}


def test_an_export_that_is_open_does_not_see_the_clearing() -> None:
    talk = Conversation(Async())
    talk.push(0, 0, {7: 1.0})
    opened = talk.get(OpenExport(talk.fence(), "user"))
    assert isinstance(opened, ExportOpened)
    talk.get(ClearTable(talk.fence(0), 2, "user"))
    talk.push(0, 0, {8: 1.0}, seq=3)
    part = talk.get(ReadExport(talk.fence(), opened.export, 0, 100))
    assert isinstance(part, ExportPart)
    assert (part.ids.tolist(), part.rows.tolist()) == ([7], [[-1.0]])


def test_who_may_not_write_may_not_clear() -> None:
    talk = Conversation(Async(), tables=(START, USER))
    talk.assign(0, 0, {7: 5.0}, table="dense")
    for clear, reason in (
        (ClearTable(talk.fence(), 1, "user"), "observer"),
        (ClearTable(talk.fence(1), 1, "dense"), "rank 0"),
        (ClearTable(talk.fence(1), 0, "user"), "seq"),
        (ClearTable(talk.fence(1, 5), 1, "user"), "clock"),
    ):
        with pytest.raises(InvalidRequest, match=reason):
            talk.get(clear)
    with pytest.raises(UnknownTable):
        talk.get(ClearTable(talk.fence(1), 1, "nobody's"))
    assert talk.read(7, table="dense") == [5.0]
