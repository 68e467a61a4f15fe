"""A worker without a rank: what it reads, and what it may not do."""

from collections.abc import Callable
from typing import Any

import pytest

from peers import Peers, at_steps, observer
from ps_proto.errors import ObserverCannot, StepPassed
from ps_proto.requests import OBSERVER, Fence, GetCluster, Pull
from ps_proto.values import SGD, Mode, Sync, TableSpec
from scripted import After


def test_an_observer_carries_no_rank_and_finishes_nothing() -> None:
    peers = observer()
    peers.pull(0, table="sparse")
    (_, asked), (_, body) = peers.heard()
    assert asked == GetCluster()  # the job may be another by now, and with it the mode
    assert body.fence == Fence(1, OBSERVER, 0, 0, 0)
    assert body.finished is None
    for attempt in (peers.worker.end_step, peers.worker.flush, peers.worker.barrier):
        with pytest.raises(ObserverCannot):
            peers.run(attempt())
    operations: list[Callable[[], Any]] = [lambda: peers.worker.push([]), lambda: peers.worker.assign([], False)]
    for operation in operations:
        with pytest.raises(ObserverCannot):
            operation()
    with pytest.raises(ObserverCannot):
        peers.worker.set_optimizer("dense", SGD())
    assert peers.heard() == []


def test_an_observer_reads_synchronous_rows_of_one_step() -> None:
    peers = observer()
    at_steps(peers, {"server-0": [4, 5], "server-1": [5], "server-2": [5]})
    assert peers.pull(0, 1, 2) == [[5], [5], [5]]
    heard = [(peer, body.at_step) for peer, body in peers.heard() if isinstance(body, Pull)]
    assert heard == [("server-0", -1), ("server-1", -1), ("server-2", -1), ("server-0", 5)]


def test_an_observer_starts_again_where_a_step_has_passed() -> None:
    peers = observer()
    at_steps(peers, {"server-0": [4, StepPassed("server-0", 5, 6), 6], "server-1": [5, 6]})
    assert peers.pull(0, 1) == [[6], [6]]


def test_an_observer_that_never_catches_a_step_gives_up() -> None:
    peers = observer()
    passed = StepPassed("server-0", 5, 6)
    at_steps(peers, {"server-0": [4, passed] * 1000, "server-1": [5] * 1000})
    slow = peers.hooks[-1]
    peers.hooks[-1] = lambda call: None if (outcome := slow(call)) is None else After(1.0, outcome)
    with pytest.raises(StepPassed):
        peers.pull(0, 1)
    assert 25.0 <= peers.script.now_s < 30.0
    with pytest.raises(StepPassed):
        peers.run(peers.worker.open_exports("dense"))


def test_an_observer_reads_other_tables_as_they_are() -> None:
    peers = observer()
    at_steps(peers, {"server-0": [4], "server-1": [5]})
    assert peers.pull(0, 1, table="sparse") == [[4], [5]]


def test_an_observer_from_before_the_job_learns_its_mode_before_it_reads() -> None:
    peers = Peers(None, tables=(TableSpec("dense", 1),))
    peers.run(peers.worker.observe())
    assert peers.worker.mode is None
    peers.mode = Sync()
    at_steps(peers, {"server-0": [4, 5], "server-1": [5]})
    assert peers.pull(0, 1) == [[5], [5]]
    learned: Mode | None = peers.worker.mode
    assert (learned, peers.worker.world_size) == (Sync(), 2)
