"""`rowstead launch`, `rowstead worker` and `ps-worker` with arguments that make no sense: a sentence and exit code 2, and nothing runs."""

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from ps_server.coordinator.settings import CoordinatorSettings
from ps_worker import cli
from ps_worker.launch.command import launch
from ps_worker.local_cluster import local_cluster
from refusals import refused


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--workers=2", "none.py"], "script is 'none.py', but must be a file that exists"),
        ([str(Path(__file__).parent)], "tests', but must be a file that exists"),
        (["--workers=0", __file__], "workers is 0, but must be a whole number from 1 on"),
        (["--servers=257", __file__], "servers is 257, but must be a whole number from 1 to 256"),
        (["--max-restarts=-1", __file__], "max_restarts is -1, but must be a whole number from 0 on"),
        (["--host=0.0.0.0", __file__], "host is '0.0.0.0', but must be an address of this machine that workers can connect to"),
        ([f"--log-dir={__file__}", __file__], "must be a folder"),
    ],
)
def test_a_job_that_cannot_be_is_one_sentence(
    flags: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = refused(cli.main, ["launch", *flags], monkeypatch, capsys).splitlines()
    assert sentence in line


@pytest.mark.parametrize("arguments", [[], ["--servers=two", __file__]])
def test_a_launch_without_a_script_is_wrong_usage(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(cli.main, ["launch", *arguments], monkeypatch, capsys)


@pytest.mark.parametrize(("main", "verb"), [(cli.main, ["worker"]), (cli.worker_main, [])], ids=["rowstead worker", "ps-worker"])
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none.py"], "script is 'none.py', but must be a file that exists"),
        (["--rank=0", __file__], "WORLD_SIZE is missing"),
        (["--rank=2", "--world-size=2", "--coordinator=127.0.0.1:9", __file__], "rank is 2, but must be a whole number from 0 to 1"),
        (["--rank=0", "--world-size=2", __file__], "ROWSTEAD_COORDINATOR is missing"),
        (["--coordinator=nowhere", __file__], "the coordinator's address is 'nowhere', but must be host:port"),
    ],
)
def test_a_place_that_makes_no_sense_is_one_sentence(
    main: Callable[[], None],
    verb: list[str],
    arguments: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def runs_the_script(*_: object) -> NoReturn:
        pytest.fail("It would run the script.")

    monkeypatch.setattr(os, "execve", runs_the_script)
    (line,) = refused(main, [*verb, *arguments], monkeypatch, capsys).splitlines()
    assert sentence in line


def test_what_the_coordinator_can_be_told_can_be_told_to_a_whole_cluster() -> None:
    """But who it is, where it listens and how it says what it does: that is for the one who starts the processes."""
    own = {*CoordinatorSettings.model_fields} - {"host", "port", "log_format", "exit_with_parent", "announce", "state", "plugins"}
    launched, local = (set(inspect.signature(start).parameters) for start in (launch, local_cluster))
    assert own - local == set()
    assert own - launched == {"checkpoint_options"}
    assert "checkpoint_option" in launched  # one by one
