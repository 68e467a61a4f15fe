"""What emulated workers are told to take, what is due after them, and what is made of their times. No process, no time."""

from typing import Any

import numpy as np
import pytest

import ps_worker as ps
from benchmarks.case import WrongAnswer
from benchmarks.categories import DIM
from benchmarks.curve import Curve, Point
from benchmarks.emulated.batches import POOL, id_batches
from benchmarks.emulated.delays import delays
from benchmarks.emulated.due import due_after_pushes, due_after_steps
from benchmarks.emulated.job import Job
from benchmarks.emulated.ran import Ran
from benchmarks.emulated.worker import ADAGRAD as WORKERS_ADAGRAD
from benchmarks.emulated.worker import Taken
from benchmarks.harness import Spread
from benchmarks.scaling import rows
from benchmarks.scaling.sizes import QUICK
from benchmarks.scaling.workers import goal
from ps_proto.requests import Ids, Rows

ADAGRAD = ps.Adagrad(lr=0.5)


def test_stragglers_are_as_they_are_called() -> None:
    assert delays("none", 0.1, rank=0, steps=3, seed=7).tolist() == [0.1, 0.1, 0.1]
    assert delays("one", 0.1, rank=0, steps=2, seed=7) == pytest.approx([0.3, 0.3])
    assert delays("one", 0.1, rank=1, steps=2, seed=7).tolist() == [0.1, 0.1]
    hiccups = np.array([delays("random", 0.1, rank, steps=1_000, seed=7) for rank in range(4)])
    assert set(np.round(hiccups, 6).ravel()) == {0.1, 1.0}
    assert 0.03 < (hiccups > 0.5).mean() < 0.07
    assert not np.array_equal(hiccups[0], hiccups[1])
    assert np.array_equal(hiccups[2], delays("random", 0.1, rank=2, steps=1_000, seed=7))


def test_ids_of_a_batch_are_distinct_and_each_rank_has_its_own() -> None:
    first, second = id_batches(64, 3, rank=0), id_batches(64, 3, rank=1)
    assert len(first) == POOL
    for batch in (*first, *second):
        assert batch.dtype == np.uint64
        assert (np.diff(batch.astype(np.int64)) > 0).all()
    assert not np.array_equal(first[0], second[0])
    assert np.intersect1d(first[0], second[0]).size > 100  # the popular ids are the same


def naive(pushes: list[tuple[list[int], float]]) -> dict[int, np.float32]:
    """Adagrad, push by push: each with the gradient that all of its ids have."""
    found: dict[int, tuple[np.float32, np.float32]] = {}
    for ids, gradient in pushes:
        g = np.float32(gradient)
        for given in ids:
            row, state = found.get(given, (np.float32(0), np.float32(0)))
            state = np.float32(state + g * g)
            found[given] = (np.float32(row - np.float32(ADAGRAD.lr) * g / (np.sqrt(state) + np.float32(ADAGRAD.eps))), state)
    return {given: row for given, (row, _) in found.items()}


def pools() -> list[list[Ids]]:
    """Two ranks; each batch has id 5, its own number, and the number of the rank."""
    return [[np.unique(np.array([5, 10 + k, 100 + rank], np.uint64)) for k in range(POOL)] for rank in range(2)]


@pytest.mark.parametrize("steps", [1, 3, 2 * POOL + 3])
def test_what_is_due_is_what_adagrad_makes_of_every_push(steps: int) -> None:
    batches = pools()
    ids, values = due_after_pushes(batches, steps, ADAGRAD)
    pushes = [(pool[step % POOL].tolist(), 1.0) for step in range(steps) for pool in batches]
    assert dict(zip(ids.tolist(), values.tolist(), strict=True)) == naive(pushes)
    assert ids.tolist() == sorted(ids.tolist())


@pytest.mark.parametrize("steps", [1, 3, 2 * POOL + 3])
def test_what_is_due_in_synchronous_mode_is_what_adagrad_makes_of_each_mean(steps: int) -> None:
    batches = pools()
    ids, values = due_after_steps(batches, steps, ADAGRAD)
    pushes = []
    for step in range(steps):
        given = [pool[step % POOL].tolist() for pool in batches]
        both = sorted(set(given[0]) & set(given[1]))
        pushes += [(both, 1.0), (sorted(set(given[0]) ^ set(given[1])), 0.5)]
    assert dict(zip(ids.tolist(), values.tolist(), strict=True)) == naive(pushes)


def test_a_push_more_or_less_gives_other_numbers() -> None:
    _, values = due_after_pushes([[np.array([7], np.uint64)] * POOL], 2_000, ADAGRAD)
    _, less = due_after_pushes([[np.array([7], np.uint64)] * POOL], 1_999, ADAGRAD)
    assert values[0] != less[0]


class Held:
    """An observer that exports these rows."""

    def __init__(self, ids: Ids, rows: Rows) -> None:
        self.export = lambda table: (ids, rows)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_push_that_is_missing_or_there_twice_is_a_wrong_answer(mode: str) -> None:
    batches = [id_batches(4, 3, rank) for rank in range(2)]
    due = due_after_steps if mode == "sync" else due_after_pushes

    def held(steps: int) -> Job:
        """Return a job that was told to take 5 steps, and whose server holds as many."""
        ids, values = due(batches, steps, WORKERS_ADAGRAD)
        observer: Any = Held(ids, np.repeat(values[:, None], DIM, axis=1))
        cluster, workers = None, [None, None]
        job = Job(cluster, workers, observer, mode, 4, 3)  # type: ignore[arg-type]  # only the observer is asked
        job.steps = 5
        return job

    held(5).check()
    for steps in (4, 6):
        with pytest.raises(WrongAnswer):
            held(steps).check()


def ran(step_s: list[list[float]], blocked_s: list[list[float]]) -> Ran:
    zeros = [[0.0] * len(times) for times in step_s]
    taken = [Taken(step, zero, blocked, zero) for step, blocked, zero in zip(step_s, blocked_s, zeros, strict=True)]
    return Ran.of(taken, 1, held_back_s=0.0, staleness=0.0, server_share=0.0, workers_share=0.0)


def test_steps_per_second_and_idle_shares_leave_out_the_lead() -> None:
    found = ran([[9.0, 0.1, 0.1], [9.0, 0.3, 0.5]], [[9.0, 0.0, 0.05], [9.0, 0.1, 0.1]])
    assert found.per_second == pytest.approx(1 / 0.1 + 1 / 0.4)
    assert found.per_second_until_last == pytest.approx(4 / 0.8)
    assert found.blocked_share == pytest.approx(0.25 / 1.0)
    assert found.blocked_shares == pytest.approx([0.25, 0.25])


def test_a_curve_prints_and_writes_its_points_and_what_was_left_out() -> None:
    curve = Curve("W7-x", "A title", "things", {"pull": "ms"}, "a note", lambda: iter(()))
    measured, left_out = Point(1_000, {"pull": Spread((1.0, 3.0, 2.0))}), Point(2_000, left_out="no room")
    assert curve.head().splitlines() == ["W7-x: a note", f"{'things':>14}{'pull, ms':>27}"]
    assert curve.line(measured).split() == ["1,000", "2", "[1..3]"]
    assert curve.line(left_out).split(maxsplit=1) == ["2,000", "left out: no room"]
    assert curve.as_json([measured, left_out])["points"] == [
        {"at": 1_000, "left_out": None, "pull": {"median": 2.0, "min": 1.0, "max": 3.0, "rounds": [1.0, 3.0, 2.0]}},
        {"at": 2_000, "left_out": "no room"},
    ]


@pytest.mark.parametrize(("share", "holds"), [(0.90, True), (0.899, False)])
def test_the_goal_is_of_sixteen_workers(share: float, holds: bool) -> None:
    points = [Point(8, {"of linear": Spread((0.1,))}), Point(16, {"of linear": Spread((share,))})]
    reached = goal("W7-workers 512", points)
    assert reached is not None
    assert (reached["at"], reached["is"], reached["holds"]) == (16, share, holds)
    assert ("(missed)" in reached["said"]) == (not holds)
    assert goal("W7-workers 512", points[:1]) is None
    assert goal("W7-ids", points) is None


def test_rows_for_which_there_is_no_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never:
        rows = 0

        def __init__(self, *arguments: object) -> None: ...

    monkeypatch.setattr(rows, "available_bytes", lambda: 1 << 20)
    monkeypatch.setattr(rows, "GrowingTable", Never)
    assert rows.rows_curve(QUICK, 0).note.startswith("500 ids")
    left_out = list(rows.sized(Never(), QUICK.rows_held))  # type: ignore[arg-type]  # nothing is asked of it
    assert [point.at for point in left_out] == [1_000, 4_000]
    assert all("GiB are needed" in (point.left_out or "") for point in left_out)
