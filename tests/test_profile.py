"""A profile of a client, with a clock that only its calls and the test move on."""

import json
import threading
from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

from clients import USER, alone, ones
from inprocess import PATIENT, Fault, InProcess
from polling import poll_until
from ps_proto.errors import InvalidRequest, Unreachable
from ps_proto.requests import Assign, Finish, GetStats, Pull, Push
from ps_proto.values import Async, Sync
from ps_worker.client import Client
from ps_worker.profiling import profile as profiling
from ps_worker.profiling import stopwatch
from ps_worker.profiling.profile import Profile, profile
from ps_worker.profiling.stopwatch import Ended
from ps_worker.profiling.taps import AWAIT
from ticking import Ticking
from timed_steps import IDS, TOOK_S, step, timed


def state(client: Client) -> list[dict[str, Any]]:
    """What a profile could leave behind."""
    connection = client.connection
    return [dict(vars(one)) for one in (client, connection.driver, connection.pulls, connection.pushes, connection.barriers)]


def test_the_parts_of_steps_after_the_warm_up() -> None:
    cluster, client = alone(Async(), 1)
    clock = timed(cluster)
    with client:
        before = [set(one) for one in state(client)]
        with Profile(client, 2, clock) as seen:
            for _ in range(5):
                step(client, clock)
            clock.pass_s(1000.0)  # no step ends: it counts nowhere
        assert seen.steps == 3
        numbers = seen.as_dict()
        means = {name: row["mean_s"] for name, row in numbers["rows"].items() if "." not in name and row["mean_s"]}
        assert means == pytest.approx({"step": 1.875, "compute": 1.0, "pulls": 0.25, "pushes": 0.625})
        assert (numbers["sent_bytes"], numbers["received_bytes"]) == (80.0 + 80.0 + 120.0, 120.0)
        assert json.loads(json.dumps(numbers)) == numbers
        report = seen.report().splitlines()
        assert report[0] == "Profile of rank 0 of 1, Async(): 3 steps after 2 of warm-up, 1005.625 s."
        assert report[3].split() == ["the", "whole", "step", "1875.000", "1875.000", "1875.000", "100.0%"]
        assert not [line for line in report if line.startswith(("barriers", "other calls", "    the client's work in its"))]  # zero
        assert "a step sends 0.27 KiB of ids and rows, and receives 0.12 KiB" in report
        # Off again: the very methods of the class, and not an attribute more.
        assert [set(one) for one in state(client)] == before
        assert client.pull.__func__ is Client.pull  # type: ignore[attr-defined]
        step(client, clock)
        assert seen.steps == 3


@pytest.mark.parametrize(("body", "row"), [(Pull, "pulls"), (Push, "pushes"), (Finish, "pushes"), (Assign, "other")])
def test_pauses_before_asking_again_are_nobodys_work(body: type, row: str) -> None:
    cluster, client = alone(Async(), 1, patience=PATIENT)
    clock = timed(cluster)
    client.connection.driver.pause = clock.pass_s  # type: ignore[method-assign]
    with client, Profile(client, 0, clock) as seen:
        cluster.faults.append(Fault(body, is_lost=True))
        client.assign("user", IDS, ones(10))
        step(client, clock)
    took_s = TOOK_S.get(body, 0.0)
    rows = seen.as_dict()["rows"]
    paused_s = rows["step"]["mean_s"] - (0.25 + 1.0 + 0.5 + 0.125) - took_s
    assert cluster.faults[0].fired == 1
    assert 0.0 < paused_s < 0.01
    name = row if row == "other" else f"{row}.retries"
    assert rows[name]["mean_s"] == pytest.approx(paused_s)
    assert rows["worker"]["mean_s"] == pytest.approx(0.0)


def test_what_is_queued_runs_beside_the_step() -> None:
    cluster, client = alone(Async(), 1)
    clock = timed(cluster)
    with client, Profile(client, 0, clock) as seen:
        handle = client.pull_async("user", IDS)
        poll_until(handle.done)  # else what the clock is moved on by below would be among its time
        clock.pass_s(1.0)
        client.push_async("user", IDS, handle.result())
        client.end_step()
    numbers = seen.as_dict()
    assert numbers["beside_s"] == {"pull": 0.25, "push": 0.5}
    rows = numbers["rows"]
    assert rows["step"]["mean_s"] == 1.875
    # Where nobody waited for the other threads, their time is among the training's own: it is up to the threads which.
    assert sum([rows[name]["mean_s"] for name in ("compute", "pulls", "pushes", "worker")]) == pytest.approx(1.875)


def test_waiting_for_another_rank_is_told_from_the_rest() -> None:
    cluster = InProcess(1)
    ranks = [cluster.connect(rank, 2, Sync()) for rank in range(2)]
    ranks[0].create_table(USER)
    parked = threading.Event()
    seen = Profile(ranks[0], 0)

    def hold(address: str, body: Any) -> None:
        if isinstance(body, Pull) and body.fence.rank == 1 and body.fence.clock == 1:
            assert parked.wait(10.0)

    def train(client: Client) -> None:
        for _ in range(2):
            client.push("user", IDS, ones(10, client.pull("user", IDS).shape[1]))
            client.end_step()

    cluster.before = hold
    other = threading.Thread(target=train, args=(ranks[1],))
    other.start()
    asking = threading.Thread(target=_set_once_parked, args=(cluster, parked))
    asking.start()
    with seen:
        train(ranks[0])
    other.join()
    asking.join()
    times = seen.as_dict()
    assert times["parked_s"]["0"] > times["parked_s"]["1"]
    assert times["rows"]["pulls.waiting"]["mean_s"] > 0.0
    for client in ranks:
        client.disconnect()


def _set_once_parked(cluster: InProcess, parked: threading.Event) -> None:
    """Let rank 1 go on once rank 0's pull waits for it."""
    with cluster.connect() as observer:
        poll_until(lambda: observer.stats()["server-0"].server["parked"] == 1.0)
    parked.set()


@pytest.mark.parametrize(
    ("call", "spans"),
    [
        (lambda client: client.push_async("user", IDS, ones(10)), {("push", "push")}),
        (methodcaller("retry_push"), {("push", "push")}),
        (methodcaller("end_step"), {("end", "end"), (AWAIT, "push")}),  # what is queued before it
        (lambda client: client.end_step_async().result(), {("end", "end"), (AWAIT, "end")}),
        (methodcaller("flush"), {("end", "end"), (AWAIT, "push")}),
        (methodcaller("barrier"), {("barrier", "barrier"), (AWAIT, "barrier")}),
        (lambda client: client.agree_async(1).result(), {("barrier", "barrier"), (AWAIT, "barrier")}),
    ],
)
def test_each_call_is_a_span(call: Callable[[Client], object], spans: set[tuple[str, str]]) -> None:
    _, client = alone(Async(), 1)
    with client, Profile(client, 0) as seen:
        call(client)
        assert seen._watch is not None
        ended = [span for span in seen._watch.trace if isinstance(span, Ended)]
    assert spans <= {(span.name, span.kind) for span in ended if span.thread == threading.get_ident()}


def test_the_newest_steps_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "STEPS_KEPT_MAX", 3)
    cluster, client = alone(Async(), 1)
    clock = timed(cluster)
    with client, Profile(client, 0, clock) as seen:
        for extra_s in (8.0, 0.0, 0.0, 0.0):
            clock.pass_s(extra_s)
            step(client, clock)
    assert seen.steps == 3
    assert seen.as_dict()["rows"]["step"]["mean_s"] == 1.875


def test_calls_after_the_last_step_are_set_against_what_the_servers_did_too() -> None:
    cluster, client = alone(Async(), 1)
    clock = timed(cluster)
    with client, Profile(client, 0, clock) as seen:
        step(client, clock)
        client.pull("user", IDS)
    assert seen._calls_s == {"pull": 0.5, "push": 0.5, "end": 0.125}


def test_after_an_error_the_servers_are_not_asked() -> None:
    cluster, client = alone(Async(), 1)
    with client:
        seen = Profile(client, 0)
        with pytest.raises(InvalidRequest), seen:
            client.pull("user", "seven")
        assert sum([isinstance(body, GetStats) for _, body in cluster.calls]) == 1


def test_a_trace_has_a_track_for_each_thread(tmp_path: Path) -> None:
    cluster, client = alone(Async(), 1)
    clock = timed(cluster)
    with client, Profile(client, 1, clock) as seen:
        for _ in range(2):
            client.pull_async("user", IDS).result()
            step(client, clock)
    seen.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = [(tracks[event["tid"]], event["name"], event["dur"]) for event in events if event["ph"] == "X"]
    assert ("MainThread", "calls pull", 0.25e6) in spans
    assert ("rowstead-pull_0", "beside pull", 0.25e6) in spans
    assert ("MainThread", "push at server-0", 0.5e6) in spans
    assert min(event["ts"] for event in events if event["ph"] == "X") >= 0.0  # none of the warm-up


def test_servers_that_say_nothing_are_no_error() -> None:
    cluster, client = alone(Async(), 1)

    def refuse(address: str, body: Any) -> None:
        if isinstance(body, GetStats):
            raise Unreachable("server-0", address, 0.0, "gone")

    cluster.before = refuse
    with client, Profile(client, 0) as seen:
        step(client, Ticking())
    assert "the servers did not say what they did" in seen.report()
    assert seen.as_dict()["servers"] is None


def test_without_a_step_there_is_nothing_to_say() -> None:
    _, client = alone()
    with client, profile(client) as seen:
        client.pull("user", IDS)
    assert seen.report() == "Profile of rank 0 of 1, Async(): no step has ended after the 3 of warm-up."
    assert seen.as_dict()["rows"] == {}


@pytest.mark.parametrize("warm_up", [-1, 1.5, True, "2"])
def test_a_warm_up_is_a_number_of_steps(warm_up: Any) -> None:
    _, client = alone()
    with client, pytest.raises(InvalidRequest, match="warm_up"):
        profile(client, warm_up=warm_up)


def test_a_report_while_it_runs_is_of_the_steps_so_far() -> None:
    cluster, client = alone(Async(), 1)
    clock = timed(cluster)
    with client, Profile(client, 1, clock) as seen:
        for _ in range(3):
            step(client, clock)
        report = seen.report()
    assert report.startswith("Profile of rank 0 of 1, Async(): 2 steps after 1 of warm-up, 3.750 s.")
    assert "the servers are asked what they did when the profile ends" in report
    assert "server-0 used" in seen.report()


def test_an_interrupted_begin_leaves_nothing_behind() -> None:
    cluster, client = alone(Async(), 1)

    def interrupt(address: str, body: Any) -> None:
        if isinstance(body, GetStats):
            raise KeyboardInterrupt

    with client:
        before = [set(one) for one in state(client)]
        cluster.before = interrupt
        with pytest.raises(KeyboardInterrupt):
            profile(client).start()
        assert [set(one) for one in state(client)] == before
        assert not stopwatch.is_watched()


def test_a_training_in_another_thread_is_told_from_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it fill the memory, although no step ends here."""
    monkeypatch.setattr(stopwatch, "SPANS_KEPT_MAX", 50)
    _, client = alone(Async(), 1)
    with client, profile(client) as seen:

        def train() -> None:
            for _ in range(20):
                step(client, Ticking())

        other = threading.Thread(target=train)
        other.start()
        other.join()
        assert seen._watch is not None
        assert len(seen._watch.ended) == len(seen._watch.carried) == len(seen._watch.trace) == 50
    assert seen.report().endswith("In other threads 20 have: begin the profile in the thread that trains.")


def test_one_profile_at_a_time() -> None:
    cluster = InProcess(1)
    client, other = [cluster.connect(rank, 2, Async()) for rank in range(2)]
    with client, other:
        with profile(client) as first:
            for one in (client, other):
                with pytest.raises(InvalidRequest, match="another one runs"):
                    profile(one).start()
        with pytest.raises(InvalidRequest, match="run before"):
            first.start()
        with profile(client):
            pass


def test_an_observer_takes_no_steps() -> None:
    cluster, client = alone()
    with client, cluster.connect() as observer:
        with pytest.raises(InvalidRequest, match="an observer's client"):
            profile(observer)
        with pytest.raises(InvalidRequest, match="a client or a session"):
            profile("user")  # type: ignore[arg-type]
