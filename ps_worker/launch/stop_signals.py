"""Ctrl-C and the signals that ask for an end, noted when they come and acted upon when it suits."""

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """A signal asked for an end; `number` is the first one's."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


class StopSignals:
    """Notes signals for the length of a `with` block. A handler that raised could do so between a fork and the line that remembers it.

    `received`  the first signal, or None.     `hurry`  what the handler does at once, each time.     `act`  what it does at once from the
    second signal on, or from the first if `acts_at_first`.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.hurry: Callable[[], None] = lambda: None
        self.act: Callable[[], None] = lambda: None
        self.acts_at_first = False
        self._before: dict[signal.Signals, object] = {}

    def check(self) -> None:
        """Raise Stopped if a signal has come."""
        if self.received is not None:
            raise Stopped(self.received)

    def __enter__(self) -> Self:
        for number in NUMBERS:
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal returned

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.hurry()
        if self.received is not None or self.acts_at_first:
            self.act()
        if self.received is None:
            self.received = signal.Signals(number)
