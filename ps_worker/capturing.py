"""When a step's end is held back until the script has said what it needs to go on after that step (R15).

    client.end_step()        the clock goes up; no server hears of it, and no pull for the step that begins is sent
    scheduler.step() ...     what the loop still does for the step that ended
    client.mark()            the state is captured, and travels in the same message as the step's end

The loop's asking for its next batch is the moment: ps.prefetch and session.steps() mark it. Without them, the next call that talks to the
servers does. So does one inside the loop's turn, behind its step: what the turn changes after it is said once more where the turn ends.
"""

from collections.abc import Callable
from threading import get_ident

from ps_proto.codec import RESUME_BYTES_MAX
from ps_proto.errors import InvalidRequest

Provider = Callable[[], bytes]


class Capture:
    """Asks the provider, if there is one, for each step's resume state, in the thread that trains; `attach` takes it."""

    def __init__(self, attach: Callable[[bytes], None], say_again: Callable[[bytes], None]) -> None:
        self._attach, self._say_again = attach, say_again
        self._provide: Provider | None = None
        self._tell: Callable[[], None] | None = None
        self._thread = 0
        self._is_capturing = False
        self._said = b""  # what was captured last
        self._is_stale = False

    def provide(self, provider: Provider) -> None:
        """Hold each step's end back from now on, until `provider` has returned its state."""
        self._provide = provider

    @property
    def is_on(self) -> bool:
        """Whether ends of steps are held back."""
        return self._provide is not None

    def hold(self, tell: Callable[[], None]) -> None:
        """Call `tell` once the state of the step that has just ended is attached."""
        self._tell, self._is_stale = tell, False
        self._thread = get_ident()

    def mark(self) -> None:
        """Capture the state and let the step's end go; does nothing where none is held back.

        What the provider raises leaves it held back. InvalidRequest for a state that does not fit, or that reads from the servers.
        """
        tell = self._tell
        if tell is None:
            if self._is_stale:
                self.mark_again()
            return
        state = self._capture(self._provide)
        self._attach(state)
        self._said, self._tell = state, None
        tell()

    def mark_again(self) -> None:
        """Capture the state of a step whose end was let go before, and tell the servers where it has changed; raises as `mark`."""
        self._is_stale = False
        if self._tell is not None or self._provide is None:
            return
        state = self._capture(self._provide)
        if state != self._said:
            self._say_again(state)
            self._said = state

    def mark_later(self) -> None:
        """Do so with the next call that talks to the servers; a script that ends in an exception makes none."""
        self._is_stale = True

    def _capture(self, provide: Provider | None) -> bytes:
        assert provide is not None, "only where somebody provides a state is a step's end held back"
        if self._is_capturing:
            want = "known to the script alone, such as a scheduler's: rows and dense weights are the servers'"
            raise InvalidRequest("what is registered to resume from", "read from the servers while it is captured", want)
        self._is_capturing = True
        try:
            return check_resume(provide())
        finally:
            self._is_capturing = False

    def mark_here(self) -> None:
        """Do so if this is the thread that trains: a wait in it would last as long as the step's end is held back."""
        if get_ident() == self._thread:
            self.mark()


def check_resume(state: object) -> bytes:
    """Return a resume state; InvalidRequest for what is none, or too long to travel with each step."""
    if not isinstance(state, bytes):
        raise InvalidRequest("resume state", f"a {type(state).__name__}", "bytes")
    if len(state) > RESUME_BYTES_MAX:
        raise InvalidRequest("resume state", f"{len(state):,} bytes", f"at most {RESUME_BYTES_MAX:,}: it travels with each step")
    return state
