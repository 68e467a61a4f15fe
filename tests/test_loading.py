"""What a server reads of a checkpoint: what is its own now, whoever wrote it, or an error that says which file is not as it was written."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from dict_shard import ITEM, USER, DictShard, Rows, joined, run_for, set_row, shards_of
from dict_store import DictStore
from made_checkpoints import ROOT, map_of, run_on, task_of
from ps_proto.errors import CorruptFile, Recovering, StorageFailed
from ps_proto.orders import Source
from ps_proto.requests import Finished
from ps_server.storage.arrays_file import encode
from ps_server.storage.entries import FileEntry
from ps_server.storage.finding import find
from ps_server.storage.layout import manifest_of, names_of, part_of, resume_of, rows_of
from ps_server.storage.loading import load_part
from ps_server.storage.manifest import PartEntry, parse_manifest
from ps_server.storage.part import parse_part
from ps_server.storage.publishing import publish
from ps_server.storage.saving import save_part
from ps_server.tasks import FindCheckpoint, LoadFacts, LoadNames, LoadPart, LoadRows, SavePart
from sharding.hashing import NUM_BUCKETS
from sharding.shard_map import ShardMap

FILE_BYTES, PIECE_BYTES = 200, 70


def save(shards: Sequence[DictShard], store: DictStore, number: int, base: int | None = None, full: bool = False) -> None:
    """Save and publish a checkpoint of a cluster, as increments where there is a base."""
    parts = []
    for shard in shards:
        shard.save(full=full or base is None)
        program = save_part(SavePart(ROOT, number, shard.shard, shard.server), FILE_BYTES, PIECE_BYTES)
        parts.append(run_for(shard, program, store))
    run_on(store, publish(task_of(number, parts, base=base, shard_map=shards[0].shard_map, tables=(USER, ITEM))))


def load(store: DictStore, number: int, shard_map: ShardMap) -> list[DictShard]:
    """Return a new cluster that has loaded a checkpoint."""
    shards = shards_of(shard_map)
    for shard in shards:
        shard.timeline = 5
        task = LoadPart(Source(ROOT, number), shard.server, shard_map, timeline=5)
        assert run_for(shard, load_part(task, PIECE_BYTES), store) == sum([len(b.ids) for b in shard.log if isinstance(b, LoadRows)])
    return shards


def loaded_ids(shard: DictShard, table: str) -> list[int]:
    """Return the ids of all rows that it was told, in order."""
    return [key for body in shard.log if isinstance(body, LoadRows) and body.table == table for key in body.ids.tolist()]


def filled(shard_map: ShardMap, num_rows: int = 40) -> list[DictShard]:
    shards = shards_of(shard_map)
    for key in range(num_rows):
        set_row(shards, "user", 2**64 - 1 - key, (key, 1, 2, 2**32 - 1))
        set_row(shards, "item", key, (key, 5, 4, 3, 2, 1))
    for shard in shards:
        owned = np.flatnonzero(shard_map.owners == shard.shard).tolist()
        shard.names = {rank: {bucket: 100 * rank + bucket + 1 for bucket in owned[: 50 + rank]} for rank in range(2)}
        shard.clocks = {0: 7, 1: 7}
        shard.facts = {0: Finished(7, resume=b"rank 0"), 1: Finished(7, resume=b"")}
    return shards


def random_map(rng: random.Random, servers: int, version: int) -> ShardMap:
    shard_map = map_of(servers, version)
    return ShardMap(version, shard_map.servers, np.array(rng.choices(range(servers), k=NUM_BUCKETS), np.int32))


@pytest.mark.parametrize("readers", [1, 2, 3, 5])
@pytest.mark.parametrize("writers", [1, 2, 3])
def test_any_number_of_servers_reads_what_any_number_has_written(writers: int, readers: int) -> None:
    store, shards = DictStore(), filled(map_of(writers))
    save(shards, store, 7)
    loaded = load(store, 7, map_of(readers, version=9))
    assert joined(loaded) == joined(shards)
    for shard in loaded:
        assert shard.facts == {0: Finished(7, resume=b"rank 0"), 1: Finished(7)}


def test_with_the_same_map_a_server_reads_its_own_part_only_and_copies_nothing_out_of_it() -> None:
    store, shards = DictStore(), filled(map_of(2))
    save(shards, store, 7)
    read: list[str] = []

    class Noting(DictStore):
        def get(self, path: str) -> memoryview:
            read.append(path)
            return super().get(path)

    noting = Noting()
    noting.files = store.files
    (loaded, _) = load(noting, 7, map_of(2))
    first = read[: read.index(manifest_of(7), 1)]  # of the first of the two
    of_other = [path for path in first if "shard-1" in path]
    assert of_other == []
    assert len(first) == len([path for path in store.files if "shard-0" in path]) + 2  # the manifest, and part.json again for the facts
    rows = [body for body in loaded.log if isinstance(body, LoadRows)]
    assert all([not body.records.flags.writeable for body in rows])  # views of what was read


def test_a_server_that_owns_nothing_loads_no_rows() -> None:
    store = DictStore()
    save(filled(map_of(2)), store, 7)
    shard_map = ShardMap(9, map_of(2).servers, np.zeros(NUM_BUCKETS, np.int32))
    (_, loaded) = load(store, 7, shard_map)
    assert [type(body) for body in loaded.log] == [LoadFacts]


def test_an_increment_replaces_rows_and_what_was_cleared_between_stays_away() -> None:
    store, shards = DictStore(), filled(map_of(2))
    save(shards, store, 7)
    for shard in shards:
        shard.clear("item")
    set_row(shards, "item", 3, (9, 9, 9, 9, 9, 9))
    set_row(shards, "user", 2**64 - 1, (8, 8, 8, 8))
    save(shards, store, 8, base=7)
    loaded = load(store, 8, map_of(3, version=9))
    assert joined(loaded) == joined(shards)
    assert joined(loaded)[0]["item"] == {3: (9, 9, 9, 9, 9, 9)}
    assert [key for shard in loaded for key in loaded_ids(shard, "item")] == [3]  # nobody loads what was cleared, to drop it again
    assert joined(load(store, 7, map_of(1, version=9)))[0]["item"] != joined(shards)[0]["item"]  # the base is as it was


def test_the_core_hears_how_many_rows_of_a_layer_are_still_to_come() -> None:
    store, shards = DictStore(), filled(map_of(1), num_rows=20)
    save(shards, store, 7)
    set_row(shards, "user", 1, (1, 1, 1, 1))
    save(shards, store, 8, base=7)
    (loaded,) = load(store, 8, map_of(1))
    asked = [body for body in loaded.log if isinstance(body, LoadRows) and body.table == "user"]
    assert [len(body.ids) for body in asked] == [2] * 10 + [1]
    assert [body.expected for body in asked] == [*range(20, 0, -2), 1]


def test_rows_before_names_before_facts() -> None:
    store = DictStore()
    save(filled(map_of(2)), store, 7)
    (loaded,) = load(store, 7, map_of(1))
    kinds = list(dict.fromkeys([type(body) for body in loaded.log]))
    assert kinds == [LoadRows, LoadNames, LoadFacts]


@pytest.mark.parametrize("seed", range(12))
def test_any_history_of_saves_under_any_maps_loads_as_it_was(seed: int) -> None:
    """Full saves and increments, tables cleared between, buckets that change hands; each checkpoint onto another number of servers."""
    rng, store = random.Random(seed), DictStore()
    shard_map = random_map(rng, rng.randint(1, 3), version=1)
    shards = shards_of(shard_map)
    states: dict[int, tuple[Rows, Any]] = {}
    for number in range(6):
        for _ in range(rng.randint(0, 30)):
            record = tuple([rng.getrandbits(32) for _ in range(6)])
            table, words = rng.choice([("user", 4), ("item", 6)])
            set_row(shards, table, rng.randrange(60), record[:words])
        if rng.random() < 0.3:
            for shard in shards:
                shard.clear("item")
        for shard in shards:
            owned = np.flatnonzero(shard_map.owners == shard.shard).tolist()
            shard.names.setdefault(rng.randrange(3), {})[rng.choice(owned)] = rng.getrandbits(40) + 1
        is_full = number == 0 or rng.random() < 0.2
        save(shards, store, number, None if is_full else number - 1)
        states[number] = joined(shards)
        if rng.random() < 0.3:  # the cluster goes on as one of another size, as after a rollback
            shard_map = random_map(rng, rng.randint(1, 3), version=number + 2)
            shards = load(store, number, shard_map)
            for shard in shards:
                shard.timeline = 0
                shard._needs_full = set()  # what was loaded is what the checkpoint has
                shard._touched = {table: set() for table in shard._touched}
            assert joined(shards)[0] == states[number][0]
    for number, (tables, names) in states.items():
        loaded = joined(load(store, number, random_map(rng, rng.randint(1, 4), version=99)))
        assert loaded[0] == tables, number
        assert {rank: of_rank for rank, of_rank in loaded[1].items() if of_rank} == {
            rank: of_rank for rank, of_rank in names.items() if of_rank
        }


# --- damage -------------------------------------------------------------------------------------------------------------------------


def altered(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


DAMAGES: dict[str, Callable[[bytes], bytes]] = {"cut": lambda data: data[:-2], "altered": altered}


@pytest.mark.parametrize("damage", ["missing", *DAMAGES])
def test_every_file_that_is_not_as_it_was_written_is_named_and_the_one_before_is_found(damage: str) -> None:
    whole, shards = DictStore(), filled(map_of(2), num_rows=6)
    save(shards, whole, 6)
    save(shards, whole, 7)
    set_row(shards, "user", 1, (1, 1, 1, 1))
    save(shards, whole, 8, base=7)
    newer = [path for path in whole.files if not path.startswith("checkpoint-0000000006")]
    not_needed = {names_of(7, 0), names_of(7, 1), resume_of(7, 0), resume_of(7, 1), resume_of(8, 1), manifest_of(7)}  # by who loads 8
    assert not_needed < set(newer)
    for path in newer:
        store = DictStore()
        store.files = dict(whole.files)
        if damage == "missing":
            del store.files[path]
        else:
            store.files[path] = DAMAGES[damage](store.files[path])
        if path not in not_needed:
            with pytest.raises(CorruptFile, match=path.replace(".", r"\.")):
                load(store, 8, map_of(3))
        found = run_on(store, find(FindCheckpoint((ROOT,), bad=((ROOT, 8),))))
        assert found.source in (Source(ROOT, 7), Source(ROOT, 6))
        assert joined(load(store, 6, map_of(2)))[0]["user"]


@pytest.mark.parametrize(
    ("path", "arrays", "reason"),
    [
        (rows_of(7, 0, 0, 0), {"ids": np.zeros(1, np.uint64)}, "no ids of 2 rows"),
        (rows_of(7, 0, 0, 0), {"ids": np.zeros(2, np.int64)}, "no ids of 2 rows"),
        (rows_of(7, 0, 0, 0), {"ids": np.zeros(2, np.uint64)}, "no records of 2 rows with 4 words"),
        (rows_of(7, 0, 0, 0), {"ids": np.zeros(2, np.uint64), "records": np.zeros((2, 3), np.uint32)}, "no records of 2 rows with 4 words"),
        (names_of(7, 0), {}, "no list of buckets"),
        (names_of(7, 0), {"buckets": np.array([4, 3], np.int32)}, "not ascending"),
        (names_of(7, 0), {"buckets": np.array([NUM_BUCKETS], np.int32)}, "not ascending"),
        (names_of(7, 0), {"buckets": np.zeros(1, np.int32), "ranks": np.zeros(2, np.int32)}, "no list of ranks"),
        (
            names_of(7, 0),
            {"buckets": np.zeros(1, np.int32), "ranks": np.zeros(2, np.int64), "names": np.zeros((1, 2), np.uint64)},
            "no names of 2 ranks in 1 buckets",
        ),
        (resume_of(7, 0), {}, "no resume state of rank 0 after step 7"),
        (resume_of(7, 0), {"rank-0": np.zeros(2, np.int32)}, "no resume state of rank 0 after step 7"),
    ],
)
def test_what_was_written_wrong_is_no_file_of_a_part(path: str, arrays: dict[str, Any], reason: str) -> None:
    """Checksums do not find what was never right."""
    store = DictStore()
    save(filled(map_of(1), num_rows=2), store, 7)
    rewrite(store, path, b"".join(encode(arrays)))
    with pytest.raises(CorruptFile, match=reason) as caught:
        load(store, 7, map_of(1))
    assert caught.value.path == f"{ROOT}/{path}"


def rewrite(store: DictStore, path: str, data: bytes) -> None:
    """Put other bytes in a file's place, and say of checkpoint 7 that they belong there."""
    store.files[path] = data
    part = parse_part(store.files[part_of(7, 0)], "")
    changed = {"file": path, **FileEntry.of(path, data).model_dump(include={"size_bytes", "checksum"})}
    told = json.loads(part.encode())
    for entry in (told["names"], told["resume"], *[file for table in told["tables"] for file in table["parts"]]):
        if entry["file"] == path:
            entry.update(changed)
    store.files[part_of(7, 0)] = json.dumps(told).encode()
    manifest = parse_manifest(store.files[manifest_of(7)], "")
    (layer,) = manifest.layers
    entry = PartEntry(server="server-0", **FileEntry.of(part_of(7, 0), store.files[part_of(7, 0)]).model_dump())
    layer = layer.model_copy(update={"parts": (entry,)})
    store.files[manifest_of(7)] = manifest.model_copy(update={"layers": (layer,)}).encode()


def test_a_store_that_does_not_answer_is_no_damage() -> None:
    store = DictStore()
    save(filled(map_of(1)), store, 7)

    class Failing(DictStore):
        def get(self, path: str) -> memoryview:
            if path == rows_of(7, 0, 0, 1):
                raise StorageFailed(path, "timed out")
            return super().get(path)

    failing = Failing()
    failing.files = store.files
    with pytest.raises(StorageFailed, match="timed out"):
        load(failing, 7, map_of(1))


def test_what_the_core_refuses_ends_it() -> None:
    store = DictStore()
    save(filled(map_of(1)), store, 7)

    class Refusing:
        def ask(self, body: Any) -> Any:
            raise Recovering("server-0", "there is a later timeline")

    refusing: Any = Refusing()
    with pytest.raises(Recovering):
        run_for(refusing, load_part(LoadPart(Source(ROOT, 7), "server-0", map_of(1), 5)), store)


def test_the_next_file_is_read_while_the_core_takes_one_in() -> None:
    store, order = DictStore(), list[str]()
    save(filled(map_of(1), num_rows=20), store, 7)
    (shard,) = shards_of(map_of(1))
    shard.timeline = 5

    def start(work: Callable[[], Any]) -> Callable[[], Any]:
        order.append("begun")

        def wait() -> Any:
            order.append("read")
            return work()

        return wait

    class Noting:
        def ask(self, body: Any) -> Any:
            order.append(type(body).__name__)
            return shard.ask(body)

    noting: Any = Noting()
    run_for(noting, load_part(LoadPart(Source(ROOT, 7), "server-0", map_of(1), 5)), store, start)
    files = 3 + 4  # of "user" and of "item"
    assert order == ["begun", *["read", "begun", "LoadRows"] * (files - 1), "read", "LoadRows", "LoadNames", "LoadFacts"]
