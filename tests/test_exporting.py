"""The merge of the servers' sorted streams, part by part; a worker that answers from lists stands in for the cluster."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_proto.requests import CloseExport, Cluster, Done, ExportOpened, ExportPart, GetCluster, OpenExport, ReadExport
from ps_proto.values import Async, TableSpec
from ps_worker import exporting
from ps_worker.asking import Call
from ps_worker.exporting import TableExport, open_export
from ps_worker.protocol import COORDINATOR, Worker
from scripted import Scripted
from sharding.hashing import NUM_BUCKETS
from sharding.shard_map import Server, ShardMap

DIM = 2
ROW_BYTES = 8 + 4 * DIM


class Servers:
    """Each holds some ids, ascending; the row of an id is made from it."""

    def __init__(self, held: list[list[int]]) -> None:
        self.held = {f"server-{k}": sorted(ids) for k, ids in enumerate(held)}
        servers = tuple(Server(name, name) for name in self.held)
        self.cluster = Cluster(len(servers), ShardMap(1, servers, np.zeros(NUM_BUCKETS, np.int32)), (TableSpec("user", DIM),), mode=Async())
        self.read: list[tuple[str, int, int]] = []
        self.closed: list[str] = []
        self.script = Scripted(self.answer)
        self.worker = Worker("host", self.script.world)
        self.script.run(self.worker.observe())

    def answer(self, call: Call) -> Any:
        match call.body:
            case GetCluster():
                assert call.peer == COORDINATOR
                return self.cluster
            case OpenExport():
                return ExportOpened(5, len(self.held[call.peer]), 0)
            case ReadExport(_, 5, begin, rows_max):
                ids = self.held[call.peer][begin : begin + rows_max]
                self.read.append((call.peer, begin, len(ids)))
                return ExportPart(np.array(ids, np.uint64), rows_of(ids))
            case CloseExport(_, 5):
                self.closed.append(call.peer)
                return Done()
        raise AssertionError(call.body)

    def open(self) -> TableExport:
        return self.script.run(open_export(self.worker, "user"))

    def parts(self) -> list[tuple[list[int], Any]]:
        export = self.open()
        parts = []
        while (part := self.script.run(export.next_part())) is not None:
            parts.append((part[0].tolist(), part[1]))
            assert len(parts) < 1_000, "it never ends"
        assert self.script.run(export.next_part()) is None  # and stays so
        self.script.run(export.close())
        return parts


def rows_of(ids: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array([[id % 1009, id >> 40] for id in ids], np.float32).reshape(-1, DIM)


@pytest.fixture
def three_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "PART_BYTES", 3 * ROW_BYTES)


@given(
    ids=st.sets(st.one_of(st.integers(0, 60), st.integers(0, 2**64 - 1)), max_size=80),
    servers=st.integers(1, 5),
    rows_max=st.integers(1, 12),
    seed=st.integers(0, 99),
)
def test_parts_of_any_size_merge_to_everything_sorted(ids: set[int], servers: int, rows_max: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    held: list[list[int]] = [[] for _ in range(servers)]
    for id in sorted(ids):
        held[rng.integers(0, servers)].append(id)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(exporting, "PART_BYTES", rows_max * ROW_BYTES)
        cluster = Servers(held)
        parts = cluster.parts()
    assert [id for part, _ in parts for id in part] == sorted(ids)
    for part, rows in parts:
        assert part, "an empty part says nothing"
        assert rows.tobytes() == rows_of(part).tobytes()
    assert sorted(cluster.closed) == sorted(cluster.held)
    for name, all_ids in cluster.held.items():  # each row is asked for once
        assert sum(count for server, _, count in cluster.read if server == name) == len(all_ids)


@pytest.mark.usefixtures("three_rows_at_a_time")
def test_no_id_is_given_out_before_all_lower_ones_are_known() -> None:
    cluster = Servers([[0, 1, 2, 50, 51], [10, 20, 30, 40], []])
    assert [part for part, _ in cluster.parts()] == [[0, 1, 2], [10, 20, 30], [40, 50, 51]]


@pytest.mark.usefixtures("three_rows_at_a_time")
def test_only_streams_that_ran_dry_are_read_on() -> None:
    cluster = Servers([[0, 1, 2, 3, 4, 5], [100]])
    export = cluster.open()
    cluster.script.run(export.next_part())
    cluster.script.run(export.next_part())
    assert cluster.read == [("server-0", 0, 3), ("server-1", 0, 1), ("server-0", 3, 3)]


def test_an_empty_table_has_no_part() -> None:
    cluster = Servers([[], []])
    assert cluster.parts() == []
    assert cluster.read == []


def test_rows_wider_than_a_part_are_read_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "PART_BYTES", 1)
    cluster = Servers([[3, 1], [2]])
    assert [part for part, _ in cluster.parts()] == [[1], [2, 3]]
    assert cluster.read == [("server-0", 0, 1), ("server-1", 0, 1), ("server-0", 1, 1)]
