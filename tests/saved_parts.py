"""A part of a checkpoint as its task reads it, without a disk.

save = begin(talk, 1)                   # the coordinator's order
part = read_part(talk, work_of(talk))   # what the task reads; the shard hears of its end by `finish`
"""

from collections.abc import Iterator
from dataclasses import dataclass

from conversation import Conversation
from ps_proto.orders import AskCheckpoint, BeginCheckpoint, CancelCheckpoint, CheckpointState, PartWritten
from ps_proto.requests import Done
from ps_server.events import Work
from ps_server.tasks import OpenPart, PartHead, Piece, ReadPiece, SavePart

ROOT = "the root"

Records = dict[int, tuple[int, ...]]  # id -> the words of its record


@dataclass(frozen=True)
class ReadPart:
    """A part, its rows by table."""

    head: PartHead
    rows: dict[str, Records]

    def is_full(self, table: str) -> bool:
        return next(head.is_full for head in self.head.tables if head.spec.name == table)


def begin(
    talk: Conversation, number: int, boundary: int = -1, base: int = -1, root: str = ROOT, tracks: bool = True, full: bool = False
) -> CheckpointState:
    state = talk.get(BeginCheckpoint(1, 0, number, root, 3, boundary, base, tracks, full))
    assert isinstance(state, CheckpointState)
    return state


def ask(talk: Conversation, number: int) -> CheckpointState:
    state = talk.get(AskCheckpoint(1, 0, number))
    assert isinstance(state, CheckpointState)
    return state


def cancel(talk: Conversation, number: int) -> None:
    assert isinstance(talk.get(CancelCheckpoint(1, 0, number)), Done)


def work_of(talk: Conversation) -> Work:
    """Return the task that saves a part; there is one."""
    (work,) = [work for work in talk.at_work if isinstance(work.task, SavePart)]
    return work


def pieces(talk: Conversation, number: int, table: int, bytes_max: int = 20) -> Iterator[Piece]:
    """Yield the pieces of a table, asking for each when it is wanted."""
    while isinstance(piece := talk.get(ReadPiece(number, table, bytes_max)), Piece):
        yield piece


def records_of(piece: Piece) -> Records:
    return {id: tuple(words) for id, words in zip(piece.ids.tolist(), piece.records.tolist(), strict=True)}


def open_part(talk: Conversation, number: int) -> PartHead:
    head = talk.get(OpenPart(number))
    assert isinstance(head, PartHead)
    return head


def read_part(talk: Conversation, work: Work) -> ReadPart:
    """Read a part as its task does, to the end."""
    assert isinstance(work.task, SavePart)
    number = work.task.number
    head = open_part(talk, number)
    rows: dict[str, Records] = {}
    for place, table in enumerate(head.tables):
        rows[table.spec.name] = {}
        for piece in pieces(talk, number, place):
            rows[table.spec.name] |= records_of(piece)
    return ReadPart(head, rows)


def written(part: ReadPart) -> PartWritten:
    """Return what the task says in the end."""
    head, rows = part.head, sum([len(rows) for rows in part.rows.values()])
    return PartWritten("server-0", "part.json", 1, "checksum", head.step, head.timeline, head.map_version, rows, 4 * rows, 0.0)


def save(talk: Conversation, number: int, base: int = -1, full: bool = False, root: str = ROOT, tracks: bool = True) -> ReadPart:
    """Take a part now, and let it be written."""
    assert begin(talk, number, base=base, full=full, root=root, tracks=tracks).phase == "taken"
    work = work_of(talk)
    part = read_part(talk, work)
    talk.end(work, written(part))
    assert ask(talk, number).phase == "written"
    return part
