"""What a client pulls: rows in the caller's order, of one request per server."""

import numpy as np
import pytest

from clients import EXTREMES, USER, alone, each_mode, ones
from naive.table import NaiveTable
from ps_proto.values import SGD, Async, Constant, Mode, Sync, TableSpec


@pytest.mark.parametrize("servers", [1, 2, 5])
@each_mode
def test_a_pull_returns_rows_in_any_order_with_repeats(servers: int, mode: Mode) -> None:
    _, client = alone(mode, servers)
    with client:
        ids = [5, 2**64 - 1, 5, 0, 7, 0]
        rows = client.pull("user", np.array(ids, np.uint64))
        assert (rows.dtype.name, rows.shape) == ("float32", (6, 3))
        assert rows.tobytes() == np.array(NaiveTable(USER).pull(ids)).tobytes()
        assert client.export("user")[0].size == 0, "a pull creates nothing"


def test_int64_ids_are_taken_bit_for_bit() -> None:
    _, client = alone()
    with client:
        unsigned = client.pull("user", np.array(EXTREMES, np.uint64))
        signed = client.pull("user", np.array(EXTREMES, np.uint64).view(np.int64))
        assert signed.tobytes() == unsigned.tobytes()
        assert client.pull("user", [-1]).tobytes() == unsigned[-1:].tobytes()


def test_lists_tuples_and_narrow_integers_are_ids() -> None:
    _, client = alone()
    with client:
        wanted = client.pull("user", np.array([3, 4], np.uint64))
        for ids in ([3, 4], (3, 4), np.array([3, 4], np.uint8), np.array([3, 4], ">i8"), np.array([3, 9, 4])[::2]):
            assert client.pull("user", ids).tobytes() == wanted.tobytes(), repr(ids)


@each_mode
def test_a_pull_of_nothing_is_empty(mode: Mode) -> None:
    _, client = alone(mode)
    with client:
        assert client.pull("user", []).shape == (0, 3)
        assert client.pull("user", np.empty(0, np.int64)).shape == (0, 3)
        assert client.pull({"user": [], "item": [1]})["item"].shape == (1, 2)
        assert client.pull({}) == {}


def test_a_dict_asks_each_server_once() -> None:
    cluster, client = alone()
    with client:
        before = len(cluster.calls)
        rows = client.pull({"user": np.arange(50), "item": [1, 1, 2]})
        assert len(cluster.calls) - before == 2
        assert list(rows) == ["user", "item"]
        assert (rows["user"].shape, rows["item"].shape) == ((50, 3), (3, 2))
        assert rows["user"].tobytes() == client.pull("user", np.arange(50)).tobytes()


@pytest.mark.parametrize("part_size_bytes", [1, 100, 1 << 20])
def test_parts_of_any_size_carry_the_same(part_size_bytes: int) -> None:
    _, client = alone(Async(), 2, part_size_bytes=part_size_bytes)
    with client:
        ids = np.arange(40, dtype=np.uint64)
        client.push("user", ids, np.arange(120, dtype=np.float32).reshape(40, 3))
        naive = NaiveTable(USER)
        naive.update(ids.tolist(), list(np.arange(120, dtype=np.float32).reshape(40, 3)), USER.optimizer.parameters())
        assert client.pull("user", ids).tobytes() == np.array(naive.pull(ids.tolist())).tobytes()


def test_constant_rows_read_as_their_constant_before_anybody_pushes() -> None:
    _, client = alone(Sync(), 2, TableSpec("c", 2, SGD(1.0), Constant(0.25)))
    with client:
        assert client.pull("c", EXTREMES).tolist() == ones(5, 2, 0.25).tolist()
