"""The coordinator and the servers as processes, started by hand: ready, seen, stopped, orphaned."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from polling import poll_until
from procs.started import ROWSTEAD, Started, rowstead, started

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
NOBODY = "127.0.0.1:9"  # the discard port: nobody listens there


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Started]]:
    """A coordinator and two servers that serve; server-1 logs JSON."""
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        coordinator = stack.enter_context(started(folder, "coordinator", "coordinator", "--servers=2"))
        servers = [
            stack.enter_context(
                started(folder, name, "server", f"--coordinator={coordinator.address}", f"--name={name}", f"--log-format={log}")
            )
            for name, log in (("server-0", "text"), ("server-1", "json"))
        ]
        for process in (coordinator, *servers):
            process.wait_for_log("serving")
        yield [coordinator, *servers]


def health(address: str, service: str = "") -> int:
    with grpc.insecure_channel(address) as channel:
        reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
    return int(reply.status)


def test_a_process_that_serves_says_so(cluster: list[Started]) -> None:
    coordinator, *servers = cluster
    assert health(coordinator.address) == health(coordinator.address, "rowstead.v1.Coordinator") == SERVING
    for server in servers:
        assert health(server.address) == health(server.address, "rowstead.v1.ParameterServer") == SERVING


def test_reflection_lists_the_services(cluster: list[Started]) -> None:
    own = ("rowstead.v1.Coordinator", "rowstead.v1.ParameterServer", "rowstead.v1.ParameterServer")
    for process, service in zip(cluster, own, strict=True):
        with grpc.insecure_channel(process.address) as channel:
            listed = set(ProtoReflectionDescriptorDatabase(channel).get_services())
        assert listed == {service, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


def test_status_shows_both_servers(cluster: list[Started]) -> None:
    coordinator, *servers = cluster
    poll_until(lambda: "2 of 2 servers serve, shard map 1" in rowstead("status", coordinator.address).stdout)
    shown = rowstead("status", coordinator.address)
    assert (shown.returncode, shown.stderr) == (0, "")
    for server in servers:
        (line,) = [line for line in shown.stdout.splitlines() if line.startswith(server.name)]
        assert line.split() == [server.name, server.address, "1", "8,192", "0", "serving"]
    report = json.loads(rowstead("status", "--coordinator", coordinator.address, "--json").stdout)
    assert [(server["name"], server["buckets"], server["state"]) for server in report["servers"]] == [
        ("server-0", 8192, "serving"),
        ("server-1", 8192, "serving"),
    ]


def test_logs_are_for_people_or_for_machines(cluster: list[Started]) -> None:
    _, in_text, in_json = cluster
    assert f"INFO    server-0  serving  address={in_text.address}" in in_text.log
    lines = [json.loads(line) for line in in_json.log.splitlines()]
    (serving,) = [line for line in lines if line["event"] == "serving"]
    assert (serving["process"], serving["level"], serving["address"]) == ("server-1", "info", in_json.address)


def test_a_server_too_many_is_refused_in_a_sentence(cluster: list[Started]) -> None:
    refused = rowstead("server", f"--coordinator={cluster[0].address}", "--name=server-2")
    assert refused.returncode == 1
    assert "one of the 2 servers that this cluster was started for: server-0, server-1" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_second_server_of_a_name_is_refused_and_one_that_crashed_comes_back(tmp_path: Path) -> None:
    with started(tmp_path, "coordinator", "coordinator", "--servers=2") as coordinator:
        flags = ["server", f"--coordinator={coordinator.address}", "--name=server-0"]
        with started(tmp_path, "first", *flags) as first:
            first.wait_for_log("serving")
            refused = rowstead(*flags)
            assert refused.returncode == 1
            assert f"'server-0', which the server at {first.address} has" in refused.stderr
        port = first.address.rpartition(":")[2]
        with started(tmp_path, "other", "coordinator", "--servers=1", f"--port={port}"), started(tmp_path, "again", *flags) as again:
            again.wait_for_log("serving")  # although somebody answers at the old address
            assert json.loads(rowstead("status", coordinator.address, "--json").stdout)["servers"][0]["address"] == again.address


@pytest.mark.parametrize("target", ["/no such folder/address", "999"])
def test_an_announcement_that_cannot_be_written_is_a_sentence(target: str) -> None:
    refused = rowstead("coordinator", "--servers=1", f"--announce={target}")
    assert refused.returncode == 2
    assert f"announce is '{target}', which cannot be written to" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "ctrl-c"])
def test_a_stop_is_clean(number: signal.Signals, tmp_path: Path) -> None:
    with (
        started(tmp_path, "coordinator", "coordinator", "--servers=1") as coordinator,
        started(tmp_path, "server", "server", f"--coordinator={coordinator.address}") as server,
    ):
        server.wait_for_log("serving")
        for process in (server, coordinator):
            process.process.send_signal(number)
        assert [process.process.wait(20) for process in (server, coordinator)] == [0, 0]
        assert "stopping" in server.log
        assert "Traceback" not in server.log + coordinator.log


def test_a_server_without_a_coordinator_waits_says_so_and_stops_when_told(tmp_path: Path) -> None:
    with started(tmp_path, "server", "server", f"--coordinator={NOBODY}") as server:
        server.wait_for_log("the coordinator does not answer yet")
        assert health(server.address) == NOT_SERVING
        server.process.terminate()
        assert server.process.wait(20) == 0


def test_a_server_may_start_before_its_coordinator(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with started(tmp_path, "server", "server", f"--coordinator=127.0.0.1:{port}") as server:
        server.wait_for_log("the coordinator does not answer yet")
        with started(tmp_path, "coordinator", "coordinator", "--servers=1", f"--port={port}"):
            server.wait_for_log("serving")


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = rowstead("coordinator", "--servers=1", f"--port={port}")
    assert refused.returncode == 2
    assert f"Cannot listen on port {port} of 127.0.0.1: address already in use." in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_second_process_cannot_share_the_port_of_the_first(cluster: list[Started]) -> None:
    port = cluster[0].address.rpartition(":")[2]
    assert rowstead("coordinator", "--servers=1", f"--port={port}").returncode == 2


def test_listening_beyond_this_machine_is_warned_of(tmp_path: Path) -> None:
    with started(tmp_path, "coordinator", "coordinator", "--servers=1", "--host=0.0.0.0") as coordinator:
        coordinator.wait_for_log("listening beyond this machine, without encryption")


def test_status_of_nobody_is_a_sentence_and_exit_code_1() -> None:
    shown = rowstead("status", NOBODY, "--timeout-s=1")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr.startswith(f"The coordinator at {NOBODY} did not answer")
    assert len(shown.stderr.splitlines()) == 1


def test_no_orphan_is_left_when_the_parent_is_killed(tmp_path: Path) -> None:
    code = f"""
import os, subprocess, time
arguments = ["coordinator", "--servers=1", f"--exit-with-parent={{os.getpid()}}", {f"--announce={tmp_path / 'address'}"!r}]
print(subprocess.Popen([*{ROWSTEAD!r}, *arguments]).pid, flush=True)
time.sleep(3600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        try:
            assert parent.stdout is not None
            orphan = psutil.Process(int(parent.stdout.readline()))
            poll_until((tmp_path / "address").exists)
        finally:
            parent.kill()
    poll_until(lambda: not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE, timeout_s=10)
