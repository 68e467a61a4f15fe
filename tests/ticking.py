"""A clock that only a test moves on."""


class Ticking:
    """`now_s` for whoever is handed a time. Sums of halves, quarters and eighths are exact."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds
