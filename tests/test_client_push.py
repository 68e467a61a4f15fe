"""What a client pushes and assigns, and when it is seen."""

import numpy as np
import pytest

from clients import BRIEF, ITEM, MODES, alone, each_mode, ones
from ps_proto.errors import InvalidRequest, RowsUnset
from ps_proto.requests import Push
from ps_proto.values import SGD, Assigned, Async, Mode, Sync, TableSpec


@each_mode
def test_repeats_in_a_push_are_summed(mode: Mode) -> None:
    _, client = alone(mode, 2, ITEM)
    with client:
        client.push("item", [7, 3, 7], np.array([[1, 2], [3, 4], [10, 20]], np.float32))
        client.end_step()
        assert client.pull("item", [3, 7]).tolist() == [[-3, -4], [-11, -22]]


def test_in_synchronous_mode_a_step_reads_the_weights_of_its_start() -> None:
    _, client = alone(Sync(), 2, ITEM)
    with client:
        client.push("item", [1], ones(1, 2))
        client.push("item", [1], ones(1, 2, 4.0))
        assert client.pull("item", [1]).tolist() == [[0, 0]]
        client.end_step()
        assert client.clock == 1
        assert client.pull("item", [1]).tolist() == [[-5, -5]]  # the pushes of a step add up


def test_in_asynchronous_mode_a_push_is_seen_at_once() -> None:
    _, client = alone(Async(), 2, ITEM)
    with client:
        client.push({"item": ([1], ones(1, 2))})
        assert client.pull("item", [1]).tolist() == [[-1, -1]]


@each_mode
def test_a_push_of_nothing_is_fine(mode: Mode) -> None:
    _, client = alone(mode)
    with client:
        client.push("user", [], np.empty((0, 3), np.float32))
        client.push({})
        client.end_step()
        assert client.export("user")[0].size == 0


def test_a_push_reaches_each_server_at_once_or_not_at_all() -> None:
    cluster, client = alone()
    with client:
        with pytest.raises(InvalidRequest, match="rows of table 'item'"):
            client.push({"user": (np.arange(9), ones(9)), "item": ([1], ones(1, 3))})
        assert client.export("user")[0].size == 0
        assert not [body for _, body in cluster.calls if isinstance(body, Push)]


def test_gradients_may_be_changed_once_the_push_is_acknowledged() -> None:
    _, client = alone(Sync(), 2, ITEM)
    with client:
        gradients = ones(1, 2)
        client.push("item", [1], gradients)
        gradients[:] = 100
        client.end_step()
        assert client.pull("item", [1]).tolist() == [[-1, -1]]


def test_assigned_rows_are_there_at_once_in_every_mode() -> None:
    for mode in MODES:
        _, client = alone(mode, 2, ITEM)
        with client:
            client.assign("item", [1, 2], np.array([[1, 2], [3, 4]], np.float32))
            client.assign("item", [2, 3], ones(2, 2, 9.0), only_absent=True)
            assert client.pull("item", [1, 2, 3]).tolist() == [[1, 2], [3, 4], [9, 9]]
            with pytest.raises(InvalidRequest, match="2 with 1 repeats"):
                client.assign("item", [1, 1], ones(2, 2))


def test_rows_without_a_value_wait_for_rank_0() -> None:
    cluster, client = alone(Async(), 2, TableSpec("dense", 2, SGD(1.0), Assigned()))
    with client, cluster.connect(patience=BRIEF) as observer:
        with pytest.raises(RowsUnset, match="1 rows of table 'dense' have no value: rank 0 has not assigned them"):
            observer.pull("dense", [0])
        with pytest.raises(InvalidRequest, match="assigned by rank 0 before"):
            client.push("dense", [0], ones(1, 2))
        client.assign("dense", [0], ones(1, 2))  # a push that every server refused leaves nothing behind
        client.push("dense", [0], ones(1, 2))
        assert observer.pull("dense", [0]).tolist() == [[0, 0]]
