"""A worker's process, and what the coordinator says of the cluster, both set by hand: what a launcher watches."""

from ps_worker.child import ProcessEnded


class Process:
    """A child whose end is set by hand."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def how_it_ended(self) -> str | None:
        return None if self.code is None else f"ended with exit code {self.code}"

    def check(self) -> None:
        if self.code is not None:
            raise ProcessEnded("worker-0", f"ended with exit code {self.code}", "", self.code)


class Watch:
    """What the coordinator says, set by hand."""

    def __init__(self) -> None:
        self.timeline = 0
        self.asked_s = 0.0
        self.left: set[int] = set()
        self.job = 0
        self.missed: set[int] = set()

    def is_as_of(self, now_s: float) -> bool:
        return self.asked_s >= now_s

    def has_left(self, rank: int, timeline: int) -> bool:
        return self.timeline == timeline or rank in self.left

    def is_missed(self, rank: int) -> bool:
        return rank in self.missed

    def is_out(self, rank: int) -> bool:
        return rank in self.left
