"""`ps.local_cluster`: started, known by address and pids, gone afterwards, however it ends."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from polling import poll_until
from procs.started import rowstead
from ps_proto.errors import ClusterFailed, InvalidRequest, RolledBack, UnknownTable
from ps_proto.values import SGD, Async, Sync, TableSpec
from ps_worker.connecting import connect
from ps_worker.local_cluster import LocalCluster, local_cluster


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_cluster_is_ready_and_then_gone(tmp_path: Path) -> None:
    with local_cluster(servers=2, log_dir=tmp_path) as cluster:
        pids = cluster.pids
        assert list(pids) == ["coordinator", "server-0", "server-1"]
        report = json.loads(rowstead("status", cluster.address, "--json").stdout)
        assert [(server["name"], server["state"]) for server in report["servers"]] == [("server-0", "serving"), ("server-1", "serving")]
    assert all(is_gone(pid) for pid in pids.values())
    assert cluster.pids == {}
    for name in pids:
        log = (tmp_path / f"{name}.log").read_text()
        assert "stopping" in log  # asked, not killed
        assert "Traceback" not in log
    with pytest.raises(ClusterFailed, match="not running"):
        _ = cluster.address


def test_an_exception_in_the_block_leaves_no_process() -> None:
    pids = {}

    def interrupted() -> None:
        with local_cluster(servers=1) as cluster:
            pids.update(cluster.pids)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(pids) == 2
    assert all(is_gone(pid) for pid in pids.values())


def test_start_and_stop_by_hand_may_be_repeated() -> None:
    cluster = local_cluster(servers=1)
    cluster.stop()
    first = cluster.start().pids
    assert cluster.start().pids == first
    cluster.stop()
    cluster.stop()
    assert all(is_gone(pid) for pid in first.values())


def test_a_server_that_ends_while_starting_is_named_with_its_last_words() -> None:
    with pytest.raises(ClusterFailed) as caught:
        local_cluster(servers=1, rows_max=-1).start()
    assert caught.value.process == "server-0"
    assert caught.value.reason == "ended with exit code 2"
    assert caught.value.last_lines == "rows_max is '-1' (from --rows-max), but should be greater than or equal to 1."


def test_a_coordinator_that_ends_while_starting_is_named_with_its_last_words() -> None:
    with pytest.raises(ClusterFailed) as caught:
        local_cluster(servers=1, log_level="loud").start()
    assert (caught.value.process, caught.value.reason) == ("coordinator", "ended with exit code 2")
    assert caught.value.last_lines.startswith("log_level is 'loud' (from --log-level), but should be 'debug', ")


def test_what_a_coordinator_can_be_told_it_is_told(tmp_path: Path) -> None:
    cluster = local_cluster(
        servers=1,
        lease_s=0.0,
        checkpoints=tmp_path,
        checkpoint_every_steps=0,
        checkpoint_every_s=0.0,
        checkpoint_keep=0,
        checkpoint_full_every=0,
        checkpoint_options=["aws_region=eu-west-1", "none"],
        restore="ftp://somewhere",
    )
    with pytest.raises(ClusterFailed) as caught:
        cluster.start()
    lines = caught.value.last_lines.splitlines()
    wrong = ("every_s", "every_steps", "full_every", "keep", "options")
    for line, name in zip(sorted(lines), [*[f"checkpoint_{name}" for name in wrong], "lease_s", "restore"], strict=True):
        assert line.startswith(f"{name} is ")
        assert f"(from --{name.replace('_', '-')})" in line


def test_options_of_a_store_are_a_list() -> None:
    with pytest.raises(InvalidRequest, match="checkpoint_options is 'aws_region=eu-west-1', but must be a list"):
        local_cluster(checkpoint_options="aws_region=eu-west-1")


def test_a_cluster_that_is_not_ready_in_time_is_an_error_and_leaves_no_process() -> None:
    with pytest.raises(ClusterFailed, match=r"within 0\.01 s"):
        local_cluster(servers=1, timeout_s=0.01).start()


def test_a_clusters_processes_follow_its_arguments_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWSTEAD_SERVER_HOST", "no-such-host.invalid")
    monkeypatch.setenv("ROWSTEAD_COORDINATOR_PORT", "not a number")
    with local_cluster(servers=1) as cluster:
        assert cluster.address.startswith("127.0.0.1:")


@pytest.mark.parametrize("max_restarts", [-1, True, 1.5, "2"])
def test_a_number_of_restarts_that_cannot_be_is_refused(max_restarts: int) -> None:
    with pytest.raises(InvalidRequest, match="max_restarts is"):
        local_cluster(max_restarts=max_restarts)


def test_a_coordinator_that_is_killed_runs_again_where_it_was_with_what_it_knew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with local_cluster(servers=1, log_dir=tmp_path) as cluster:
        address, before = cluster.address, cluster.pids
        with connect(address, rank=0, world_size=1, mode=Sync()) as client:
            client.create_table(TableSpec("rows", dim=1))
        os.kill(before["coordinator"], signal.SIGKILL)
        poll_until(lambda: cluster.pids["coordinator"] != before["coordinator"])
        with connect(address) as client:
            assert client.pull("rows", np.arange(3)).tolist() == [[0.0]] * 3
        after = cluster.pids
        assert (cluster.address, after["server-0"]) == (address, before["server-0"])
        assert (tmp_path / "state" / "coordinator.sqlite3").exists()
    assert all(is_gone(pid) for pid in after.values())
    assert [record.message for record in caplog.records] == [
        "coordinator was killed by SIGKILL; it is started again in 0.5 s (1 of 3 restarts).",
        f"coordinator runs again as process {after['coordinator']}.",
    ]


def test_a_server_that_is_killed_runs_again_and_all_go_back_to_the_last_checkpoint(tmp_path: Path) -> None:
    ids, ones = np.arange(100), np.ones((100, 1), np.float32)
    with local_cluster(servers=2, checkpoints=tmp_path) as cluster:
        with pytest.raises(RolledBack, match="rank 0 goes on with step 2"):
            train_until_told(cluster, ids, ones)
        before = cluster.pids
        with connect(cluster.address, rank=0, world_size=1, mode=Async(), resume=True) as client:
            assert (client.clock, client.pull("rows", ids).tolist()) == (2, [[-2.0]] * 100)
        assert cluster.pids == before


def train_until_told(cluster: LocalCluster, ids: NDArray[np.int64], ones: NDArray[np.float32]) -> None:
    """Take two steps and a checkpoint, then kill a server and train on."""
    with connect(cluster.address, rank=0, world_size=1, mode=Async()) as client:
        client.create_table(TableSpec("rows", dim=1, optimizer=SGD(lr=1.0)))
        for step in range(1_000_000):
            client.push("rows", ids, ones)
            client.end_step()
            if step == 1:
                assert client.checkpoint().step == 2
                os.kill(cluster.pids["server-1"], signal.SIGKILL)


def test_a_cluster_begins_anew_beside_the_logs_of_another(tmp_path: Path) -> None:
    for _ in range(2):
        with local_cluster(servers=1, log_dir=tmp_path) as cluster, connect(cluster.address, rank=0, world_size=1, mode=Sync()) as client:
            with pytest.raises(UnknownTable):
                client.pull("rows", np.arange(3))
            client.create_table(TableSpec("rows", dim=1))


def test_a_process_that_fails_too_often_is_said_once_with_its_last_words(caplog: pytest.LogCaptureFixture) -> None:
    with local_cluster(servers=1, max_restarts=1) as cluster:
        os.kill(cluster.pids["coordinator"], signal.SIGKILL)
        poll_until(lambda: "runs again" in caplog.text)
        os.kill(cluster.pids["coordinator"], signal.SIGKILL)
        poll_until(lambda: "It is not started again" in caplog.text)
        assert not is_gone(cluster.pids["server-0"])
    assert "coordinator was killed by SIGKILL" in caplog.records[-1].message


def test_without_restarts_what_died_stays_dead() -> None:
    with local_cluster(servers=1, max_restarts=0):
        assert "rowstead-tend" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("servers", [0, -1, 257, True, 1.5, "2"])
def test_a_number_of_servers_that_cannot_be_is_refused(servers: int) -> None:
    with pytest.raises(InvalidRequest, match="servers is"):
        local_cluster(servers=servers)


def test_no_orphan_is_left_when_the_user_is_killed(tmp_path: Path) -> None:
    code = f"""
import time
from ps_worker.local_cluster import LocalCluster, local_cluster
cluster = local_cluster(servers=1, log_dir={str(tmp_path)!r}).start()
print(*cluster.pids.values(), flush=True)
time.sleep(3600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as user:
        try:
            assert user.stdout is not None
            pids = [int(pid) for pid in user.stdout.readline().split()]
        finally:
            user.kill()
    assert len(pids) == 2
    for pid in pids:
        poll_until(lambda pid=pid: is_gone(pid), timeout_s=10)  # type: ignore[misc]  # mypy does not see the type of a bound default
