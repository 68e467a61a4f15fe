"""The session: one in a process, its place, what it registers, how it ends; against the real cores in this process."""

import logging
import multiprocessing
import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import ps_worker as ps
from inprocess import COORDINATOR, InProcess
from ps_proto.errors import ClientClosed, InvalidRequest, ParameterServerError
from ps_proto.requests import Finish, LeaveJob
from ps_proto.values import SGD, Async, Mode, Sync, TableSpec

session_module = import_module("ps_worker.session")
ENVIRONMENT = {"ROWSTEAD_COORDINATOR": "127.0.0.1:7070", "RANK": "0", "WORLD_SIZE": "1"}


class Position:
    """A data position, which can be resumed."""

    def state_dict(self) -> dict[str, int]:
        return {"row": 7}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


class Embedded:
    """Plays the embedded cluster: the cluster of the test under an address, and whether it was stopped."""

    address = COORDINATOR
    is_stopped = False

    def start(self) -> "Embedded":
        return self

    def stop(self) -> None:
        self.is_stopped = True


@pytest.fixture
def cluster() -> InProcess:
    return InProcess()


@pytest.fixture
def embedded(cluster: InProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[Embedded]:
    """Let ps.init reach the cluster of the test, whatever the address; no session is left."""

    def connect(
        address: str, rank: int | None = None, world_size: int | None = None, mode: Mode | None = None, **options: Any
    ) -> ps.Client:
        return cluster.connect(rank, world_size, mode)

    played = Embedded()
    monkeypatch.setattr(session_module, "connect", connect)
    monkeypatch.setattr(session_module, "local_cluster", lambda servers, plugins, max_restarts: played)
    monkeypatch.setattr(session_module, "_current", None)
    for variable in ENVIRONMENT:
        monkeypatch.delenv(variable, raising=False)
    yield played
    if session_module._current is not None:
        session_module._current.__exit__(RuntimeError, RuntimeError(), None)


@pytest.fixture
def launched(embedded: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)


def push_a_step(client: ps.Client) -> None:
    client.create_table(TableSpec("rows", dim=1, optimizer=SGD(lr=1.0)))
    client.push("rows", np.arange(3), np.ones((3, 1), np.float32))


def sent(cluster: InProcess, *bodies: type) -> int:
    return sum(isinstance(body, bodies) for _, body in cluster.calls)


# --- its place ---------------------------------------------------------------------------------------------------------------


def test_it_takes_its_place_from_the_environment(embedded: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {**ENVIRONMENT, "RANK": "1", "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(variable, value)
    session = ps.init()
    assert (session.rank, session.world_size, session.client.mode) == (1, 3, Sync())


def test_arguments_win(launched: None) -> None:
    session = ps.init(Async(), address="127.0.0.1:1", rank=2, world_size=3)
    assert (session.rank, session.world_size, session.client.mode) == (2, 3, Async())


@pytest.mark.parametrize("options", [{}, {"resume": False}], ids=["goes on", "begins anew"])
def test_it_goes_on_where_it_was_unless_told_otherwise(
    cluster: InProcess, launched: None, monkeypatch: pytest.MonkeyPatch, options: dict[str, bool]
) -> None:
    given: list[bool] = []

    def connect(address: str, rank: int, world_size: int, mode: Mode, resume: bool, job: int) -> ps.Client:
        given.append(resume)
        return cluster.connect(rank, world_size, mode)

    monkeypatch.setattr(session_module, "connect", connect)
    with ps.init(**options):  # type: ignore[arg-type]  # mypy takes each key for every argument
        assert given == [options.get("resume", True)]


def test_a_worker_that_is_started_again_begins_no_job_before_it_has_gone_on_in_its_own(
    cluster: InProcess, launched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []

    def connect(address: str, rank: int, world_size: int, mode: Mode, resume: bool, job: int) -> ps.Client:
        given.append(job)
        return cluster.connect(rank, world_size, mode)

    monkeypatch.setattr(session_module, "connect", connect)
    monkeypatch.setenv("ROWSTEAD_JOB", "7")
    for place in ({}, {}, {"address": "127.0.0.1:1", "rank": 0, "world_size": 1}):
        with ps.init(**place):  # type: ignore[arg-type]  # mypy takes each key for every argument
            pass
    assert given == [7, 0, 0]


def test_alone_it_has_a_cluster_of_its_own_that_ends_with_it(embedded: Embedded) -> None:
    with ps.init() as session:
        assert (session.rank, session.world_size) == (0, 1)
        assert not embedded.is_stopped
    assert embedded.is_stopped


def test_many_workers_without_a_coordinator_are_told_how_to_start_one(embedded: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidRequest, match="rowstead launch --workers 2"):
        ps.init()


def test_a_cluster_that_cannot_be_joined_is_stopped(embedded: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise InvalidRequest("rpc_timeout_s", "0", "above 0")

    monkeypatch.setattr(session_module, "connect", refuse)
    with pytest.raises(InvalidRequest):
        ps.init()
    assert embedded.is_stopped


# --- one in a process --------------------------------------------------------------------------------------------------------


def test_there_is_one_at_a_time(launched: None) -> None:
    with pytest.raises(InvalidRequest, match=r"call ps\.init\(\)"):
        ps.session()
    first = ps.init()
    assert ps.session() is first
    with pytest.raises(InvalidRequest, match="second time"):
        ps.init()
    first.close()
    with pytest.raises(InvalidRequest, match=r"call ps\.init\(\)"):
        ps.session()
    with ps.init() as second:
        assert ps.session() is second is not first


def test_a_child_of_multiprocessing_needs_a_place_of_its_own(launched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object())
    with pytest.raises(InvalidRequest, match='if __name__ == "__main__":'):  # though the environment, its parent's, says a place
        ps.init()
    with pytest.raises(InvalidRequest, match='if __name__ == "__main__":'):
        ps.init(rank=1, world_size=2)
    with ps.init(address="127.0.0.1:1", rank=1, world_size=2) as session:
        assert session.rank == 1


def test_a_fork_neither_uses_nor_ends_it(cluster: InProcess, embedded: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    session = ps.init()
    push_a_step(session.client)
    calls = len(cluster.calls)
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: 1)
        with pytest.raises(InvalidRequest, match="a fork of process"):
            _ = session.client
        with pytest.raises(InvalidRequest, match="a fork of process"):
            ps.session()
        with pytest.raises(InvalidRequest, match="a child of the training script"):
            ps.init()
        session.close()
        session_module._close_at_exit()
    assert (len(cluster.calls), embedded.is_stopped) == (calls, False)
    assert ps.session() is session
    session.close()


# --- what it registers -------------------------------------------------------------------------------------------------------


def test_it_keeps_what_can_be_resumed(launched: None) -> None:
    position = Position()
    with ps.init() as session:
        session.register("position", position)
        assert dict(session.registered) == {"position": position}
        with pytest.raises(InvalidRequest, match="name is 'position', which is taken"):
            session.register("position", Position())
        for name in ("", 7):
            with pytest.raises(InvalidRequest, match="name is"):
                session.register(name, position)  # type: ignore[arg-type]
        for other in (object(), Position, {"state_dict": 1}):
            with pytest.raises(InvalidRequest, match="state_dict and load_state_dict"):
                session.register("other", other)  # type: ignore[arg-type]


# --- how it ends ---------------------------------------------------------------------------------------------------------------


def test_a_normal_end_finishes_and_leaves(cluster: InProcess, launched: None) -> None:
    with ps.init() as session:
        push_a_step(session.client)
    assert sent(cluster, LeaveJob) == 1
    assert cluster.connect().export("rows")[0].tolist() == [0, 1, 2]
    session.close()
    assert sent(cluster, LeaveJob) == 1
    with pytest.raises(ClientClosed):
        _ = session.client


def test_an_exception_neither_finishes_nor_leaves(cluster: InProcess, launched: None) -> None:
    def fail() -> None:
        with ps.init() as session:
            push_a_step(session.client)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert sent(cluster, LeaveJob, Finish) == 0
    with pytest.raises(InvalidRequest):
        ps.session()


def test_a_barrier_of_one_rank_is_passed(launched: None) -> None:
    with ps.init() as session:
        session.barrier()


UNSAVED = ["The embedded cluster ends unsaved: what changed in rows is gone. Keep it with ps.save()."]


@pytest.mark.parametrize("end", ["normally", "by an exception"])
def test_an_embedded_cluster_that_ends_unsaved_says_so(embedded: Embedded, caplog: pytest.LogCaptureFixture, end: str) -> None:
    session = ps.init()
    push_a_step(session.client)
    session.client.end_step()
    session.client.flush()
    error = None if end == "normally" else RuntimeError()
    session.__exit__(type(error) if error else None, error, None)
    assert caplog.messages == UNSAVED
    assert embedded.is_stopped


def test_a_saved_one_says_nothing_unless_it_changed_afterwards(embedded: Embedded, caplog: pytest.LogCaptureFixture) -> None:
    with ps.init() as session:
        push_a_step(session.client)
        session.client.end_step()
        session.client.flush()
        session.mark_saved()
    assert caplog.messages == []
    with ps.init() as session:
        session.mark_saved()
        session.client.push("rows", np.arange(3), np.ones((3, 1), np.float32))
    assert caplog.messages == UNSAVED


def test_a_cluster_that_is_not_ours_says_nothing(launched: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), ps.init() as session:
        push_a_step(session.client)
    assert caplog.messages == []


def test_a_failing_close_still_ends_the_cluster(cluster: InProcess, embedded: Embedded) -> None:
    session = ps.init()
    push_a_step(session.client)
    cluster.down.update({"server-0:0", "server-1:0"})
    with pytest.raises(ParameterServerError):
        session.close()
    assert embedded.is_stopped
