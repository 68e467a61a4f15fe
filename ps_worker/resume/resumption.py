"""All that a script goes on from: captured at each step, and set where it goes on."""

import logging
from collections.abc import Iterator
from typing import Any

from ps_proto.codec import RESUME_BYTES_MAX
from ps_proto.errors import InvalidRequest
from ps_worker.client import Client
from ps_worker.protocol import BarriersAsked
from ps_worker.resume.gradients import Gradients
from ps_worker.resume.packing import pack, unpack
from ps_worker.resume.registry import Registry
from ps_worker.resume.replay import Replay
from ps_worker.resume.rngs import rng_states, set_rng_states

log = logging.getLogger("rowstead")


class Resumption:
    """A client's script, as far as another process can go on with it.

    registry  the objects whose states belong to it.     replay  where the script is.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        left = unpack(client.resume) if client.resume else {}
        self._rngs: dict[str, Any] = left.get("rngs", {})
        self.registry = Registry(left.get("objects", {}))
        # The client's turn, the generators and the gradients, where the state was captured before the turn of the loop was over.
        self._behind_step: tuple[int, dict[str, Any], Gradients] | None = None
        self.replay = Replay(lambda: client.clock, client.is_resumed, left.get("replay"), self._arrive, self._end_turn, self._end_loop)
        client.follow(self.replay, BarriersAsked(*left["barriers"]) if left else None)
        if client.is_resumed:
            log.warning("Rank %d resumes at step %d.", client.rank, client.clock)

    def _arrive(self) -> None:
        """Set what the script's top may have changed: this is the resume point."""
        self.registry.settle()
        if self._rngs:
            set_rng_states(self._rngs)

    def _end_turn(self) -> None:
        """Set the generators back to where they were captured: a worker started again does not draw what the turn drew behind its step.

        Not where another step was made since, or gradients were computed for the next one: that was no evaluation, and what was drawn for
        it must not be drawn again.
        """
        if self._behind_step is not None and self._behind_step[0] == self._client.turn:
            if self._behind_step[2].has_all_of(self.registry.gradients()):
                set_rng_states(self._behind_step[1])
            self._client.mark_again()  # what else has changed
        self._behind_step = None

    def _end_loop(self) -> None:
        """Say that it was broken off behind a step whose state was captured, unless an exception did that, which ends the script."""
        if self._behind_step is not None:
            self._client.mark_later()
        self._behind_step = None

    def capture(self) -> bytes:
        """Return the state. Raises InvalidRequest that names the object which is too large, or no plain data."""
        objects, rngs = self.registry.capture(), rng_states()
        if self.replay.is_behind_step:
            self._behind_step = (self._client.turn, rngs, self.registry.gradients())
        state = {"rngs": rngs, "replay": self.replay.state(), "barriers": tuple(self._client.barriers), "objects": objects}
        data = pack(state)
        if len(data) > RESUME_BYTES_MAX:
            sizes = {f"what is registered as {name!r}": len(packed) for name, packed in objects.items()}
            sizes["the place in the passes over data"] = len(pack(state["replay"]))
            largest = max(sizes, key=lambda name: sizes[name])
            got = f"{len(data):,} bytes, {sizes[largest]:,} of them for {largest}"
            raise InvalidRequest("The resume state", got, f"at most {RESUME_BYTES_MAX:,}: it travels with each step")
        return data

    def steps(self, count: int) -> Iterator[int]:
        """Yield the numbers of `count` steps, from the one at work on; InvalidRequest where the loop's body ends none."""
        loop, client = self.replay.begin_loop(), self._client
        if loop is None:
            return
        try:
            client.mark()
            while (number := client.clock - loop.first) < count:
                loop.turn = client.clock
                yield number
                self.replay.end_turn(loop)
                loop.turn = None
                client.mark()
                if client.clock - loop.first == number:
                    want = "one with a step in each turn: optimizer.step(), or client.end_step()"
                    raise InvalidRequest("the loop over session.steps()", f"without a step in turn {number}", want)
        finally:
            self.replay.end_pass(loop)
