"""What a case is: the same work twice, as the machine's floor and by us, and a check that ours was done."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


class WrongAnswer(Exception):
    """What came back is not what it must be: however fast it was, it does not count."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on the ratio, or on ours alone. A case with "at least" counts floor over ours, with "at most" ours over floor."""

    kind: Literal["at least", "at most"]
    bound: float
    of: Literal["ratio", "ours"] = "ratio"

    def ratio(self, ours: float, floor: float) -> float:
        """Return how ours stands to the floor; both cost, so less is better."""
        return floor / ours if self.kind == "at least" else ours / floor

    def holds(self, value: float) -> bool:
        return value >= self.bound if self.kind == "at least" else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.kind == 'at least' else '≤'} {self.bound:g}{'' if self.of == 'ratio' else ' ours'}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a case, which ours and the floor both have."""

    name: str
    unit: str
    goal: Goal


class Case(ABC):
    """One measurement. In each round the harness calls prepare, floor, ours, check; floor and ours return a value for each figure."""

    name: str
    figures: tuple[Figure, ...]

    @abstractmethod
    def prepare(self) -> None:
        """Choose what this round is about; not timed."""

    @abstractmethod
    def floor(self) -> tuple[float, ...]:
        """Do the work with nothing of ours around it."""

    @abstractmethod
    def ours(self) -> tuple[float, ...]:
        """Do the work as a user does."""

    @abstractmethod
    def check(self) -> None:
        """Raise WrongAnswer unless ours did what it had to; not timed."""

    def remarks(self) -> Sequence[str]:
        """Return lines to print below the figures, once all rounds are done."""
        return ()
