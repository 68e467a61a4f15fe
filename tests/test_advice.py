import re

import pytest

from pages import ROOT
from ps_worker.profiling.advice import ANCHORS, PAGE, advice
from ps_worker.profiling.breakdown import Breakdown
from ps_worker.profiling.server_times import NOTHING_KNOWN, ServerTimes, Split
from ps_worker.profiling.steps import StepTimes

IDLE = ServerTimes({}, {0: 3.0, 1: 4.0, 3: 0.5}, {"server-0": 0.25, "server-1": 0.5}, {})


def seen(split: Split = NOTHING_KNOWN, beside_kind: str = "", **within: float) -> Breakdown:
    """A step of 10 s."""
    named = {name.replace("_", " "): seconds for name, seconds in within.items()}
    step = StepTimes(10.0, named, {beside_kind: 1.0} if beside_kind else {}, {}, 0, 0)
    return Breakdown.of([step], {"pull": split, "push": split, "end": split})


@pytest.mark.parametrize(
    ("breakdown", "servers", "is_synchronous", "want"),
    [
        (
            seen(Split(1.0, 0.0), calls_pull=4.0, calls_end=2.0),
            IDLE,
            True,
            "60% of the step waits for other ranks: rank 3, which waits the least",
        ),
        (seen(Split(0.0, 1.0), calls_push=3.0), IDLE, False, "30% of the step waits for the servers' own work: more servers share it"),
        (seen(calls_pull=3.0), IDLE, False, "30% of the step is wire and wake-ups: ps.prefetch lets"),
        (seen(beside_kind="pull", calls_pull=3.0), IDLE, False, "30% of the step is wire and wake-ups: a greater depth"),
        (seen(calls_push=3.0, calls_pull=1.0), IDLE, False, "40% of the step is wire and wake-ups: overlap_pushes=True"),
        (seen(calls_push=3.0), IDLE, True, "30% of the step is wire and wake-ups: larger batches"),
        (
            seen(calls_push=3.0),
            ServerTimes({}, {}, {"server-1": 0.95}, {}),
            False,
            "wake-ups, and server-1 uses 95% of a processor: more servers",
        ),
        (seen(beside_kind="push", calls_push=3.0), IDLE, False, "30% of the step is wire and wake-ups: a push takes longer than the step"),
        (seen(pause_pull=2.0, pause_end=1.0), IDLE, False, "30% of the step pauses before asking servers again"),
        (seen(load=5.0), None, False, "50% of the step waits for the loader's next batch"),
        (seen(pool=1.0, pull=1.0, plan=1.0), None, False, "30% of the step is the client's own work"),
        (seen(barrier=2.0), None, False, "20% of the step waits at barriers"),
        (seen(pull=0.5, load=0.5), None, False, "90% of the step is your own code, and no part of ours is above 10%"),
    ],
)
def test_the_greatest_part_is_named(breakdown: Breakdown, servers: ServerTimes | None, is_synchronous: bool, want: str) -> None:
    assert want in advice(breakdown, servers, 0, is_synchronous)


def test_the_slowest_rank_is_told_that_it_is() -> None:
    assert "; yet it waits the least of all ranks; see" in advice(seen(Split(1.0, 0.0), calls_pull=4.0), IDLE, 3, True)


@pytest.mark.parametrize(("parked_s", "is_named"), [(1.7, True), (1.8, False)])
def test_no_rank_is_called_the_slowest_that_waits_much_like_the_others(parked_s: float, is_named: bool) -> None:
    servers = ServerTimes({}, {0: 3.0, 1: 4.0, 2: parked_s}, {}, {})
    said = advice(seen(Split(1.0, 0.0), calls_pull=4.0), servers, 0, True)
    assert ("rank 2, which waits the least, is the slowest" in said, "each waits much the same" in said) == (is_named, not is_named)


def test_what_it_refers_to_is_there() -> None:
    headings = re.findall(r"^#+ (.*)$", (ROOT / PAGE).read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(ANCHORS.values()) <= anchors
