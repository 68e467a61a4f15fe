"""A shard whose tables travel compressed: what it answers, what it takes, and what it refuses."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from conversation import Conversation, ids
from naive.table import NaiveTable
from naive.wire_rows import travelled
from ps_proto.errors import InvalidRequest, RequestTooLarge
from ps_proto.requests import Assign, Fence, Finish, Finished, Pull, Pulled, Push, TableIds, TableRows
from ps_proto.values import SGD, Adagrad, Async, Mode, Normal, Sync, TableSpec
from ps_server.events import Asked, Refuse
from ps_server.shard.blocks import rows_per_block
from ps_server.shard.shard import Shard
from ps_server.shard.table import Table
from sharding.wire_format import FORMATS
from sharding.wire_rows import decode_rows, encode_rows

Rows = npt.NDArray[np.float32]

COMPRESSED = ["bfloat16", "int8"]
each_wire = pytest.mark.parametrize("wire", COMPRESSED)
NOW = Fence(1, 0, 0, 0)
DIM = 5


def talk_of(wire: str, mode: Mode | None = None, **options: Any) -> Conversation:
    return Conversation(mode or Async(), 1, (TableSpec("user", DIM, SGD(lr=1.0), wire=wire, **options),))


def some(count: int, seed: int = 0) -> tuple[npt.NDArray[np.uint64], Rows]:
    rng = np.random.default_rng(seed)
    return rng.permutation(count).astype(np.uint64), rng.standard_normal((count, DIM)).astype(np.float32)


def pulled(talk: Conversation, wanted: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    answer = talk.get(Pull(NOW, (TableIds("user", wanted),)))
    assert isinstance(answer, Pulled)
    return answer.rows[0]


@each_wire
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_rows_that_are_there_and_that_are_not_are_read_compressed(wire: str, dtype: str, max_norm: float | None) -> None:
    spec = TableSpec("user", 17, Adagrad(), Normal(), seed=4, wire=wire, dtype=dtype, max_norm=max_norm)
    table, twin = Table(spec), NaiveTable(spec)
    held = np.arange(0, 60, 2, dtype=np.uint64)
    given = np.random.default_rng(1).standard_normal((held.size, 17)).astype(np.float32)
    table.assign(held, given)
    twin.assign(held.tolist(), given)
    wanted = np.random.default_rng(2).integers(0, 60, 150).astype(np.uint64)
    rows = decode_rows(table.pull(wanted))
    assert rows.tobytes() == b"".join([travelled(row, wire).tobytes() for row in twin.pull(wanted.tolist())])


@each_wire
@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_more_rows_than_a_block_are_read_as_each_is_alone(wire: str, beyond: int) -> None:
    table = Table(TableSpec("user", 300, SGD(), Normal(), wire=wire))
    wanted = np.arange(2 * rows_per_block(300) + beyond, dtype=np.uint64)
    table.assign(wanted[::3].copy(), np.ones((wanted[::3].size, 300), np.float32))
    rows = table.pull(wanted)
    assert rows[[0, 1, -2, -1]].tobytes() == b"".join([table.pull(wanted[[place]]).tobytes() for place in (0, 1, -2, -1)])


@each_wire
@pytest.mark.parametrize("mode", [Sync(), Async()], ids=str)
def test_gradients_are_applied_as_they_were_sent(wire: str, mode: Mode) -> None:
    talk = talk_of(wire, mode)
    wanted, gradients = some(20)
    talk.get(Push(NOW, 1, (TableRows("user", wanted, encode_rows(gradients, wire)),)))
    if isinstance(mode, Sync):
        talk.get(Finish(NOW, Finished(0)))
    _, held = talk.shard.catalog.tables["user"].snapshot().read(0, 20)
    want = np.stack([-travelled(row, wire) for row in gradients[np.argsort(wanted)]])
    np.testing.assert_array_equal(held, want)


@each_wire
@pytest.mark.parametrize("mode", [Sync(), Async()], ids=str)
def test_what_is_borrowed_is_the_askers_again_after_the_answer(wire: str, mode: Mode) -> None:
    talk = talk_of(wire, mode)
    wanted, gradients = some(4)
    sent = encode_rows(gradients, wire)
    talk.shard.handle(Asked(10**6, Push(NOW, 1, (TableRows("user", wanted, sent),)), is_borrowed=True), 0.0)
    sent[...] = 0
    if isinstance(mode, Sync):
        talk.get(Finish(NOW, Finished(0)))
    _, held = talk.shard.catalog.tables["user"].snapshot().read(0, 4)
    np.testing.assert_array_equal(held, np.stack([-travelled(row, wire) for row in gradients[np.argsort(wanted)]]))


@pytest.mark.parametrize("wire", FORMATS)
def test_rows_that_travel_in_another_way_than_the_tables_are_refused(wire: str) -> None:
    talk = talk_of(wire)
    wanted, gradients = some(3)
    form = FORMATS[wire]
    for other in FORMATS:
        if other != wire:
            with pytest.raises(InvalidRequest) as caught:
                talk.get(Push(NOW, 1, (TableRows("user", wanted, encode_rows(gradients, other)),)))
            want = f"must be {form.dtype}{list(form.shape(3, DIM))}, since the table's wire is {wire!r}"
            assert want in str(caught.value)
    with pytest.raises(InvalidRequest, match="must be"):
        talk.get(Push(NOW, 1, (TableRows("user", wanted, encode_rows(gradients, wire)[:, 1:].copy()),)))
    assert len(talk.shard.catalog.tables["user"]) == 0


@each_wire
@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_gradients_that_are_not_finite_are_refused(wire: str, number: float) -> None:
    talk = talk_of(wire)
    wanted, gradients = some(3)
    gradients[1, 2] = number
    with pytest.raises(InvalidRequest, match="not finite"):
        talk.get(Push(NOW, 1, (TableRows("user", wanted, encode_rows(gradients, wire)),)))


def test_a_scale_that_makes_rows_infinite_is_refused() -> None:
    talk = talk_of("int8")
    wanted, gradients = some(1)
    sent = encode_rows(gradients, "int8")
    sent[0, :4] = np.frombuffer(np.float32(3e38).tobytes(), np.uint8)
    with pytest.raises(InvalidRequest, match="not finite"):
        talk.get(Push(NOW, 1, (TableRows("user", wanted, sent),)))


@each_wire
def test_assignments_and_exports_are_float32(wire: str) -> None:
    talk = talk_of(wire)
    wanted, rows = some(9)
    talk.get(Assign(NOW, 1, (TableRows("user", wanted, rows),)))
    _, held = talk.shard.catalog.tables["user"].snapshot().read(0, 9)
    assert held.tobytes() == rows[np.argsort(wanted)].tobytes()
    with pytest.raises(InvalidRequest, match=r"must be float32\[9, 5\]"):
        talk.get(Assign(NOW, 2, (TableRows("user", wanted, encode_rows(rows, wire)),)))


@pytest.mark.parametrize(("wire", "row_bytes"), [("float32", 4 * DIM), ("bfloat16", 2 * DIM), ("int8", 4 + DIM)])
def test_what_travels_is_what_is_counted_and_limited(wire: str, row_bytes: int) -> None:
    talk = talk_of(wire)
    wanted, gradients = some(10)
    talk.get(Push(NOW, 1, (TableRows("user", wanted, encode_rows(gradients, wire)),)))
    pulled(talk, wanted)
    counted = talk.stats().tables["user"]
    assert (counted["bytes_in"], counted["bytes_out"]) == (10 * (8 + row_bytes) + 10 * 8, 10 * row_bytes)
    talk.shard.reader.bytes_max = 10 * row_bytes
    pulled(talk, wanted)
    with pytest.raises(RequestTooLarge):
        talk.get(Pull(NOW, (ids("user", *range(11)),)))


def test_a_table_that_travels_in_another_way_is_another_table() -> None:
    shard = Shard("server-0")
    spec = TableSpec("user", 4, wire="int8")
    shard.catalog.open(spec)
    shard.catalog.tables["user"].assign(np.array([1], np.uint64), np.ones((1, 4), np.float32))
    with pytest.raises(InvalidRequest, match="wire='int8'"):
        shard.catalog.open(TableSpec("user", 4))
    assert not [effect for effect in shard.handle(Asked(1, Finish(NOW)), 0.0) if not isinstance(effect, Refuse)]
