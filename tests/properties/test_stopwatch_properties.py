"""Whatever lies within whatever: the parts of a step add up to it, and nothing counts twice."""

from hypothesis import given
from hypothesis import strategies as st

from ps_worker.profiling.breakdown import COMPUTE, GROUPS, STEP, Breakdown
from ps_worker.profiling.server_times import Split
from ps_worker.profiling.steps import StepTimes
from ps_worker.profiling.stopwatch import GRADIENTS, LOAD, PLACE, PLAN, POOL, POOL_BACK, Stopwatch
from ps_worker.profiling.taps import AWAIT, BARRIER, CALLS, END, OTHER, PAUSE, PULL, PUSH
from ticking import Ticking

KINDS = (PULL, PUSH, END, BARRIER, OTHER)
NAMES = st.one_of(
    st.tuples(st.sampled_from([CALLS, PAUSE, AWAIT]), st.sampled_from(KINDS)),
    st.tuples(st.sampled_from([PULL, PUSH, END, BARRIER, LOAD, PLAN, PLACE, POOL, POOL_BACK, GRADIENTS]), st.just("")),
)
EIGHTHS = st.integers(0, 80).map(lambda count: count / 8)
# What is done: time that passes, or a span with something done in it.
DONE = st.recursive(EIGHTHS, lambda within: st.tuples(NAMES, st.lists(within, max_size=4)), max_leaves=20)
SPLITS = st.sampled_from([Split(0.0, 0.0), Split(0.5, 0.25), Split(0.25, 0.75), Split(1.0, 0.0)])


def do(what: object, clock: Ticking, watch: Stopwatch) -> float:
    """Do it; return the seconds that passed outside of every span."""
    if isinstance(what, float):
        clock.pass_s(what)
        return what
    assert isinstance(what, tuple)
    (name, kind), within = what
    with watch.span(name, kind):
        for item in within:
            do(item, clock, watch)
    return 0.0


@given(st.lists(st.lists(DONE, max_size=5), min_size=1, max_size=4), st.fixed_dictionaries(dict.fromkeys((PULL, PUSH, END), SPLITS)))
def test_the_parts_add_up(steps: list[list[object]], splits: dict[str, Split]) -> None:
    clock = Ticking()
    watch = Stopwatch(clock)
    times, outside_s = [], 0.0
    for step in steps:
        begin_s = clock()
        outside_s += sum([do(what, clock, watch) for what in step])
        ended, carried = watch.take()
        times.append(StepTimes.of(begin_s, clock(), ended, carried, watch.thread))
    assert sum([step.user_s for step in times]) == outside_s  # exact: eighths
    rows = Breakdown.of(times, splits).rows
    tops = [row.mean_s for name, row in rows.items() if "." not in name and name != STEP]
    assert abs(sum(tops) - rows[STEP].mean_s) < 1e-9
    assert abs(rows[COMPUTE].mean_s - outside_s / len(steps)) < 1e-9
    for group, parts in GROUPS.items():
        assert abs(sum([rows[f"{group}.{part}"].mean_s for part in parts]) - rows[group].mean_s) < 1e-9
    assert all([row.mean_s >= 0.0 for row in rows.values()])
