"""The ring against a linear scan; points belong to names."""

import numpy as np
import pytest

from naive import sharding as naive
from sharding.hashing import NUM_BUCKETS
from sharding.ring import BUCKET_POINTS, VIRTUAL_NODES, Ring

NAMES = ["server-0", "server-1", "server-2", "cache", "Ж"]


def by_name(ring: Ring, names: list[str]) -> list[tuple[int, str]]:
    return [(int(point), names[owner]) for point, owner in zip(ring.points, ring.owners, strict=True)]


def test_each_server_has_as_many_virtual_nodes_in_ascending_order() -> None:
    ring = Ring.of(NAMES)
    assert np.bincount(ring.owners).tolist() == [VIRTUAL_NODES] * len(NAMES)
    assert np.all(ring.points[:-1] < ring.points[1:])


def test_golden_points() -> None:
    assert Ring.of(["a", "b", "c"]).points[:3].tolist() == [0x000A6DF2405F2658, 0x008E09FF2BEBEB84, 0x009A69CB287F8498]


@pytest.mark.parametrize("bucket", [0, 1, 4_000, 8_191, 16_000, NUM_BUCKETS - 1])
def test_the_order_of_a_bucket_is_the_clockwise_walk(bucket: int) -> None:
    order = [NAMES[index] for index in Ring.of(NAMES).order_of(bucket)]
    assert order == naive.ring_order(NAMES, bucket)


def test_points_depend_on_names_and_not_on_the_list() -> None:
    turned = NAMES[::-1]
    assert by_name(Ring.of(NAMES), NAMES) == by_name(Ring.of(turned), turned)


def test_a_newcomer_moves_no_point_of_the_others() -> None:
    more = [*NAMES, "new"]
    assert [pair for pair in by_name(Ring.of(more), more) if pair[1] != "new"] == by_name(Ring.of(NAMES), NAMES)


def test_a_restricted_ring_keeps_the_order_and_the_indexes() -> None:
    is_kept = np.array([True, False, True, False, False])
    order = Ring.of(NAMES).restricted_to(is_kept).order_of(77)
    assert order.tolist() == [index for index in Ring.of(NAMES).order_of(77) if is_kept[index]]


def test_distances_wrap_around_the_end_of_the_ring() -> None:
    ring = Ring(np.array([5, 2**63], dtype=np.uint64), np.array([0, 1], dtype=np.int32))
    assert ring.starts()[[0, 1, 8_192, 8_193]].tolist() == [0, 1, 1, 0]
    assert int(ring.distances()[0]) == 5
    assert int(ring.distances()[8_192]) == 0  # a node at the bucket's very point
    assert int(ring.distances()[8_193]) == 2**64 - int(BUCKET_POINTS[8_193]) + 5
