"""Real processes: the same bits with any number of servers, on every transport, with parts of any size, and through a network that loses
and doubles."""

from pathlib import Path

import pytest

import ps_worker as ps
from cut_lanes import FATES, CutLanes
from jobs import checksum
from naive.training import train as train_in_one_process
from procs.proxied import proxied_cluster
from procs.ranks import train

WORKERS, STEPS = 2, 15


@pytest.fixture(scope="module")
def reference() -> str:
    return checksum(train_in_one_process(WORKERS, STEPS))


@pytest.mark.parametrize(("servers", "part_size_bytes", "transport"), [(1, 1 << 20, "unix"), (2, 100, "grpc"), (5, 1 << 20, "tcp")])
def test_servers_parts_and_the_transport_change_no_bit(servers: int, part_size_bytes: int, transport: str, reference: str) -> None:
    with ps.local_cluster(servers=servers) as cluster:
        assert checksum(train(cluster.address, WORKERS, STEPS, part_size_bytes, transport=transport)) == reference  # type: ignore[arg-type]


def test_the_arena_and_lanes_that_are_cut_change_no_bit(reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = CutLanes(seed=17, share=0.2, monkeypatch=monkeypatch)
    with ps.local_cluster(servers=2) as cluster:
        assert checksum(train(cluster.address, WORKERS, STEPS, transport="arena")) == reference  # type: ignore[arg-type]
    assert all([lanes.faults[fate] > 0 for fate in FATES]), lanes.faults


def test_lost_and_doubled_messages_change_no_bit(tmp_path: Path, reference: str) -> None:
    with proxied_cluster(tmp_path, servers=2, seed=11, lose=0.1, double=0.1) as cluster:
        assert checksum(train(cluster.address, WORKERS, STEPS, 1 << 20)) == reference  # type: ignore[arg-type]
        for kind in ("request lost", "answer lost", "request doubled"):
            assert cluster.faults(kind) > 0, kind
