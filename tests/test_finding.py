"""The newest checkpoint that is complete and whole is found, and why a newer one was passed over is said."""

from dataclasses import replace

import pytest

from dict_store import DictStore
from made_checkpoints import JOB, ROOT, TABLE, make_checkpoint, run_on, task_of, write_part
from ps_proto.errors import StorageFailed
from ps_proto.orders import JobState, RankState, Source
from ps_proto.requests import Finished
from ps_proto.values import Async
from ps_server.storage.finding import find
from ps_server.storage.layout import folder_of, manifest_of, part_of, rows_of
from ps_server.storage.program import run
from ps_server.storage.publishing import publish
from ps_server.tasks import BarrierRun, FindCheckpoint, FoundCheckpoint


@pytest.fixture
def store() -> DictStore:
    """Checkpoints 5 and 7 are full, 8 and 9 stand on 7; 10 was never completed."""
    store = DictStore()
    for number, base in ((5, None), (7, None), (8, 7), (9, 8)):
        make_checkpoint(store, number, base=base)
    return store


def found_in(store: DictStore, number: int | None = None, bad: tuple[int, ...] = ()) -> FoundCheckpoint:
    return run_on(store, find(FindCheckpoint((ROOT,), number, tuple([(ROOT, each) for each in bad]))))


def number_in(found: FoundCheckpoint) -> int | None:
    return None if found.source is None else found.source.number


RUNS = (BarrierRun(4, -3, 2, ()), BarrierRun(6, 2**62, 1, (5, 7)))


def test_the_newest_is_found_with_its_tables_and_its_job(store: DictStore) -> None:
    parts = [write_part(store, 11, shard, timeline=2, step=6 + shard, facts={1: 5}, left={0: 9}) for shard in range(2)]
    run_on(store, publish(replace(task_of(11, parts, job=replace(JOB, mode=Async())), barriers=RUNS)))
    ranks = (RankState(0, None, 5, True), RankState(1, Finished(5), 5, False))
    job = JobState(3, 2, Async(), 0, 6, ranks)
    assert found_in(store) == FoundCheckpoint(Source(ROOT, 11), 2, (TABLE,), job, (), 11, 0xC0FFEE, barriers=RUNS)


def test_who_was_removed_by_then_is_told(store: DictStore) -> None:
    parts = [write_part(store, 11, shard, left={0: 9, 1: 7}) for shard in range(2)]
    run_on(store, publish(replace(task_of(11, parts), removals=((1, 7),))))
    assert found_in(store).removed == {1}


def test_it_is_told_how_many_increments_in_a_row_a_checkpoint_is(store: DictStore) -> None:
    assert [found_in(store, number).increments for number in (7, 8, 9)] == [0, 1, 2]


def test_nothing_is_found_where_there_is_nothing() -> None:
    store = DictStore()
    store.files["notes.txt"] = b""
    assert found_in(store) == FoundCheckpoint(None, 0, (), None, ())


def test_one_that_is_not_complete_is_passed_over(store: DictStore) -> None:
    write_part(store, 10, 0)
    found = found_in(store)
    assert number_in(found) == 9
    assert found.passed_over == (f"Checkpoint 10 of {ROOT} was passed over. It is not complete: there is no {ROOT}/{manifest_of(10)}.",)


@pytest.mark.parametrize(
    ("path", "next_one"),
    [
        (manifest_of(9), 8),
        (part_of(9, 1), 8),
        (rows_of(9, 0, 0, 0), 8),
        (part_of(8, 0), 7),
        (rows_of(8, 1, 0, 0), 7),
        (rows_of(7, 0, 0, 0), 5),
    ],
)
@pytest.mark.parametrize("damage", ["missing", "cut", "longer"])
def test_a_file_that_is_not_as_it_was_spoils_all_that_stand_on_it(store: DictStore, path: str, next_one: int, damage: str) -> None:
    whole = store.files.pop(path)
    if damage != "missing":
        store.files[path] = whole[:-2] if damage == "cut" else whole + b"\n\n}"
    found = found_in(store)
    assert number_in(found) == next_one
    assert len(found.passed_over) == len([number for number in (9, 8, 7) if number > next_one])
    assert all([path in reason for reason in found.passed_over])


@pytest.mark.parametrize("path", [manifest_of(9), part_of(9, 0)])
def test_a_file_that_was_altered_is_found_out(store: DictStore, path: str) -> None:
    store.files[path] = store.files[path].replace(b'"timeline": 0', b'"timeline": 1')
    found = found_in(store)
    assert (number_in(found), f"{path} is not as it was written: its checksum differs" in found.passed_over[0]) == (8, True)


def test_one_of_a_newer_version_is_passed_over(store: DictStore) -> None:
    store.files[manifest_of(9)] = store.files[manifest_of(9)].replace(b'"version": 1', b'"version": 2')
    found = found_in(store)
    assert (number_in(found), "a newer Rowstead wrote it" in found.passed_over[0]) == (8, True)


def test_one_that_could_not_be_loaded_is_not_found_again(store: DictStore) -> None:
    found = found_in(store, bad=(9, 8))
    assert number_in(found) == 7
    assert [("a server could not load it" in reason) for reason in found.passed_over] == [True, True]


def test_one_may_be_asked_for_by_its_number(store: DictStore) -> None:
    assert number_in(found_in(store, 8)) == 8
    assert found_in(store, 6) == FoundCheckpoint(None, 0, (), None, ("There is none of number 6; there are 5, 7, 8, 9.",), 9)
    del store.files[rows_of(7, 0, 0, 0)]
    found = found_in(store, 8)
    assert (number_in(found), len(found.passed_over)) == (None, 1)


def test_the_newest_of_several_roots_is_found_and_the_first_of_two_alike(store: DictStore) -> None:
    other = DictStore()
    make_checkpoint(other, 9)
    stores = {"/here": store, "/there": other}
    for number, expected in ((9, "/here"), (12, "/there")):
        if number == 12:
            make_checkpoint(other, 12)
        found = run(find(FindCheckpoint(("/here", "/there", "/here"))), stores.__getitem__, lambda body: body)
        assert found.source == Source(expected, number)


def test_a_store_that_does_not_answer_is_an_error_and_not_an_empty_one() -> None:
    class Away(DictStore):
        def list(self, prefix: str) -> dict[str, int]:
            raise StorageFailed(ROOT, "Input/output error")

    with pytest.raises(StorageFailed, match="Input/output error"):
        found_in(Away())


def test_a_part_of_another_checkpoint_is_found_out(store: DictStore) -> None:
    copied = DictStore()
    copied.files = {path: data for path, data in store.files.items() if path.startswith(folder_of(7))}
    copied.files[part_of(7, 0)] = store.files[part_of(7, 1)]
    assert number_in(found_in(copied)) is None


@pytest.mark.parametrize(
    ("lineage", "number"),
    [
        ([(0xC0FFEE, 0, 9)], 9),
        ([(0xC0FFEE, 1, 8)], 8),
        ([(0xDECAF, 1, 9), (0xC0FFEE, 1, 6)], 5),
        ([(0xDECAF, 1, 9)], None),
        ([(0xDECAF, 1, 9), (0xC0FFEE, 1, 4)], None),
    ],
)
def test_checkpoints_of_another_cluster_do_not_count(store: DictStore, lineage: list[tuple[int, int, int]], number: int | None) -> None:
    found = run_on(store, find(FindCheckpoint((ROOT,), lineage=tuple(lineage))))
    assert number_in(found) == number
    assert found.passed_over == ()  # they are as they should be
    assert found.number_max == 9  # but their numbers are taken


@pytest.mark.parametrize(
    ("branches", "number"),
    [([], 12), ([(1, 9)], 12), ([(1, 7)], 12), ([(1, 7), (2, 12)], 12), ([(1, 7), (2, 9)], 7), ([(1, 9), (2, 7)], 7), ([(3, 0)], None)],
)
def test_checkpoints_of_a_time_that_a_rollback_ended_do_not_count(
    store: DictStore, branches: list[tuple[int, int]], number: int | None
) -> None:
    """Those up to 9 are of timeline 0, 12 is of timeline 1."""
    run_on(store, publish(task_of(12, [write_part(store, 12, shard, timeline=1) for shard in range(2)])))
    lineage = [(0xC0FFEE, 0, 2**63 - 1), *[(0xC0FFEE, *branch) for branch in branches]]
    assert number_in(run_on(store, find(FindCheckpoint((ROOT,), lineage=tuple(lineage))))) == number


def test_the_highest_number_is_told_also_of_one_that_is_not_complete(store: DictStore) -> None:
    write_part(store, 12, 0)
    assert found_in(store, 5).number_max == 12
