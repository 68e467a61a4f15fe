"""Checkpoints as files that anybody reads: each row that a load would bring, once."""

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from dict_shard import DictShard, joined, run_for, set_row, shards_of
from dict_store import DictStore
from inprocess import InProcess
from made_checkpoints import ROOT, map_of, task_of
from ps_proto.errors import CorruptFile, InvalidRequest, NoCheckpoint, StorageFailed
from ps_proto.requests import ColumnLayout
from ps_proto.values import Adagrad, Sync, TableSpec
from ps_server.storage.export_command import export as export_verb
from ps_server.storage.exporting import Export, ExportIndex, export
from ps_server.storage.folder import Folder
from ps_server.storage.layout import rows_of
from ps_server.storage.program import Ask, perform, run
from ps_server.storage.publishing import publish
from ps_server.storage.saving import save_part
from ps_server.storage.store import Store
from ps_server.tasks import SavePart
from sharding.hashing import NUM_BUCKETS
from sharding.shard_map import ShardMap
from sim.one_by_one import one_by_one

OUT = "/exported"
STATE = {
    "user": (ColumnLayout("sum", 2, "float32"),),
    "item": (ColumnLayout("m", 2, "float32"), ColumnLayout("t", 1, "uint32")),
    "half": (ColumnLayout("sum", 1, "float32"),),
}
HALF = TableSpec("half", dim=3, optimizer=Adagrad(lr=0.1), dtype="bfloat16")


def refuse(body: object) -> object:
    raise AssertionError(f"nothing should be asked, but {body} was")


def save(shards: list[DictShard], store: Store, number: int, base: int | None = None) -> None:
    parts = []
    for shard in shards:
        shard.columns = STATE
        shard.save(full=base is None)
        parts.append(run_for(shard, save_part(SavePart(ROOT, number, shard.shard, shard.server), 200, 70), store))
    task = task_of(number, parts, base=base, shard_map=shards[0].shard_map, tables=tuple(shards[0].specs))
    run(publish(task), lambda root: store, refuse)


def exported(store: Store, wanted: Export, file_bytes: int = 500) -> tuple[ExportIndex, DictStore]:
    out = DictStore()
    index = run(export(wanted, file_bytes), {ROOT: store, OUT: out}.__getitem__, refuse)
    assert json.loads(out.files["export.json"]) == json.loads(index.encode())
    assert set(out.files) == {file.file for table in index.tables for file in table.files} | {"export.json"}
    for table in index.tables:
        assert all([len(out.files[file.file]) == file.size_bytes for file in table.files])
    return index, out


def read(index: ExportIndex, out: DictStore, name: str) -> dict[str, Any]:
    """Return a table's columns, of all its files, by safetensors' own reader."""
    (table,) = [table for table in index.tables if table.name == name]
    files = [safetensors.numpy.load(bytes(out.files[file.file])) for file in table.files]
    assert [len(arrays["ids"]) for arrays in files] == [file.rows for file in table.files]
    return {column: np.concatenate([arrays[column] for arrays in files]) for column in files[0]}


def records_of(columns: dict[str, Any], state: tuple[str, ...]) -> dict[int, tuple[int, ...]]:
    """Return the words of each record by id; each id is there once."""
    words = np.concatenate([columns[name].view(np.uint32) for name in ("rows", *[f"state.{name}" for name in state])], axis=1)
    records = {int(key): tuple(record) for key, record in zip(columns["ids"], words.tolist(), strict=True)}
    assert len(records) == len(columns["ids"])
    return records


@pytest.fixture
def checkpoint() -> tuple[DictStore, list[DictShard]]:
    """A full checkpoint 7 and an increment 8 on it, of two servers."""
    store, shards = DictStore(), shards_of(map_of(2))
    for key in range(60):
        set_row(shards, "user", 2**64 - 1 - key, (key, 2**32 - 1, 3, 4))
        set_row(shards, "item", key, (key, 1, 2, 3, 4, 2**31))
    save(shards, store, 7)
    for shard in shards:
        shard.clear("item")
    set_row(shards, "item", 3, (9, 9, 9, 9, 9, 9))
    set_row(shards, "user", 2**64 - 1, (8, 8, 8, 8))
    save(shards, store, 8, base=7)
    return store, shards


def test_every_row_is_there_once_with_its_state(checkpoint: tuple[DictStore, list[DictShard]]) -> None:
    store, shards = checkpoint
    index, out = exported(store, Export(ROOT, None, OUT, with_state=True))
    assert (index.checkpoint, index.step, index.root) == (8, 8, ROOT)
    assert [(table.name, table.dim, table.rows) for table in index.tables] == [("user", 2, 60), ("item", 3, 1)]
    assert len(index.tables[0].files) > 1
    rows, _ = joined(shards)
    user, item = read(index, out, "user"), read(index, out, "item")
    assert records_of(user, ("sum",)) == rows["user"]
    assert records_of(item, ("m", "t")) == rows["item"]
    assert {name: (column.dtype, column.shape) for name, column in item.items()} == {
        "ids": (np.uint64, (1,)),
        "rows": (np.float32, (1, 3)),
        "state.m": (np.float32, (1, 2)),
        "state.t": (np.uint32, (1, 1)),
    }


def test_a_checkpoint_and_tables_of_it_may_be_chosen(checkpoint: tuple[DictStore, list[DictShard]]) -> None:
    index, out = exported(checkpoint[0], Export(ROOT, 7, OUT, ("item",)))
    assert [(table.name, table.rows, table.columns) for table in index.tables] == [("item", 60, ())]
    assert sorted(read(index, out, "item")) == ["ids", "rows"]
    assert sorted(read(index, out, "item")["ids"].tolist()) == list(range(60))


def test_rows_of_half_precision_are_written_as_they_are_read() -> None:
    store = DictStore()
    (shard,) = [DictShard("server-0", map_of(1), (HALF,))]
    bits = np.array([1.5, -2.25, 3.0], np.float32).view(np.uint32) >> np.uint32(16)
    shard.widths["half"] = 3
    shard.set("half", 5, (int(bits[0] | (bits[1] << np.uint32(16))), int(bits[2]), 77))
    save([shard], store, 7)
    index, out = exported(store, Export(ROOT, None, OUT, with_state=True))
    columns = read(index, out, "half")
    assert columns["rows"].tolist() == [[1.5, -2.25, 3.0]]
    assert columns["state.sum"].view(np.uint32).tolist() == [[77]]


def test_parquet_has_the_same(checkpoint: tuple[DictStore, list[DictShard]]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    store, shards = checkpoint
    index, out = exported(store, Export(ROOT, None, OUT, file_type="parquet", with_state=True))
    rows, _ = joined(shards)
    for table in index.tables:
        read = pyarrow.concat_tables([parquet.read_table(pyarrow.BufferReader(out.files[file.file])) for file in table.files])
        assert read.column_names == ["id", "row", *[f"state_{column.name}" for column in table.columns]]
        assert read.schema.field("id").type == pyarrow.uint64()
        assert read.schema.field("row").type == pyarrow.list_(pyarrow.float32(), table.dim)
        columns = [
            np.array(read[name].to_pylist(), read.schema.field(name).type.value_type.to_pandas_dtype()) for name in read.column_names[1:]
        ]
        words = np.concatenate([column.view(np.uint32) for column in columns], axis=1).tolist()
        assert dict(zip(read["id"].to_pylist(), map(tuple, words), strict=True)) == rows[table.name]


@pytest.mark.parametrize("seed", range(8))
def test_an_export_has_what_a_cluster_would_load(seed: int) -> None:
    """Any history of full saves and increments, with tables cleared between and buckets that change hands."""
    rng, store = random.Random(seed), DictStore()
    shards: list[DictShard] = []
    for number in range(5):
        if not shards or rng.random() < 0.4:
            servers = rng.randint(1, 3)
            shard_map = ShardMap(number + 1, map_of(servers).servers, np.array(rng.choices(range(servers), k=NUM_BUCKETS), np.int32))
            rows = joined(shards)[0] if shards else {}
            shards = shards_of(shard_map)
            for table, records in rows.items():
                for key, record in records.items():
                    set_row(shards, table, key, record)  # its server saves it in full: an increment stands on its own rows only
        for _ in range(20):
            table, words = rng.choice([("user", 4), ("item", 6)])
            set_row(shards, table, rng.randrange(40), tuple([rng.getrandbits(32) for _ in range(words)]))
        if rng.random() < 0.3:
            for shard in shards:
                shard.clear("item")
        save(shards, store, number, None if number == 0 else number - 1)
        rows = joined(shards)[0]
        index, out = exported(store, Export(ROOT, number, OUT, with_state=True))
        for written in index.tables:
            state = tuple([column.name for column in written.columns])
            assert (records_of(read(index, out, written.name), state) if written.rows else {}) == rows[written.name]


def test_a_checkpoint_whose_number_has_eleven_digits_is_as_any_other() -> None:
    store, shards = DictStore(), shards_of(map_of(2))
    set_row(shards, "user", 1, (1, 2, 3, 4))
    save(shards, store, 10**10 - 1)
    set_row(shards, "user", 2, (1, 2, 3, 4))
    save(shards, store, 10**10, base=10**10 - 1)
    index, _ = exported(store, Export(ROOT, None, OUT))
    assert (index.checkpoint, index.tables[0].rows) == (10**10, 2)


def test_a_table_without_rows_is_in_the_index() -> None:
    store, shards = DictStore(), shards_of(map_of(2))
    save(shards, store, 7)
    index, out = exported(store, Export(ROOT, None, OUT))
    assert [(table.name, table.rows, table.files) for table in index.tables] == [("user", 0, ()), ("item", 0, ())]
    assert list(out.files) == ["export.json"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_export_has_what_a_client_exports(dtype: str) -> None:
    cluster = InProcess(servers=2)
    ids = np.arange(50, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    gradients = np.random.default_rng(1).standard_normal((50, 3), dtype=np.float32)
    with cluster.connect(0, 1, Sync()) as client:
        client.create_table(replace(HALF, dtype=dtype))
        client.push("half", ids, gradients)
        client.end_step()
        taken = client.checkpoint("/kept")
        index, out = exported(cluster.kept, Export(ROOT, None, OUT, with_state=True))
        (want,) = client.export_records("half")
    assert (index.checkpoint, index.step) == (taken.number, 1)
    columns = read(index, out, "half")
    order = np.argsort(columns["ids"])
    wanted = {"ids": want.ids, "rows": want.rows, **{f"state.{name}": column for name, column in want.state.items()}}
    assert len(wanted) == 3
    assert {name: column[order].tobytes() for name, column in columns.items()} == {
        name: np.ascontiguousarray(column).tobytes() for name, column in wanted.items()
    }


# --- what is refused ---------------------------------------------------------------------------------------------------------------


def test_there_must_be_a_checkpoint(checkpoint: tuple[DictStore, list[DictShard]]) -> None:
    with pytest.raises(NoCheckpoint, match="none was written"):
        exported(DictStore(), Export(ROOT, None, OUT))
    with pytest.raises(NoCheckpoint, match=r"There is none of number 9; there are [0-9, ]+\. Give"):
        exported(checkpoint[0], Export(ROOT, 9, OUT))


def test_a_table_that_is_not_in_it_is_named_with_those_that_are(checkpoint: tuple[DictStore, list[DictShard]]) -> None:
    with pytest.raises(InvalidRequest, match="table is 'users', but must be one of the checkpoint's: user, item"):
        exported(checkpoint[0], Export(ROOT, None, OUT, ("users",)))


def test_nothing_is_written_beside_another_export(checkpoint: tuple[DictStore, list[DictShard]]) -> None:
    out = DictStore()
    out.files = {"notes.txt": b"", "table-0-part-3.parquet": b""}
    with pytest.raises(InvalidRequest, match=r"table-0-part-3.parquet of an export is already"):
        run(export(Export(ROOT, None, OUT)), {ROOT: checkpoint[0], OUT: out}.__getitem__, refuse)
    assert len(out.files) == 2


# --- what goes wrong -----------------------------------------------------------------------------------------------------------------


NOTES = {"notes.txt": b"mine", "table-0-part-0.csv": b"mine", "old/export.json": b"mine"}


def operations(store: Store, out: Store, count: int) -> int:
    """Export, and be killed after `count` operations; return how many there were."""
    stores = {ROOT: store, OUT: out}
    program = one_by_one(export(Export(ROOT, None, OUT), 500))
    operation, done = next(program), 0
    while done < count:
        assert not isinstance(operation, Ask)
        answer = perform(operation, stores[operation.root])
        done += 1
        try:
            operation = program.send(answer)
        except StopIteration:
            break
    program.close()
    return done


def test_a_damaged_file_ends_it_and_leaves_nothing(checkpoint: tuple[DictStore, list[DictShard]]) -> None:
    store, out = checkpoint[0], DictStore()
    out.files = dict(NOTES)
    path = rows_of(7, 1, 0, 0)
    store.files[path] = store.files[path][:-1] + b"!"
    with pytest.raises(CorruptFile, match="its checksum differs"):
        run(export(Export(ROOT, None, OUT), 500), {ROOT: store, OUT: out}.__getitem__, refuse)
    assert out.files == NOTES


@pytest.mark.parametrize("file_type", ["safetensors", "parquet"])
def test_a_full_disk_ends_it_and_leaves_nothing(file_type: str, checkpoint: tuple[DictStore, list[DictShard]]) -> None:
    if file_type == "parquet":
        pytest.importorskip("pyarrow.parquet")
    _, whole = exported(checkpoint[0], Export(ROOT, None, OUT, file_type=file_type))
    puts = len(whole.files) + 1
    assert puts > 4
    for left in range(puts):
        out = DictStore()
        out.files, out.puts_left = dict(NOTES), left
        with pytest.raises(StorageFailed, match="No space left"):
            run(export(Export(ROOT, None, OUT, file_type=file_type), 500), {ROOT: checkpoint[0], OUT: out}.__getitem__, refuse)
        assert out.files == NOTES
        out.puts_left = puts
        run(export(Export(ROOT, None, OUT, file_type=file_type), 500), {ROOT: checkpoint[0], OUT: out}.__getitem__, refuse)
        assert out.files == whole.files | NOTES


def test_after_one_that_was_killed_anywhere_the_next_one_is_as_the_first(checkpoint: tuple[DictStore, list[DictShard]]) -> None:
    whole = DictStore()
    most = operations(checkpoint[0], whole, 10_000)
    assert "export.json" in whole.files
    complete = 0
    for count in range(most):
        out = DictStore()
        out.files = dict(NOTES)
        assert operations(checkpoint[0], out, count) == count
        if "export.json" in out.files:
            complete += 1
            with pytest.raises(InvalidRequest, match=r"export.json of an export is already"):
                operations(checkpoint[0], out, 10_000)
        else:
            out.files.update({f"{path}.tmp-0123abcd": b"half" for path in out.files if path.startswith("table-0-part-0.s")})
            operations(checkpoint[0], out, 10_000)
            assert "export.unfinished" not in out.files
        assert {path: data for path, data in out.files.items() if path != "export.unfinished"} == whole.files | NOTES
    assert complete == 1  # killed before it could say that it had finished


# --- the verb ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A root with checkpoint 7, in a folder."""
    shards = shards_of(map_of(2))
    for key in range(10):
        set_row(shards, "user", key, (key, 1, 2, 3))
    save(shards, Folder(tmp_path / "root"), 7)
    return tmp_path


def test_the_verb_writes_and_says_what(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "out"
    assert export_verb(f"{folder / 'root'}#7", out=str(out), table=["user"], state=True) == 0
    said = capsys.readouterr().out
    assert said == f"user: 10 rows in 1 files\nCheckpoint 7 of {folder / 'root'} is in {out}.\n"
    arrays = safetensors.numpy.load_file(out / "table-0-part-0.safetensors")
    assert sorted(arrays["ids"].tolist()) == list(range(10))
    assert "state.sum" in arrays


@pytest.mark.parametrize(
    ("checkpoint", "kwargs", "code", "sentence"),
    [
        ("root#9", {}, 1, "There is no complete checkpoint at"),
        ("nothing", {}, 1, "none was written"),
        ("root", {"table": ["users"]}, 2, "table is 'users'"),
        ("root", {"checkpoint_option": ["aws_region"]}, 2, "'aws_region' is no option"),
        ("root", {"out": "ftp://somewhere"}, 2, "the root of checkpoints is 'ftp://somewhere'"),
    ],
)
def test_the_verb_refuses_with_a_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], checkpoint: str, kwargs: dict[str, Any], code: int, sentence: str
) -> None:
    assert export_verb(str(folder / checkpoint), **{"out": str(folder / "out"), **kwargs}) == code
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.out == ""


def test_without_pyarrow_the_verb_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert export_verb(str(folder / "root"), out=str(folder / "out"), file_type="parquet") == 2
    assert "pip install 'rowstead[parquet]'" in capsys.readouterr().err
