"""A ServerOptimizer whose step() returns while its push is under way: each push counts once, and its error arrives with the next step."""

import threading
from collections.abc import Iterator
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

import ps_worker as ps
from inprocess import Fault, InProcess
from ps_proto.requests import Finish, Push

STEPS = 20


@pytest.fixture
def cluster() -> InProcess:
    return InProcess(2)


@pytest.fixture
def client(cluster: InProcess) -> Iterator[ps.Client]:
    with cluster.connect(0, 1, ps.Async()) as client:
        yield client


def made(client: ps.Client, wire: str = "float32") -> tuple[nn.Module, ps.optim.ServerOptimizer]:
    """Return a model whose row and weight lose 1 in each step, and its optimizer."""
    rows = ps.nn.Embedding(None, 1, name="rows", initializer=ps.Zeros(), wire=wire)
    model = nn.ModuleDict({"rows": rows, "scale": nn.Linear(1, 1, bias=False)})
    return model, ps.optim.ServerOptimizer(model, dense=ps.SGD(1.0), sparse=ps.SGD(1.0), overlap_pushes=True, client=client)


def backward(model: nn.Module) -> None:
    assert isinstance(model, nn.ModuleDict)
    (model["rows"](torch.tensor([7])).sum() + model["scale"](torch.ones(1, 1)).sum()).backward()


def row(client: ps.Client) -> float:
    return float(client.pull("rows", np.array([7]))[0, 0])


def test_each_push_counts_once(client: ps.Client) -> None:
    model, optimizer = made(client)
    weight = float(client.pull("dense", np.array([0]))[0, 0])
    for _ in range(STEPS):
        backward(model)
        optimizer.step()
        optimizer.zero_grad()
    client.flush()
    assert client.clock == STEPS
    assert row(client) == -STEPS
    np.testing.assert_allclose(client.pull("dense", np.array([0]))[0, 0], weight - STEPS, rtol=1e-6)


def test_each_step_says_what_its_worker_resumes_from(cluster: InProcess, client: ps.Client) -> None:
    client.provide_resume(lambda: b"after step %d" % (client.clock - 1))
    model, optimizer = made(client)
    for _ in range(STEPS):
        backward(model)
        optimizer.step()
        optimizer.zero_grad()
    optimizer.step()  # nothing has read since the last: waiting for its end is what captures
    client.flush()
    assert row(client) == -STEPS
    told = [body.finished for _, body in cluster.calls if isinstance(body, Finish) and body.finished is not None]
    said = list(dict.fromkeys([(finished.clock, finished.resume) for finished in told]))
    assert said == [(step, b"after step %d" % step) for step in range(STEPS + 1)]


def test_step_returns_while_its_push_is_under_way(cluster: InProcess, client: ps.Client) -> None:
    model, optimizer = made(client)
    go_on = threading.Event()

    def hold_pushes(address: str, body: object) -> None:
        if isinstance(body, Push):
            assert go_on.wait(20)

    cluster.before = hold_pushes
    backward(model)
    optimizer.step()
    optimizer.zero_grad()
    assert client.clock == 1
    assert row(client) == 0  # not applied yet
    assert not [body for _, body in cluster.calls if isinstance(body, Finish) and body.finished is not None]
    go_on.set()
    client.flush()
    assert row(client) == -1


@pytest.mark.parametrize("wire", ["float32", "int8"])
@pytest.mark.parametrize("servers", [1, 2])
def test_a_push_that_waits_is_out_of_reach_of_zero_grad(servers: int, wire: str) -> None:
    cluster = InProcess(servers)
    with cluster.connect(0, 1, ps.Async()) as client:
        model, optimizer = made(client, wire)
        weight = float(client.pull("dense", np.array([0]))[0, 0])
        go_on = threading.Event()
        cluster.before = lambda address, body: None if not isinstance(body, Push) or go_on.wait(20) else pytest.fail("nobody let it go on")
        client.push_async("rows", np.array([8]), np.ones((1, 1), np.float32))  # so that the step's own has not even begun
        backward(model)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        go_on.set()
        client.flush()
        assert row(client) == -1
        np.testing.assert_allclose(client.pull("dense", np.array([0]))[0, 0], weight - 1, rtol=1e-6)


def test_a_graph_that_is_gone_through_again_after_zero_grad_counts_anew(client: ps.Client) -> None:
    model, optimizer = made(client)
    assert isinstance(model, nn.ModuleDict)
    loss = model["rows"](torch.tensor([7])).sum()
    for _ in range(2):
        loss.backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    client.flush()
    assert row(client) == -2


@pytest.mark.parametrize("is_lost", [True, False])
def test_an_error_arrives_with_the_next_step_and_nothing_is_lost_or_doubled(cluster: InProcess, client: ps.Client, is_lost: bool) -> None:
    model, optimizer = made(client)
    fault = Fault(Push, is_lost=is_lost, count=10**6)
    cluster.faults.append(fault)
    backward(model)
    optimizer.step()
    optimizer.zero_grad()
    backward(model)
    for _ in range(2):
        with pytest.raises(ps.Unreachable):
            optimizer.step()
    assert fault.fired
    cluster.faults.clear()
    optimizer.step()
    optimizer.zero_grad()
    client.flush()
    assert row(client) == -2


def test_a_ctrl_c_in_the_wait_for_the_last_push_loses_neither_push(
    cluster: InProcess, client: ps.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = made(client)
    cluster.faults.append(Fault(Push, is_lost=True, count=10**6))
    go_on = threading.Event()
    cluster.before = lambda address, body: None if not isinstance(body, Push) or go_on.wait(20) else pytest.fail("nobody let it go on")
    backward(model)
    optimizer.step()
    optimizer.zero_grad()
    backward(model)
    with monkeypatch.context() as interrupted:
        interrupted.setattr("concurrent.futures.Future.result", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
    go_on.set()
    with pytest.raises(ps.Unreachable):
        optimizer.step()
    cluster.faults.clear()
    optimizer.step()
    optimizer.zero_grad()
    client.flush()
    assert row(client) == -2


def test_an_error_that_no_step_has_raised_is_flushs(cluster: InProcess, client: ps.Client) -> None:
    model, optimizer = made(client)
    cluster.faults.append(Fault(Push, is_lost=True, count=10**6))
    backward(model)
    optimizer.step()
    with pytest.raises(ps.Unreachable):
        client.flush()
    cluster.faults.clear()
    client.retry_push()
    client.flush()
    assert row(client) == -1


def test_a_gradient_that_is_not_finite_is_refused_at_once_and_the_step_goes_on(client: ps.Client) -> None:
    model, optimizer = made(client)
    assert isinstance(model, nn.ModuleDict)
    (model["rows"](torch.tensor([7])).sum() * float("inf")).backward()
    with pytest.raises(ps.InvalidRequest, match="not finite"):
        optimizer.step()
    assert client.clock == 0
    optimizer.zero_grad()
    backward(model)
    optimizer.step()
    client.flush()
    assert row(client) == -1


def test_a_step_without_gradients_ends(client: ps.Client) -> None:
    _, optimizer = made(client)
    optimizer.step()
    client.flush()
    assert client.clock == 1


def test_a_step_in_which_a_grad_scaler_found_an_inf_ends_without_a_push(client: ps.Client) -> None:
    model, optimizer = made(client)
    backward(model)
    vars(optimizer)["found_inf"] = torch.tensor(1.0)  # as GradScaler.step does
    optimizer.step()
    optimizer.zero_grad()
    del vars(optimizer)["found_inf"]
    client.flush()
    assert client.clock == 1
    assert row(client) == 0


def test_a_learning_rate_that_is_set_counts_from_the_next_step_on(client: ps.Client) -> None:
    model, optimizer = made(client)
    for group in optimizer.param_groups:
        group["lr"] = 0.25
    backward(model)
    optimizer.step()
    client.flush()
    assert row(client) == -0.25


def test_a_synchronous_table_that_comes_later_is_refused_before_anything_is_pushed(client: ps.Client) -> None:
    model, optimizer = made(client)
    client.create_table(ps.TableSpec("late", dim=1, mode=ps.Sync()))
    backward(model)
    with pytest.raises(ps.InvalidRequest, match=r"overlap_pushes.*synchronous"):
        optimizer.step()
    optimizer.overlap_pushes = False
    optimizer.step()
    client.flush()
    assert client.clock == 1
    assert row(client) == -1


def test_gradients_count_once_without_a_zero_grad(client: ps.Client) -> None:
    model, optimizer = made(client)
    backward(model)
    optimizer.step()
    with pytest.raises(ps.InvalidRequest, match="zero_grad"):
        optimizer.step()
    client.flush()
    assert row(client) == -1


@pytest.mark.parametrize("mode", [ps.Sync(), ps.Async()], ids=str)
def test_a_job_with_synchronous_tables_is_refused(mode: ps.Mode) -> None:
    with InProcess(1).connect(0, 1, mode) as client:
        model = ps.nn.Embedding(None, 1, name="rows", mode=ps.Sync())
        with pytest.raises(ps.InvalidRequest, match=r"overlap_pushes.*synchronous"):
            ps.optim.ServerOptimizer(model, overlap_pushes=True, client=client)
        with pytest.raises(ps.InvalidRequest, match="end_step_async"):
            client.end_step_async()
