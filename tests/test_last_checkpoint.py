"""What the launcher waits for at a job's end."""

import threading
from collections.abc import Callable

import pytest

from polling import poll_until
from ps_proto.errors import CheckpointFailed, ClientClosed, ParameterServerError, Recovering
from ps_proto.requests import CheckpointTaken, Cluster, GetCluster, TakeCheckpoint
from ps_worker.launch import last_checkpoint
from ps_worker.launch.last_checkpoint import TRIES, LastCheckpoint

TAKEN = CheckpointTaken("/root", 7, 60, 1234, 99, 0.1, 0.001)


class Coordinator:
    """A transport that answers one call after the other with what it was given; then it waits until it is closed.

    end  what it says is the checkpoint of the job's end.
    """

    def __init__(self, *answers: CheckpointTaken | ParameterServerError, end: CheckpointTaken | None = None) -> None:
        self.answers = list(answers)
        self.end = end
        self.is_closed = threading.Event()

    def call(self, address: str, body: GetCluster | TakeCheckpoint, timeout_s: float, peer: str) -> Cluster | CheckpointTaken:
        if isinstance(body, GetCluster):
            return Cluster(2, None, end=self.end)
        assert (body.path, body.full, body.at_least) == ("", False, -1)
        if not self.answers:
            self.is_closed.wait()
            raise ClientClosed("a checkpoint")
        answer = self.answers.pop(0)
        if isinstance(answer, ParameterServerError):
            raise answer
        return answer

    def close(self) -> None:
        self.is_closed.set()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Callable[..., LastCheckpoint]:
    monkeypatch.setattr(last_checkpoint, "AGAIN_S", 0.01)

    def begin(*answers: CheckpointTaken | ParameterServerError, end: CheckpointTaken | None = None) -> LastCheckpoint:
        monkeypatch.setattr(last_checkpoint, "GrpcTransport", lambda: Coordinator(*answers, end=end))
        return LastCheckpoint("address")

    return begin


def test_it_is_said_where_it_lies(begun: Callable[..., LastCheckpoint]) -> None:
    last = begun(Recovering("The coordinator", "it starts"), Recovering("The coordinator", "it starts"), TAKEN)
    poll_until(lambda: bool(last.said))
    assert last.said == "The job's end is in checkpoint 7 in /root."
    last.close()


def test_none_is_taken_where_the_end_is_kept(begun: Callable[..., LastCheckpoint]) -> None:
    last = begun(end=TAKEN)  # another one would be waited for
    poll_until(lambda: bool(last.said))
    assert last.said == "The job's end is in checkpoint 7 in /root."
    last.close()


def test_one_that_fails_since_a_server_died_is_asked_for_again(begun: Callable[..., LastCheckpoint]) -> None:
    failed = CheckpointFailed("/root", "the coordinator", "server-1 was started again, and all servers load the last checkpoint")
    last = begun(failed, Recovering("The coordinator", "server-1 was started again"), TAKEN)
    poll_until(lambda: bool(last.said))
    assert last.said == "The job's end is in checkpoint 7 in /root."
    last.close()


def test_a_failure_is_said(begun: Callable[..., LastCheckpoint]) -> None:
    last = begun(*[CheckpointFailed("/root", "server-1", "no space left")] * TRIES)
    poll_until(lambda: bool(last.said))
    assert last.said.startswith("There is no checkpoint of the job's end: ")
    assert "no space left" in last.said
    last.close()


def test_it_can_be_given_up(begun: Callable[..., LastCheckpoint]) -> None:
    last = begun()
    assert last.said == ""
    last.close()
