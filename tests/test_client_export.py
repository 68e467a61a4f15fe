"""Whole tables and numbers."""

import numpy as np
import pytest

from clients import ITEM, alone, each_mode, ones
from inprocess import Fault
from ps_proto.errors import Unreachable
from ps_proto.requests import CloseExport, ReadExport
from ps_proto.values import Async, Mode, Sync


@pytest.mark.parametrize("servers", [1, 2, 5])
@each_mode
def test_export_gives_every_row_ascending(servers: int, mode: Mode) -> None:
    _, client = alone(mode, servers, ITEM)
    with client:
        assert [array.shape for array in client.export("item")] == [(0,), (0, 2)]
        given = np.array([9, 2**64 - 1, 0, 2**63, 5], np.uint64)
        client.assign("item", given, np.arange(10, dtype=np.float32).reshape(5, 2))
        ids, rows = client.export("item")
        assert (ids.dtype.name, rows.dtype.name) == ("uint64", "float32")
        assert ids.tolist() == sorted(given.tolist())
        assert rows.tolist() == [[4, 5], [8, 9], [0, 1], [6, 7], [2, 3]]


def test_export_iter_is_of_one_instant_while_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ps_worker.exporting.PART_BYTES", 7 * 16)  # 7 rows of a server at a time
    cluster, client = alone(Async(), 2, ITEM)
    with client:
        client.push("item", np.arange(60), ones(60, 2))
        seen: list[int] = []
        for ids, rows in client.export_iter("item"):
            assert rows.tolist() == ones(len(ids), 2, -1.0).tolist()
            seen += ids.tolist()
            client.push("item", np.arange(70), ones(70, 2))
        assert seen == list(range(60))
        assert len([body for _, body in cluster.calls if isinstance(body, ReadExport)]) > 8
        assert all(len(shard._exports) == 0 for shard in cluster.shards.values())


def test_an_export_that_is_given_up_is_closed_on_the_servers() -> None:
    cluster, client = alone(Async(), 2, ITEM)
    with client:
        client.push("item", np.arange(60), ones(60, 2))
        parts = client.export_iter("item")
        next(parts)
        assert all(len(shard._exports) == 1 for shard in cluster.shards.values())
        parts.close()  # type: ignore[attr-defined]
        assert all(len(shard._exports) == 0 for shard in cluster.shards.values())


def test_an_export_that_fails_ends_with_its_error_and_asks_no_more() -> None:
    cluster, client = alone(Async(), 2, ITEM)
    with client:
        client.push("item", np.arange(60), ones(60, 2))
        cluster.faults.append(Fault(ReadExport, "server-1:0", is_lost=True, count=1_000_000))
        with pytest.raises(Unreachable, match="server-1"):
            client.export("item")
        assert not [body for _, body in cluster.calls if isinstance(body, CloseExport)]


def test_an_export_of_a_worker_sees_its_finished_steps() -> None:
    _, client = alone(Sync(), 2, ITEM)
    with client:
        client.push("item", [1], ones(1, 2))
        assert client.export("item")[0].size == 0
        client.end_step()
        assert client.export("item")[1].tolist() == [[-1, -1]]


def test_stats_are_by_server_and_table() -> None:
    _, client = alone(Async(), 2, ITEM)
    with client:
        client.push("item", np.arange(60), ones(60, 2))
        stats = client.stats()
        assert sorted(stats) == ["server-0", "server-1"]
        assert sum(server.tables["item"]["rows"] for server in stats.values()) == 60
