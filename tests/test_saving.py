"""What a server writes: its instant, piece by piece, in files that say what is in them, the one that names the others last."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dict_shard import ITEM, USER, DictShard, run_for
from dict_store import DictStore
from made_checkpoints import ROOT, map_of, run_on, task_of
from ps_proto.errors import Recovering, StorageFailed
from ps_proto.orders import PartWritten
from ps_proto.requests import Finished
from ps_server.storage.arrays_file import checksum, decode
from ps_server.storage.layout import names_of, part_of, resume_of, rows_of
from ps_server.storage.part import Part, parse_part
from ps_server.storage.publishing import publish
from ps_server.storage.saving import save_part
from ps_server.tasks import Published, ReadPiece, SavePart

FILE_BYTES, PIECE_BYTES = 200, 70  # of "user" a row is 24 bytes: files of 8 rows, in pieces of 2
TASK = SavePart(ROOT, 12, 0, "server-0")


def shard_with(num_rows: int) -> DictShard:
    shard = DictShard("server-0", map_of(1))
    for key in range(num_rows):
        shard.set("user", key, (key, key + 1, key + 2, key + 3))
    shard.set("item", 2**64 - 1, (1, 2, 3, 4, 5, 2**32 - 1))
    shard.names = {1: {3: 2**33 + 1}, 0: {}}
    shard.clocks, shard.left = {0: 7, 1: 6}, {1: 6}
    shard.facts = {0: Finished(7, resume=b"state"), 1: Finished(6)}
    return shard


def saved(shard: DictShard, store: DictStore, **kwargs: Any) -> tuple[PartWritten, Part]:
    shard.save()
    written = run_for(shard, save_part(TASK, FILE_BYTES, PIECE_BYTES), store, **kwargs)
    data = store.files[written.file]
    assert (written.size_bytes, written.checksum) == (len(data), checksum(data))
    return written, parse_part(data, written.file)


def arrays_in(store: DictStore, path: str) -> dict[str, Any]:
    return {name: array.tolist() for name, array in decode(memoryview(store.files[path]), path).items()}


def test_a_part_is_all_of_its_instant_and_says_so() -> None:
    store = DictStore()
    written, part = saved(shard_with(20), store)
    assert (part.number, part.server, part.server_incarnation, part.timeline, part.map_version) == (12, "server-0", 5, 0, 4)
    assert (part.step, part.job, part.clocks, part.facts, part.left) == (8, 3, {0: 7, 1: 6}, {0: 7, 1: 6}, {1: 6})
    assert (part.counters, part.stall_s) == ({"user": {"rows_pushed": 3.0}}, 0.25)
    user, item = part.tables
    assert [(table.name, table.is_full, table.record_words, table.rows) for table in (user, item)] == [
        ("user", True, 4, 20),
        ("item", True, 6, 1),
    ]
    assert [(entry.file, entry.rows) for entry in user.parts] == [(rows_of(12, 0, 0, i), rows) for i, rows in enumerate((8, 8, 4))]
    assert arrays_in(store, rows_of(12, 0, 0, 2)) == {
        "ids": [16, 17, 18, 19],
        "records": [[key, key + 1, key + 2, key + 3] for key in (16, 17, 18, 19)],
    }
    assert arrays_in(store, rows_of(12, 0, 1, 0)) == {"ids": [2**64 - 1], "records": [[1, 2, 3, 4, 5, 2**32 - 1]]}
    names = arrays_in(store, names_of(12, 0))
    assert (names["ranks"], names["buckets"]) == ([1, 0], list(range(16_384)))
    assert [sum(names["names"][0]), names["names"][0][3], sum(names["names"][1])] == [2**33 + 1, 2**33 + 1, 0]
    assert arrays_in(store, resume_of(12, 0)) == {"rank-0": list(b"state"), "rank-1": []}
    row_bytes = sum([len(store.files[entry.file]) for entry in (*user.parts, *item.parts)])
    assert written == PartWritten(
        "server-0", part_of(12, 0), written.size_bytes, written.checksum, 8, 0, 4, rows=21, nbytes=row_bytes, stall_s=0.25
    )
    for file in part.files():
        assert (file.size_bytes, file.checksum) == (len(store.files[file.file]), checksum(store.files[file.file]))
    assert set(store.files) == {file.file for file in part.files()} | {part_of(12, 0)}


def test_no_answer_of_the_core_is_longer_than_a_piece_and_no_file_than_its_limit() -> None:
    store, shard = DictStore(), shard_with(50)
    saved(shard, store)
    asked = [body for body in shard.log if isinstance(body, ReadPiece)]
    assert {body.bytes_max for body in asked} == {2 * 24, 2 * 32}  # whole rows, of both tables
    assert max([body.bytes_max for body in asked]) <= PIECE_BYTES
    assert {body.number for body in asked} == {12}
    shard.save(full=True)
    run_for(shard, save_part(TASK, file_bytes=1, piece_bytes=1), store)  # a row is the least there is
    part = parse_part(store.files[part_of(12, 0)], "")
    assert [entry.rows for entry in part.tables[0].parts] == [1] * 50


def test_a_table_of_few_rows_is_not_asked_often() -> None:
    store, shard = DictStore(), DictShard("server-0", map_of(1))
    shard.set("user", 1, (1, 2, 3, 4))
    shard.save()
    run_for(shard, save_part(TASK), store)
    assert [body.table for body in shard.log if isinstance(body, ReadPiece)] == [0, 0, 0, 1]


def test_tables_without_rows_and_servers_without_tables_are_parts_too() -> None:
    store = DictStore()
    _, part = saved(DictShard("server-0", map_of(1)), store)
    assert [(table.rows, table.parts) for table in part.tables] == [(0, ()), (0, ())]
    written, part = saved(DictShard("server-0", map_of(1), ()), store)
    assert (part.tables, written.rows, written.nbytes) == ((), 0, 0)


def test_an_increment_has_what_was_touched_and_says_that_it_is_one() -> None:
    store, shard = DictStore(), shard_with(20)
    saved(shard, store)
    shard.set("user", 3, (9, 9, 9, 9))
    shard.clear("item")
    _, part = saved(shard, store)
    assert [(table.is_full, table.rows) for table in part.tables] == [(False, 1), (True, 0)]
    assert arrays_in(store, rows_of(12, 0, 0, 0)) == {"ids": [3], "records": [[9, 9, 9, 9]]}


def test_parts_make_a_checkpoint() -> None:
    store = DictStore()
    parts = []
    for shard in range(2):
        twin = DictShard(f"server-{shard}", map_of(2))
        twin.save()
        parts.append(run_for(twin, save_part(SavePart(ROOT, 12, shard, f"server-{shard}")), store))
    assert isinstance(run_on(store, publish(task_of(12, parts, tables=(USER, ITEM)))), Published)


def test_part_json_is_the_last_file_and_nothing_is_begun_after_a_failure() -> None:
    store, shard = DictStore(), shard_with(20)
    saved(shard, store)
    num_puts = len(store.files)
    assert list(store.files)[-1] == part_of(12, 0)
    for puts in range(num_puts):
        full = DictStore()
        full.puts_left = puts
        shard.save(full=True)
        with pytest.raises(StorageFailed, match="No space left on device"):
            run_for(shard, save_part(TASK, FILE_BYTES, PIECE_BYTES), full)
        assert list(full.files) == list(store.files)[:puts]


def test_what_the_core_refuses_ends_it() -> None:
    store, shard = DictStore(), shard_with(20)
    shard.save()
    pieces = iter(range(3))

    class Refusing:
        def ask(self, body: Any) -> Any:
            if isinstance(body, ReadPiece) and next(pieces, None) is None:
                raise Recovering("server-0", "it was rolled back")
            return shard.ask(body)

    refusing: Any = Refusing()
    with pytest.raises(Recovering):
        run_for(refusing, save_part(TASK, FILE_BYTES, PIECE_BYTES), store)
    assert part_of(12, 0) not in store.files


def test_the_next_file_is_read_out_while_one_is_written() -> None:
    store, shard = DictStore(), shard_with(20)
    order: list[str] = []

    def start(work: Callable[[], Any]) -> Callable[[], Any]:
        order.append("begun")
        work()
        return lambda: order.append("written")

    class Noting:
        def ask(self, body: Any) -> Any:
            order.append(type(body).__name__)
            return shard.ask(body)

    shard.save()
    noting: Any = Noting()
    run_for(noting, save_part(TASK, file_bytes=1 << 20, piece_bytes=1 << 18), store, start)
    table = ["ReadPiece"] * 3  # all rows; and two that say that there are no more
    assert order == [
        *["OpenPart", "begun", "written", "begun"],  # names, resume
        *[*table, "written", "begun"],  # of two tables
        *[*table, "written", "begun"],
        *["written", "ReadStall", "begun", "written"],  # part.json once all others are durable
    ]


def test_records_are_written_from_where_the_core_has_put_them() -> None:
    """Every copy of the rows would cost as much as writing them to the page cache."""
    shard, written = shard_with(3), list[Any]()
    shard.save()
    pieces: list[np.ndarray[Any, Any]] = []

    class Keeping(DictStore):
        def put(self, path: str, data: Any) -> None:
            if path == rows_of(12, 0, 0, 0):
                written.extend(data)
            super().put(path, data)

    class Noting:
        def ask(self, body: Any) -> Any:
            piece = shard.ask(body)
            if isinstance(body, ReadPiece) and body.table == 0 and not pieces:
                pieces.append(piece.records)
            return piece

    noting: Any = Noting()
    run_for(noting, save_part(TASK, FILE_BYTES, PIECE_BYTES), Keeping())
    assert any([np.shares_memory(np.frombuffer(buffer, np.uint8), pieces[0]) for buffer in written])
