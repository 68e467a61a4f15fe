"""Pushes that wait for their fold, and the fold against its slow twin, bit for bit."""

import numpy as np
import pytest

from conversation import rows
from naive.fold import Pushed
from naive.fold import fold as fold_slowly
from ps_proto.requests import TableRows
from ps_server.shard.index import Found
from ps_server.shard.staging import PlacedRows, Staging, fold
from ps_server.shard.table import Places

SPECIAL = np.array([0.0, -0.0, 1e-45, -1e-38, 1e8, -1e8, 3.0000002, 1 / 3], np.float32)


def values_of(contributions: list[TableRows]) -> list[float]:
    return [float(value) for part in contributions for value in part.rows[:, 0]]


def test_a_name_is_held_once() -> None:
    staging = Staging()
    assert staging.add(0, 4, 1, (rows("user", {7: 1.0}),))
    assert not staging.add(0, 4, 1, (rows("user", {7: 2.0}),))
    assert values_of(staging.take(4, [0])["user"]) == [1.0]


def test_a_step_is_taken_by_rank_then_seq_whatever_came_first() -> None:
    staging = Staging()
    for rank, seq in ((1, 10), (0, 2), (1, 2), (0, 1)):
        staging.add(rank, 4, seq, (rows("user", {7: 100.0 * rank + seq}),))
    assert values_of(staging.take(4, [0, 1])["user"]) == [1.0, 2.0, 102.0, 110.0]


def test_only_the_roster_and_only_the_step_are_taken() -> None:
    staging = Staging()
    staging.add(0, 4, 1, (rows("user", {7: 1.0}),))
    staging.add(1, 4, 1, (rows("user", {7: 2.0}),))
    staging.add(0, 5, 1, (rows("user", {7: 3.0}),))
    assert values_of(staging.take(4, [0])["user"]) == [1.0]
    assert staging.take(4, [0, 1]) == {}
    assert staging.steps == [5]


def test_tables_are_kept_apart() -> None:
    staging = Staging()
    staging.add(0, 0, 1, (rows("user", {7: 1.0}), rows("item", {8: 2.0, 9: 3.0})))
    assert staging.rows_count == 3
    assert staging.nbytes == 3 * (8 + 4)
    assert [ids.tolist() for ids in staging.ids_of("item")] == [[8, 9]]
    assert {table: values_of(parts) for table, parts in staging.take(0, [0]).items()} == {"user": [1.0], "item": [2.0, 3.0]}
    assert (staging.rows_count, staging.nbytes) == (0, 0)


def test_the_places_of_gradients_take_memory_too() -> None:
    staging = Staging()
    plain = rows("user", {8: 2.0, 9: 3.0})
    found = Found(np.array([4, 5], np.int32), 0)
    staging.add(0, 0, 1, (PlacedRows(plain.table, plain.ids, plain.rows, places=Places(found, object())),))
    assert staging.nbytes == 2 * (8 + 4 + 4)


def test_what_a_rank_staged_beyond_a_step_is_dropped() -> None:
    staging = Staging()
    for rank, clock in ((0, 4), (0, 5), (1, 5), (0, 6)):
        staging.add(rank, clock, 1, (rows("user", {7: 1.0}),))
    staging.drop(0, beyond=4)
    assert staging.steps == [4, 5]
    assert staging.rows_count == 2
    assert staging.add(0, 5, 1, (rows("user", {7: 2.0}),))  # redone under the same name


def some_pushes(seed: int, dim: int) -> list[Pushed]:
    rng = np.random.default_rng(seed)
    pushes = []
    for rank in range(3):
        for seq in range(1, 1 + int(rng.integers(0, 4))):
            picked = rng.permutation(np.array([0, 1, 2, 2**63, 2**64 - 1], np.uint64))[: int(rng.integers(0, 6))]
            values = np.where(
                rng.random((picked.size, dim)) < 0.3, rng.choice(SPECIAL, (picked.size, dim)), rng.normal(size=(picked.size, dim))
            )
            pushes.append((rank, seq, dict(zip(picked.tolist(), values.astype(np.float32), strict=True))))
    return pushes


def as_rows(gradients: dict[int, np.ndarray[tuple[int], np.dtype[np.float32]]], dim: int) -> TableRows:
    return TableRows("user", np.array(list(gradients), np.uint64), np.array(list(gradients.values()), np.float32).reshape(-1, dim))


@pytest.mark.parametrize("seed", range(40))
def test_a_fold_equals_its_twin_bit_for_bit_in_any_order_of_arrival(seed: int) -> None:
    dim = 1 + seed % 5
    pushes = some_pushes(seed, dim)
    want = fold_slowly(pushes, ranks_count=3)
    for arrival in range(3):
        staging = Staging()
        for at in np.random.default_rng([seed, arrival]).permutation(len(pushes)).tolist():
            rank, seq, gradients = pushes[at]
            staging.add(rank, 0, seq, (as_rows(gradients, dim),))
        contributions = staging.take(0, [0, 1, 2]).get("user", [])
        if not contributions:
            assert not want
            continue
        ids, means, _ = fold(contributions, 3)
        assert sorted(ids.tolist()) == sorted(want), f"seed {seed}"
        for id, mean in zip(ids.tolist(), means, strict=True):
            assert mean.tobytes() == np.array(want[id], np.float32).tobytes(), f"seed {seed}, id {id}"


def test_the_order_of_ranks_is_in_the_bits() -> None:
    """What the order is for: float32 sums depend on it."""
    big, small = rows("user", {7: 1e8}), rows("user", {7: 30.0})
    less = rows("user", {7: -1e8})
    assert fold([big, small, less], 1)[1].tolist() == [[32.0]]
    assert fold([big, less, small], 1)[1].tolist() == [[30.0]]


@pytest.mark.parametrize("ranks_count", [1, 2, 3, 7])
def test_a_lone_contribution_is_copied_and_scaled(ranks_count: int) -> None:
    one = rows("user", {7: -0.0, 8: 5.0})
    kept = one.rows.copy()
    ids, means, _ = fold([one], ranks_count)
    assert ids.tolist() == [7, 8]
    want = kept * np.float32(1 / ranks_count)
    assert means.tobytes() == want.tobytes()  # -0.0 keeps its sign
    assert one.rows.tobytes() == kept.tobytes()  # what was handed in is not written to


def test_the_mean_is_a_product_with_float32_of_the_inverse() -> None:
    _, means, _ = fold([rows("user", {7: 5.0})], 3)
    assert means[0, 0] == np.float32(5.0) * np.float32(1 / 3)
    assert means[0, 0] != np.float32(5.0 / 3)


def test_read_only_rows_fold_as_others_do() -> None:
    wire = TableRows(
        "user", np.frombuffer(np.uint64(7).tobytes(), np.uint64), np.frombuffer(np.float32(4).tobytes(), np.float32).reshape(1, 1)
    )
    ids, means, _ = fold([wire, wire], 2)
    assert (ids.tolist(), means.tolist()) == ([7], [[4.0]])


def placed(values: dict[int, float], slots: list[int], standing: object) -> TableRows:
    plain = rows("user", values)
    found = Found(np.array(slots, np.int32), slots.count(-1))
    return PlacedRows(plain.table, plain.ids, plain.rows, places=Places(found, standing))


def test_a_fold_knows_the_places_that_all_its_pulls_have_found() -> None:
    standing = object()
    first, second = placed({7: 1.0, 9: 1.0}, [3, -1], standing), placed({5: 1.0, 7: 1.0}, [0, 3], standing)
    folded = fold([first, second], 2)
    assert folded.places is not None
    assert dict(zip(folded.ids.tolist(), folded.places.found.slots.tolist(), strict=True)) == {7: 3, 9: -1, 5: 0}
    assert (folded.places.found.absent, folded.places.standing) == (1, standing)
    alone = fold([first], 1)
    assert alone.places is not None
    assert alone.places.found.slots.tolist() == [3, -1]


def test_a_fold_knows_no_places_where_one_is_not_known_or_rows_were_dropped_between() -> None:
    known = placed({7: 1.0}, [3], object())
    assert fold([known, rows("user", {7: 1.0})], 2).places is None
    assert fold([known, placed({7: 1.0}, [3], object())], 2).places is None
