"""The command lines: which verbs there are, what they import, how they refuse, what `status` shows."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from cyclopts import App

from ps_proto.errors import CheckpointFailed, InvalidRequest, MapBehind, ParameterServerError, Recovering, Unreachable
from ps_proto.requests import CheckpointTaken, Cluster, Fence, GetCluster, GetStats, Stats, TakeCheckpoint
from ps_proto.values import SGD, Adagrad, Async, Sync, TableSpec
from ps_server.coordinator.command import coordinator
from ps_server.coordinator.settings import CoordinatorSettings
from ps_server.edge import command as server_command
from ps_server.edge.command import server
from ps_server.edge.settings import ProcessSettings, ServerSettings, flag_of, variable_of
from ps_worker import cli
from ps_worker.cli import verbs
from ps_worker.cli.cluster_report import collect
from ps_worker.cli.status import render
from sharding.hashing import NUM_BUCKETS
from sharding.shard_map import Server, ShardMap

VERBS = {"checkpoint", "coordinator", "export", "launch", "server", "status", "worker"}


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["rowstead", *arguments])
    with pytest.raises(SystemExit) as exited:
        cli.main()
    assert isinstance(exited.value.code, int)
    return exited.value.code


def test_help_lists_every_verb_and_imports_no_server() -> None:
    code = """
import sys
from ps_worker.cli import build_app
build_app()(["--help"], result_action="return_value")
sys.exit(any(name.split(".")[0] in ("ps_server", "torch") for name in sys.modules) and "imported too much")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for verb in VERBS:
        assert f" {verb} " in done.stdout
    assert "Run a server: it holds a share of the rows" in done.stdout


def test_a_checkout_has_its_verbs_whatever_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {verb.name: verb for verb in verbs.find_verbs()}
    monkeypatch.setattr(verbs, "entry_points", lambda group: [])
    assert {verb.name: verb for verb in verbs.find_verbs()} == found
    assert set(found) == VERBS


def test_an_installation_has_the_verbs_that_it_lists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(verbs, "CHECKOUT", tmp_path)
    monkeypatch.setattr(verbs, "entry_points", lambda group: EntryPoints([EntryPoint("status", "ps_worker.cli.status:status", group)]))
    assert [verb.name for verb in verbs.find_verbs()] == ["status"]


def test_an_unknown_verb_or_flag_is_wrong_usage(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(monkeypatch, "statos") == 2
    assert run_main(monkeypatch, "server", "--prot", "1") == 2
    assert "--prot" in capsys.readouterr().err


def test_wrong_settings_end_in_a_sentence_and_exit_code_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(monkeypatch, "server", "--coordinator", "127.0.0.1:7070", "--port", "http") == 2
    assert capsys.readouterr().err == "port is 'http' (from --port), but should be a valid integer, unable to parse string as an integer.\n"


def test_ps_server_says_its_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["ps-server", "--version"])
    with pytest.raises(SystemExit):
        server_command.main()
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(("command", "model"), [(server, ServerSettings), (coordinator, CoordinatorSettings)])
def test_help_shows_each_setting_with_its_flag_and_variable(
    command: object, model: type[ProcessSettings], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    app = App(default_command=command)  # type: ignore[arg-type]  # either of the two
    app(["--help"], result_action="return_value")
    shown = capsys.readouterr().out
    for name in ["config", *model.model_fields]:
        assert f"{flag_of(name)} " in shown
        assert f"env: {variable_of(model, name)}]" in shown


# --- status ------------------------------------------------------------------------------------------------------------------

COORDINATOR = "127.0.0.1:7070"
SERVERS = (
    Server("server-0", "127.0.0.1:4001"),
    Server("server-1", "127.0.0.1:4002", incarnation=2, weight=3.0),
    Server("server-2", "127.0.0.1:4003"),
)
OWNERS = np.repeat(np.array([0, 1, 2], np.int32), [4_000, NUM_BUCKETS - 4_005, 5])
CLUSTER = Cluster(
    servers_expected=3,
    shard_map=ShardMap(7, SERVERS, OWNERS),
    tables=(TableSpec("user", dim=64, optimizer=Adagrad()), TableSpec("bias", dim=1, optimizer=SGD(), mode=Async())),
    world_size=2,
    mode=Sync(),
    ranks={1: 4, 0: 1},
    servers={server.name: server.address for server in SERVERS},
)


def answers(address: str, request: object, timeout_s: float, peer: str) -> object:
    """Play a cluster whose second server is down and whose third one has an older map."""
    assert timeout_s == 1.5
    match address, request:
        case "127.0.0.1:7070", GetCluster(wait_s=0.0):
            return CLUSTER
        case "127.0.0.1:4001", GetStats(Fence(map_version=7)):
            return Stats({"pulls": 3.0}, {"user": {"rows": 1234.0}, "bias": {"rows": 1.0}})
        case "127.0.0.1:4002", GetStats():
            raise Unreachable(peer, address, 1.5, "connection refused")
        case "127.0.0.1:4003", GetStats():
            raise MapBehind("server-2", 6, 7)
    raise AssertionError((address, request))


def test_status_shows_the_servers_the_tables_and_the_job() -> None:
    assert render(collect(answers, COORDINATOR, 1.5)).splitlines() == [
        "Cluster of the coordinator at 127.0.0.1:7070: 1 of 3 servers serve, shard map 7.",
        "Job: mode sync, world size 2, ranks taking part: 0, 1.",
        "",
        "SERVER    ADDRESS         INCARNATION  BUCKETS   ROWS  STATE",
        "server-0  127.0.0.1:4001            1    4,000  1,235  serving",
        "server-1  127.0.0.1:4002            2   12,379      0  unreachable",
        "server-2  127.0.0.1:4003            1        5      0  refusing",
        "server-1: server-1 at 127.0.0.1:4002 did not answer for 1.5 s (connection refused). "
        "Check that it runs and that this machine can reach that address.",
        "server-2: server-2 holds shard map 6 and cannot answer for map 7 before it has that map.",
        "",
        "TABLE  DIM  OPTIMIZER  MODE        ROWS",
        "bias     1  sgd        async          1",
        "user    64  adagrad    the job's  1,234",
    ]


def test_status_as_json_has_the_same_numbers() -> None:
    report = json.loads(json.dumps(asdict(collect(answers, COORDINATOR, 1.5))))
    assert (report["map_version"], report["mode"], report["world_size"], report["ranks"]) == (7, "sync", 2, {"0": 1, "1": 4})
    assert report["servers"][1] | {"detail": ""} == {
        "name": "server-1",
        "address": "127.0.0.1:4002",
        "incarnation": 2,
        "weight": 3.0,
        "buckets": 12_379,
        "state": "unreachable",
        "detail": "",
        "rows": {},
    }
    assert report["tables"][1] == {"name": "user", "dim": 64, "optimizer": "adagrad", "mode": None, "rows": 1_234}


@pytest.mark.parametrize("address", ["localhost", "::1:80", "http://127.0.0.1:7070"])
def test_status_of_what_is_no_address_is_wrong_usage(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "status", address) == 2
    assert f"the coordinator's address is {address!r}, but must be host:port" in capsys.readouterr().err


def test_status_counts_no_server_that_has_no_map() -> None:
    def restarted(address: str, request: object, timeout_s: float, peer: str) -> object:
        if isinstance(request, GetCluster):
            return CLUSTER
        raise Recovering(peer, "it has no shard map yet")

    assert [server.state for server in collect(restarted, COORDINATOR, 1.5).servers] == ["refusing"] * 3


def test_status_before_the_servers_are_there_says_so() -> None:
    waiting = Cluster(servers_expected=2, shard_map=None)
    assert render(collect(lambda *_: waiting, COORDINATOR, 1.5)) == (
        "Cluster of the coordinator at 127.0.0.1:7070: 0 of 2 servers serve, no shard map yet.\nNo job runs."
    )


def test_status_says_what_was_lost_and_what_is_kept() -> None:
    cluster = replace(CLUSTER, lost=(1, 0), timeline=2, checkpoint=12, notice="Checkpoint 13 failed: no room.")
    report = collect(lambda address, request, *_: cluster if isinstance(request, GetCluster) else Stats({}, {}), COORDINATOR, 1.5)
    assert render(report).splitlines()[1:6] == [
        "Job: mode sync, world size 2, ranks taking part: 0, 1.",
        "Not heard of for longer than their lease: rank 0, 1.",
        "It went back to a checkpoint, or to its start, and is on timeline 2.",
        "Last complete checkpoint: 12.",
        "Checkpoint 13 failed: no room.",
    ]
    assert (report.lost, report.timeline, report.checkpoint, report.notice) == ([1, 0], 2, 12, "Checkpoint 13 failed: no room.")


# --- checkpoint --------------------------------------------------------------------------------------------------------------

TAKEN = CheckpointTaken("/data", 12, 1_000, 1_234, 56_700_000, 1.25, 0.0034)


class SavingTransport:
    """Answers as the coordinator does."""

    outcome: CheckpointTaken | ParameterServerError = TAKEN
    asked: ClassVar[list[tuple[object, ...]]] = []

    def call(self, *given: object) -> CheckpointTaken:
        self.asked.append(given)
        if isinstance(self.outcome, ParameterServerError):
            raise self.outcome
        return self.outcome

    def close(self) -> None:
        pass


@pytest.fixture
def saving(monkeypatch: pytest.MonkeyPatch) -> type[SavingTransport]:
    monkeypatch.setattr("ps_worker.transport.grpc.GrpcTransport", SavingTransport)
    monkeypatch.setattr(SavingTransport, "asked", [])
    monkeypatch.delenv("ROWSTEAD_COORDINATOR", raising=False)
    return SavingTransport


def test_checkpoint_says_where_it_is(
    saving: type[SavingTransport], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "checkpoint", COORDINATOR) == 0
    shown = capsys.readouterr()
    assert shown.out == (
        "Checkpoint 12 of step 1000 is in /data: 1,234 rows, 56.7 MB in 1.2 s. No server stood still for more than 3.4 ms.\n"
    )
    assert shown.err == "Writing a checkpoint to where the cluster keeps its own ...\n"
    assert saving.asked == [(COORDINATOR, TakeCheckpoint("", False, -1, 600.0), 610.0, "The coordinator")]


def test_checkpoint_takes_a_folder_of_this_directory_and_the_coordinator_from_the_environment(
    saving: type[SavingTransport], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROWSTEAD_COORDINATOR", COORDINATOR)
    assert run_main(monkeypatch, "checkpoint", "--path", "kept", "--full", "--json", "--timeout-s", "5") == 0
    assert json.loads(capsys.readouterr().out) == asdict(TAKEN)
    assert saving.asked == [(COORDINATOR, TakeCheckpoint(f"{tmp_path}/kept", True, -1, 5.0), 15.0, "The coordinator")]


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (CheckpointFailed("/data", "server-1", "no room"), 1),
        (Unreachable("The coordinator", COORDINATOR, 1.0, "connection refused"), 1),
        (InvalidRequest("path", "missing", "given"), 2),
    ],
)
def test_a_checkpoint_that_fails_says_why(
    outcome: ParameterServerError,
    code: int,
    saving: type[SavingTransport],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(saving, "outcome", outcome)
    assert run_main(monkeypatch, "checkpoint", COORDINATOR) == code
    shown = capsys.readouterr()
    assert (shown.out, shown.err.splitlines()[1]) == ("", str(outcome))


@pytest.mark.parametrize("wrong", [["localhost"], [COORDINATOR, "--timeout-s", "0"], [COORDINATOR, "--path", ""]])
def test_a_checkpoint_of_nowhere_is_wrong_usage(
    wrong: list[str], saving: type[SavingTransport], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "checkpoint", *wrong) == 2
    assert "but must be" in capsys.readouterr().err
    assert saving.asked == []


@pytest.mark.parametrize("verb", ["launch", "worker"])
def test_an_unknown_transport_is_wrong_usage(verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for variable in ("ROWSTEAD_COORDINATOR", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    assert run_main(monkeypatch, verb, "--transport", "pigeon", __file__) == 2
    assert "transport is 'pigeon'" in capsys.readouterr().err
    monkeypatch.setenv("ROWSTEAD_TRANSPORT", "pigeon")
    assert run_main(monkeypatch, verb, __file__) == 2
    assert "ROWSTEAD_TRANSPORT is 'pigeon'" in capsys.readouterr().err
