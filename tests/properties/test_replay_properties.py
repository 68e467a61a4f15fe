"""Any script made of passes, loops, evaluations and barriers, started again after any of its steps, goes on as if it had not died."""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

import ps_worker as ps
from lives import assert_lives_again, lived
from ps_worker.resume.packing import unpack
from ps_worker.session import Session

Log = Callable[..., None]


@dataclass(frozen=True)
class Part:
    """A part of a script.

    kind       "pass": over `count` batches; "loop": over `count` steps; "evaluation"; "barrier".
    break_at   the turn behind which it is broken off, if it comes there.
    per_step   so many batches make a step.     depth   of ps.prefetch.     evaluates   in each turn, "ahead" of its step or "behind" it.
    """

    kind: str
    count: int
    break_at: int
    per_step: int
    depth: int
    evaluates: str


PARTS = st.builds(
    Part,
    kind=st.sampled_from(["pass", "pass", "loop", "evaluation", "evaluation with gradients", "barrier"]),
    count=st.integers(0, 5),
    break_at=st.integers(0, 8),
    per_step=st.integers(1, 2),
    depth=st.integers(1, 3),
    evaluates=st.sampled_from(["never", "ahead", "behind"]),
)


EVALUATION = Part("evaluation", 2, 0, 1, 1, "never")


class Drawing:
    """A loader whose order is drawn at its beginning, and with each batch a number."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Iterator[tuple[int, float]]:
        order = random.sample(range(self._count), self._count)
        for index in order:
            yield index, random.random()


def run(part: Part, session: Session, log: Log, number: int) -> None:
    client = session.client
    if part.kind == "barrier":
        session.barrier()
    elif part.kind == "evaluation":
        with torch.no_grad():
            list(ps.prefetch(Drawing(part.count), depth=part.depth))
    elif part.kind == "evaluation with gradients":
        list(ps.prefetch(Drawing(part.count), depth=part.depth))
    else:
        turns: Iterable[Any] = session.steps(part.count) if part.kind == "loop" else ps.prefetch(Drawing(part.count), depth=part.depth)
        per_step, begun = 1 if part.kind == "loop" else part.per_step, client.clock
        for turn, batch in enumerate(turns):
            if part.count >= per_step:  # else no step is made, so that the pass is made again
                log(number, batch, random.random())
            if turn % per_step == per_step - 1:
                if part.evaluates == "ahead":
                    run(EVALUATION, session, log, number)
                    session.barrier()
                client.end_step()
                if part.evaluates == "behind":
                    client.mark()  # as a pull does
                    run(EVALUATION, session, log, number)
            place = batch if isinstance(batch, int) else client.clock
            if place == part.break_at and client.clock > begun:
                break


@given(st.lists(PARTS, min_size=1, max_size=5), st.integers(0, 2**32 - 1))
def test_any_script_goes_on_where_it_was(parts: list[Part], seed: int) -> None:
    def script(session: Session, log: Log) -> None:
        random.seed(seed + session.client.clock)
        for number, part in enumerate(parts):
            run(part, session, log, number)

    whole = assert_lives_again(script)
    asked = dict(whole.client.asked)
    for step, state in whole.states.items():
        following = range(unpack(state)["barriers"][0], len(asked))
        assert lived(script, step, state).client.asked == [(number, asked[number]) for number in following], step
