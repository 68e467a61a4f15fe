"""Old checkpoints go, and never one that a kept one needs; a crash between any two removals leaves nothing half there."""

from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dict_store import DictStore
from made_checkpoints import ROOT, make_checkpoint, run_on, task_of, write_part
from ps_server.storage.finding import find
from ps_server.storage.layout import folder_of, manifest_of, number_of, part_of, rows_of
from ps_server.storage.publishing import publish
from ps_server.storage.retention import retire
from ps_server.tasks import FindCheckpoint

FOREIGN = {"notes.txt": b"mine", f"{folder_of(1)}/notes.txt": b"mine", "checkpoint-1/manifest.json": b"mine"}


def store_of(*checkpoints: tuple[int, int | None]) -> DictStore:
    """Return a store with these (number, base), and files of somebody else."""
    store = DictStore()
    store.files.update(FOREIGN)
    for number, base in checkpoints:
        make_checkpoint(store, number, base=base)
    return store


def numbers_in(store: DictStore) -> list[int]:
    return sorted({number for path in store.files if (number := number_of(path)) is not None})


def loadable_in(store: DictStore) -> list[int]:
    """Return the complete checkpoints of which nothing is missing; every manifest that is there must be of one."""
    complete = [number for number in numbers_in(store) if manifest_of(number) in store.files]
    for number in complete:
        found = run_on(store, find(FindCheckpoint((ROOT,), number)))
        assert found.source is not None, found.passed_over
    return complete


@pytest.mark.parametrize(("keep", "kept"), [(1, [4]), (2, [3, 4]), (3, [2, 3, 4]), (4, [1, 2, 3, 4]), (9, [1, 2, 3, 4])])
def test_the_last_ones_are_kept(keep: int, kept: list[int]) -> None:
    store = store_of((1, None), (2, None), (3, None), (4, None))
    assert run_on(store, retire(ROOT, keep)) == 4 - len(kept)
    assert numbers_in(store) == loadable_in(store) == kept


def test_what_a_kept_increment_stands_on_is_kept() -> None:
    store = store_of((1, None), (2, None), (3, 2), (4, 3), (5, 4))
    assert run_on(store, retire(ROOT, 1)) == 1
    assert numbers_in(store) == loadable_in(store) == [2, 3, 4, 5]
    make_checkpoint(store, 6)
    assert run_on(store, retire(ROOT, 1)) == 4
    assert numbers_in(store) == loadable_in(store) == [6]


def test_what_failed_goes_with_the_next_complete_one_and_what_is_under_way_stays() -> None:
    store = store_of((1, None), (3, None))
    write_part(store, 2, 0)
    write_part(store, 4, 0)
    leftovers = [f"{manifest_of(3)}.tmp-00000000", f"{part_of(1, 0)}.tmp-00000000", f"{part_of(4, 0)}.tmp-00000000"]
    store.files.update(dict.fromkeys(leftovers, b"half"))

    assert run_on(store, retire(ROOT, 2)) == 0  # no complete one

    assert numbers_in(store) == [1, 3, 4]
    assert [path in store.files for path in leftovers] == [False, False, True]


def test_nothing_goes_where_nothing_is_complete() -> None:
    store = store_of()
    write_part(store, 2, 0)
    before = dict(store.files)
    assert run_on(store, retire(ROOT, 1)) == 0
    assert store.files == before


def test_one_whose_manifest_is_damaged_is_not_counted() -> None:
    store = store_of((1, None), (2, None), (3, None))
    store.files[manifest_of(3)] = b"{}"
    run_on(store, retire(ROOT, 1))
    assert numbers_in(store) == [2, 3]  # 3 is beyond the last complete one
    make_checkpoint(store, 4)
    run_on(store, retire(ROOT, 1))
    assert numbers_in(store) == [4]


def test_one_that_its_cluster_could_not_go_back_to_is_not_counted() -> None:
    """3 and 4 were passed over, since a server could not load them; what came then stands on 2."""
    store = store_of((1, None), (2, None), (3, 2), (4, 3))
    make_checkpoint(store, 5, base=2, timeline=1)
    own = (0xC0FFEE, 0, 2**63 - 1)
    lineage = (own, (0xC0FFEE, 1, 2))
    assert run_on(store, retire(ROOT, 2, lineage)) == 1
    assert loadable_in(store) == [2, 3, 4, 5]  # what lies between is left to those that come
    make_checkpoint(store, 6, timeline=1)
    run_on(store, publish(task_of(7, [write_part(store, 7, shard, timeline=1) for shard in range(2)], keep=2, lineage=lineage)))
    assert loadable_in(store) == [6, 7]


def test_those_of_another_cluster_are_not_counted() -> None:
    store = store_of((1, None), (2, None), (3, None))
    assert run_on(store, retire(ROOT, 1, ((7, 0, 2**63 - 1), (0xC0FFEE, 2**63 - 1, 2)))) == 1
    assert loadable_in(store) == [2, 3]
    assert run_on(store, retire(ROOT, 1, ((7, 0, 2**63 - 1),))) == 0, "it has none of its own"


def test_nothing_goes_where_a_newer_version_wrote_one() -> None:
    store = store_of((1, None), (2, None), (3, None))
    store.files[manifest_of(3)] = store.files[manifest_of(3)].replace(b'"version": 1', b'"version": 2')
    assert run_on(store, retire(ROOT, 1)) == 0
    assert numbers_in(store) == [1, 2, 3]


class Died(Exception):
    """The process is no more."""


class DyingStore(DictStore):
    """Removes so many objects, one after the other, and no more."""

    def __init__(self, files: dict[str, bytes], removals_left: int) -> None:
        super().__init__()
        self.files = files
        self.removals_left = removals_left

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            if not self.removals_left:
                raise Died
            self.removals_left -= 1
            super().delete([path])


def crash(store: DictStore, keep: int, removals: int) -> None:
    """Remove what `retire` removes first, and die."""
    with suppress(Died):
        run_on(DyingStore(store.files, removals), retire(ROOT, keep))


# One attempt: does it stand on the last complete one, if there is one; is it completed?
some_attempts = st.lists(st.tuples(st.booleans(), st.sampled_from([True, True, True, False])), max_size=6)


@given(some_attempts, st.integers(1, 4), st.integers(0, 30))
def test_whatever_happened_the_last_ones_load_also_after_a_crash(attempts: list[tuple[bool, bool]], keep: int, removals: int) -> None:
    store = store_of()
    complete: list[int] = []
    for number, (is_increment, is_completed) in enumerate(attempts, start=1):
        if is_completed:
            make_checkpoint(store, number, base=complete[-1] if is_increment and complete else None)
            complete.append(number)
        else:
            write_part(store, number, 0)

    crash(store, keep, removals)

    assert loadable_in(store)[-keep:] == complete[-keep:]
    run_on(store, retire(ROOT, keep))
    assert loadable_in(store)[-keep:] == complete[-keep:]
    if complete:
        assert all([number in loadable_in(store) or number > complete[-1] for number in numbers_in(store)])
    assert FOREIGN.items() <= store.files.items()


def test_the_manifest_goes_before_what_it_names() -> None:
    store = store_of((1, None), (2, None))
    crash(store, 1, 1)
    assert manifest_of(1) not in store.files
    assert rows_of(1, 0, 0, 0) in store.files
