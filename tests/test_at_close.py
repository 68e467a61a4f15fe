"""A profile that the environment asks for."""

import io
import sys
from collections.abc import Callable
from typing import Any

import pytest

from clients import alone
from inprocess import InProcess
from ps_proto.errors import InvalidRequest
from ps_proto.requests import GetStats
from ps_proto.values import Async
from ps_worker.client import Client
from ps_worker.profiling.at_close import is_profile_wanted, profile_until_closed
from ps_worker.profiling.stopwatch import is_watched
from timed_steps import step, timed


@pytest.mark.parametrize(("value", "is_wanted"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_the_variable(value: str | None, is_wanted: bool) -> None:
    assert is_profile_wanted({} if value is None else {"ROWSTEAD_PROFILE": value}) == is_wanted


def test_another_value_of_the_variable_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="ROWSTEAD_PROFILE"):
        is_profile_wanted({"ROWSTEAD_PROFILE": "yes"})


def number_of_looks(cluster: InProcess) -> int:
    return sum([isinstance(body, GetStats) for _, body in cluster.calls])


@pytest.mark.parametrize("end", [Client.close, Client.disconnect])
def test_a_profile_of_the_whole_script_is_printed_once_at_its_end(
    end: Callable[[Client], None], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, client = alone(Async(), 1)
    clock = timed(cluster)
    profile_until_closed(client)
    profile_until_closed(client)  # one runs here: no error, and no second report
    for _ in range(5):
        step(client, clock)
    asked = number_of_looks(cluster)
    getattr(client, end.__name__)()
    assert number_of_looks(cluster) - asked == (end is Client.close)  # after an exception the servers may be gone
    client.close()
    assert capsys.readouterr().err.count("Profile of rank 0 of 1, Async(): 2 steps after 3 of warm-up") == 1
    assert client.connection.is_closed


def test_a_report_that_nobody_can_be_told_ends_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    _, client = alone(Async(), 1)
    profile_until_closed(client)
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    client.close()
    assert client.connection.is_closed


def test_an_interrupted_last_look_at_the_servers_still_closes_the_client() -> None:
    cluster, client = alone(Async(), 1)
    profile_until_closed(client)

    def interrupt(address: str, body: Any) -> None:
        if isinstance(body, GetStats):
            raise KeyboardInterrupt

    cluster.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        client.close()
    assert client.connection.is_closed
    assert not is_watched()
