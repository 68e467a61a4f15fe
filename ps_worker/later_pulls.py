"""Pulls for steps to come, which begin when their modes let them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ps_proto.errors import ParameterServerError
from ps_worker.driver import Handle


@dataclass(frozen=True)
class LaterPull:
    """A pull for the step of `turn`, which `start` begins."""

    tables: Sequence[str]
    turn: int
    handle: Handle[Any]
    start: Callable[[], None]


class LaterPulls:
    """Keeps pulls, of known tables, until `may_begin(tables, turn)`; in the order in which they were asked for."""

    def __init__(self, may_begin: Callable[[Sequence[str], int], bool]) -> None:
        self._may_begin = may_begin
        self._pulls: list[LaterPull] = []

    def add(self, pull: LaterPull) -> None:
        """Begin it at once where it may, else keep it; what was cancelled is forgotten."""
        if self._may_begin(pull.tables, pull.turn):
            pull.start()
        else:  # a loop that looks on, without steps, asks ahead and cancels at each batch
            self._pulls = [*[kept for kept in self._pulls if not kept.handle.is_cancelled], pull]

    def start_those_that_may(self) -> None:
        """Begin what a new step lets begin."""
        pulls, self._pulls = self._pulls, []
        for pull in pulls:
            if not pull.handle.is_cancelled:
                self.add(pull)

    def fail(self, error: ParameterServerError) -> None:
        """End all of them with an error."""
        for pull in self._pulls:
            if not pull.handle.is_cancelled:
                pull.handle.fail(error)
        self._pulls.clear()
