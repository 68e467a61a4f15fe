"""How often a process that ended is started again, and after which pause."""

FIRST_PAUSE_S = 0.5
PAUSE_S_MAX = 8.0


class Restarts:
    """One process's budget: it is started again `most` times. The pause before it doubles each time, up to PAUSE_S_MAX."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.spent = 0
        self._next_s = FIRST_PAUSE_S

    def pause_s(self, is_free: bool = False) -> float | None:
        """Return for how many seconds to wait before the next start, which is counted; None where the budget is spent.

        `is_free`  it ended through no fault of its own, and others wait for it: that counts nothing, and there is no pause.
        """
        if self.most == 0:
            return None
        if is_free:
            return 0.0
        if self.spent == self.most:
            return None
        self.spent += 1
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, PAUSE_S_MAX)
        return pause_s
