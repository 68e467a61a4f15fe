"""Parts become a checkpoint only where they are of one instant and whole, and the manifest is written last."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dict_store import DictStore
from made_checkpoints import JOB, ROOT, TABLE, make_checkpoint, map_of, run_on, task_of, write_part
from ps_proto.errors import CheckpointFailed, CorruptFile, StorageFailed
from ps_proto.orders import PartWritten
from ps_proto.values import Async, Sync, TableSpec
from ps_server.storage.layout import folder_of, manifest_of, names_of, part_of, rows_of
from ps_server.storage.manifest import Manifest
from ps_server.storage.publishing import abandon, publish
from ps_server.storage.reading import read_manifest
from ps_server.storage.store import Data
from ps_server.tasks import AbandonCheckpoint, PublishCheckpoint, Published


@pytest.fixture
def store() -> DictStore:
    return DictStore()


def both_parts(store: DictStore, number: int = 7, **of_second: Any) -> list[PartWritten]:
    return [write_part(store, number, 0), write_part(store, number, 1, **of_second)]


def manifest_in(store: DictStore, number: int = 7) -> Manifest:
    return run_on(store, read_manifest(ROOT, number))


def refusal_of(store: DictStore, task: PublishCheckpoint) -> CheckpointFailed:
    """Return why it is refused; nothing was written or removed then."""
    before = dict(store.files)
    with pytest.raises(CheckpointFailed) as refusal:
        run_on(store, publish(task))
    assert store.files == before
    return refusal.value


def test_a_checkpoint_says_what_its_parts_say(store: DictStore) -> None:
    parts = both_parts(store)

    published = run_on(store, publish(task_of(7, parts)))

    manifest = manifest_in(store)
    assert published == Published(7, 8, manifest.rows, manifest.size_bytes, 0.5, 0)
    assert (manifest.cluster, manifest.base, manifest.timeline, manifest.map_version) == ("0000000000c0ffee", None, 0, 4)
    assert (manifest.step, manifest.is_synchronous, manifest.rows) == (8, True, 6)
    assert manifest.size_bytes == sum([len(data) for path, data in store.files.items() if path.endswith(".safetensors")])
    assert [table.spec() for table in manifest.tables] == [TABLE]
    assert manifest.layer_owners()[0].tolist() == map_of().owners.tolist()


def test_the_manifest_is_the_last_thing_written_and_older_ones_go_after_it() -> None:
    changes: list[str] = []

    class Recorded(DictStore):
        def put(self, path: str, data: Data) -> None:
            changes.append(path)
            super().put(path, data)

        def delete(self, paths: Sequence[str]) -> None:
            changes.extend(paths)
            super().delete(paths)

    store = Recorded()
    make_checkpoint(store, 6)
    parts = both_parts(store)
    changes.clear()

    assert run_on(store, publish(task_of(7, parts, keep=1))).removed == 1

    assert changes[:2] == [manifest_of(7), manifest_of(6)]
    assert all([path.startswith(folder_of(6)) for path in changes[2:]])
    assert store.list(folder_of(6)) == {}


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("step", 9, "its part is of step 9, not 8"),
        ("timeline", 1, "its part is of timeline 1, not 0"),
        ("map_version", 5, "its part is of map_version 5, not 4"),
        ("job", 2, "its part is of job 2, not 3"),
        ("table", "other", "its part has table 'other', which this cluster has not"),
    ],
)
def test_parts_of_different_instants_are_refused(store: DictStore, field: str, value: Any, reason: str) -> None:
    parts = both_parts(store, **{field: value})
    refusal = refusal_of(store, task_of(7, parts))
    assert (refusal.path, refusal.server, refusal.reason) == ("/checkpoints/checkpoint-0000000007", "server-1", reason)


def test_without_synchronous_tables_each_server_has_its_own_step(store: DictStore) -> None:
    run_on(store, publish(task_of(7, both_parts(store, step=9), job=replace(JOB, mode=Async()))))
    assert (manifest_in(store).step, manifest_in(store).is_synchronous) == (8, False)


def test_one_synchronous_table_is_enough_to_need_one_step(store: DictStore) -> None:
    tables = (TABLE, TableSpec("dense", 2, mode=Sync()))
    refusal = refusal_of(store, task_of(7, both_parts(store, step=9), job=replace(JOB, mode=Async()), tables=tables))
    assert refusal.reason == "its part is of step 9, not 8"


def test_a_restarted_servers_part_is_refused(store: DictStore) -> None:
    shard_map = map_of()
    servers = (shard_map.servers[0], replace(shard_map.servers[1], incarnation=6))
    refusal = refusal_of(store, task_of(7, both_parts(store), shard_map=replace(shard_map, servers=servers)))
    assert refusal.reason == "its part is of server_incarnation 5, not 6"


def test_every_server_of_the_map_must_have_its_part_once(store: DictStore) -> None:
    first, second = both_parts(store)
    for parts in ([first], [first, first], [first, second, second], [first, replace(second, server="server-2")]):
        assert refusal_of(store, task_of(7, parts)).reason.startswith("shard map 4 has 2 servers, whose parts these are not: server-0")


def test_a_part_at_anothers_place_is_refused(store: DictStore) -> None:
    first, second = both_parts(store)
    refusal = refusal_of(store, task_of(7, [first, replace(second, file=first.file)]))
    assert (refusal.server, refusal.reason) == ("server-1", f"its part is {part_of(7, 0)}, not {part_of(7, 1)}")


def test_nonsense_about_a_part_is_refused(store: DictStore) -> None:
    first, second = both_parts(store)
    assert "String should match" in refusal_of(store, task_of(7, [first, replace(second, checksum="?")])).reason


@pytest.mark.parametrize("path", [part_of(7, 0), part_of(7, 1), rows_of(7, 1, 0, 0), names_of(7, 0)])
def test_a_file_that_is_missing_or_cut_is_named(store: DictStore, path: str) -> None:
    parts = both_parts(store)
    whole = store.files.pop(path)
    assert f"{ROOT}/{path} is not as it was written: it is missing" in refusal_of(store, task_of(7, parts)).reason
    store.files[path] = whole[:-1]
    assert (
        f"{path} is not as it was written: it has {len(whole) - 1} bytes, not {len(whole)}" in refusal_of(store, task_of(7, parts)).reason
    )


def test_an_altered_part_is_named(store: DictStore) -> None:
    parts = both_parts(store)
    store.files[part_of(7, 1)] = store.files[part_of(7, 1)].replace(b'"step": 8', b'"step": 7')
    assert f"{part_of(7, 1)} is not as it was written: its checksum differs" in refusal_of(store, task_of(7, parts)).reason


def test_a_full_disk_under_the_manifest_is_named(store: DictStore) -> None:
    parts = both_parts(store)
    store.puts_left = 0
    refusal = refusal_of(store, task_of(7, parts))
    assert (refusal.server, "No space left" in refusal.reason) == ("the coordinator", True)


def test_a_complete_checkpoint_is_never_written_over(store: DictStore) -> None:
    make_checkpoint(store, 7)
    assert refusal_of(store, task_of(7, both_parts(store))).reason == "a complete checkpoint of that number is there already"


def test_an_increment_has_the_layers_that_it_stands_on(store: DictStore) -> None:
    for number, base in ((5, None), (6, 5), (8, 6)):
        make_checkpoint(store, number, base=base)
    manifest = manifest_in(store, 8)
    assert (manifest.base, [layer.number for layer in manifest.layers]) == (6, [5, 6, 8])


def test_one_part_that_is_an_increment_makes_the_checkpoint_one(store: DictStore) -> None:
    make_checkpoint(store, 6)
    run_on(store, publish(task_of(7, both_parts(store, is_full=False), base=6)))
    assert manifest_in(store).base == 6


def test_full_parts_need_no_base_also_where_there_is_one(store: DictStore) -> None:
    run_on(store, publish(task_of(7, both_parts(store), base=6)))
    assert (manifest_in(store).base, len(manifest_in(store).layers)) == (None, 1)


def test_an_increment_on_nothing_is_refused(store: DictStore) -> None:
    parts = both_parts(store, is_full=False)
    assert refusal_of(store, task_of(7, parts)).reason == "a part is an increment, but there is nothing that it stands on"
    assert f"{ROOT}/{manifest_of(6)} is not as it was written: it is missing" in refusal_of(store, task_of(7, parts, base=6)).reason


def test_an_increment_on_tables_that_are_gone_is_refused(store: DictStore) -> None:
    make_checkpoint(store, 6)
    parts = [write_part(store, 7, shard, is_full=False, table="other") for shard in range(2)]
    refusal = refusal_of(store, task_of(7, parts, base=6, tables=(TableSpec("other", 2),)))
    assert refusal.reason == "checkpoint 6, on which a part stands, has table 'user', which this cluster has not"


def test_a_rank_goes_on_after_the_least_of_its_clocks_with_the_state_of_that_step(store: DictStore) -> None:
    parts = [
        write_part(store, 7, 0, clocks={0: 7, 1: 7}, facts={0: 7, 1: 7}, left={1: 7}),
        write_part(store, 7, 1, clocks={0: 6, 1: 8}, facts={0: 6, 1: 8}, left={1: 8}),
    ]
    run_on(store, publish(task_of(7, parts, job=replace(JOB, mode=Async()))))
    manifest = manifest_in(store)
    assert [(rank.rank, rank.clock, rank.shard, rank.has_left) for rank in manifest.ranks] == [
        (0, 6, 1, False),  # finished 7 on one server and 6 on the other, which has its state after 6
        (1, 7, 0, True),  # left on both
    ]


def test_a_rank_that_not_all_servers_know_of_is_refused(store: DictStore) -> None:
    """It may have pushed to the one that knows it: half of that would be there for ever, once the cluster has gone back."""
    parts = [write_part(store, 7, 0, clocks={0: 7, 1: 7, 2: 5}), write_part(store, 7, 1, clocks={0: 6, 1: 8})]
    refusal = refusal_of(store, task_of(7, parts, job=replace(JOB, mode=Async(), world_size=3)))
    assert (refusal.server, refusal.reason) == ("server-1", "its part is of ranks [0, 1], not [0, 1, 2]")


def test_a_rank_that_is_another_worker_on_one_server_than_on_another_is_refused(store: DictStore) -> None:
    """One left and another joined in its place, between the instants of the two, and may have pushed where it is known."""
    parts = [write_part(store, 7, 0, clocks={0: 7, 1: 9}, since={1: 9}), write_part(store, 7, 1, clocks={0: 7, 1: 5})]
    refusal = refusal_of(store, task_of(7, parts, job=replace(JOB, mode=Async())))
    assert (refusal.server, refusal.reason) == ("server-1", "its part is of ranks admitted, with their first steps {}, not {1: 9}")


@pytest.mark.parametrize("known", [1, 3])
def test_the_job_has_the_ranks_of_the_instant_and_not_those_that_the_coordinator_counts(store: DictStore, known: int) -> None:
    parts = [write_part(store, 7, shard, clocks={0: 6, 1: 6, 2: 6}) for shard in range(2)]
    run_on(store, publish(task_of(7, parts, job=replace(JOB, world_size=known))))
    manifest = manifest_in(store)
    assert manifest.job is not None
    assert (manifest.job.world_size, len(manifest.ranks)) == (3, 3)


def test_a_state_of_another_step_is_of_no_use(store: DictStore) -> None:
    parts = [write_part(store, 7, shard, clocks={0: 7}, facts={0: 6}) for shard in range(2)]
    run_on(store, publish(task_of(7, parts)))
    assert manifest_in(store).ranks[0].shard is None


def test_a_checkpoint_is_complete_also_where_older_ones_cannot_be_removed(store: DictStore) -> None:
    class NothingIsDeleted(DictStore):
        def delete(self, paths: Sequence[str]) -> None:
            raise StorageFailed("it", "Permission denied")

    stubborn = NothingIsDeleted()
    make_checkpoint(stubborn, 6)
    assert make_checkpoint(stubborn, 7, keep=1).removed == 0
    assert manifest_in(stubborn).number == 7


def test_an_abandoned_checkpoint_leaves_nothing_of_ours(store: DictStore) -> None:
    make_checkpoint(store, 6)
    complete = dict(store.files)
    both_parts(store)
    store.files[f"{part_of(7, 0)}.tmp-00000000"] = b"half"
    store.files[f"{folder_of(7)}/notes.txt"] = b"mine"

    run_on(store, abandon(AbandonCheckpoint(ROOT, 7)))
    run_on(store, abandon(AbandonCheckpoint(ROOT, 8)))

    assert store.files == complete | {f"{folder_of(7)}/notes.txt": b"mine"}


def test_a_complete_checkpoint_is_not_abandoned(store: DictStore) -> None:
    make_checkpoint(store, 7)
    before = dict(store.files)
    run_on(store, abandon(AbandonCheckpoint(ROOT, 7)))
    assert store.files == before
    with pytest.raises(CorruptFile):
        manifest_in(store, 8)


def test_who_left_after_a_step_after_which_it_was_removed_was_removed_by_then(store: DictStore) -> None:
    parts = [write_part(store, 7, shard, left={0: 7, 1: 5}) for shard in range(2)]
    run_on(store, publish(replace(task_of(7, parts), removals=((0, 6), (1, 5)))))
    assert [(rank.has_left, rank.was_removed) for rank in manifest_in(store).ranks] == [(True, False), (True, True)]


def test_who_had_yet_to_be_removed_on_some_server_is_there(store: DictStore) -> None:
    parts = [write_part(store, 7, 0, left={1: 7}), write_part(store, 7, 1)]
    run_on(store, publish(replace(task_of(7, parts), removals=((1, 7),))))
    assert [(rank.has_left, rank.was_removed) for rank in manifest_in(store).ranks] == [(False, False), (False, False)]
