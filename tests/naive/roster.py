"""A roster as every rank's stretches of steps, all of them kept."""

from math import inf


class NaiveRoster:
    """What `Clocks` does. `finished`: of each rank the last step; `stretches`: of each (first, last) in the roster, the last may be inf."""

    def __init__(self, world_size: int, first_clock: int) -> None:
        self.finished = [first_clock - 1] * world_size
        self.stretches: list[list[tuple[float, float]]] = [[(-inf, inf)] for _ in range(world_size)]
        self.first_clock = first_clock

    def finish(self, rank: int, clock: int) -> None:
        self.finished[rank] = max(self.finished[rank], clock)

    def leave(self, rank: int) -> None:
        if self.is_present(rank):
            first, _ = self.stretches[rank][-1]
            self.stretches[rank][-1] = first, self.finished[rank]

    def admit(self, rank: int, first: int) -> None:
        if rank == len(self.finished):
            self.finished.append(first - 1)
            self.stretches.append([(first, inf)])
        elif not self.is_present(rank):
            begin = max(first, int(self.stretches[rank][-1][1]) + 1)
            self.stretches[rank].append((begin, inf))
            self.finished[rank] = max(self.finished[rank], begin - 1)

    def is_present(self, rank: int) -> bool:
        return self.stretches[rank][-1][1] == inf

    @property
    def present(self) -> list[int]:
        return [rank for rank in range(len(self.finished)) if self.is_present(rank)]

    @property
    def least(self) -> int:
        return min(self.finished[rank] for rank in self.present or range(len(self.finished)))

    @property
    def slowest(self) -> int:
        return min(rank for rank in self.present or range(len(self.finished)) if self.finished[rank] == self.least)

    def roster(self, step: int) -> list[int]:
        return [rank for rank, its in enumerate(self.stretches) if any(first <= step <= last for first, last in its)]

    def first_of(self, rank: int) -> int:
        if rank >= len(self.finished) or not self.is_present(rank):
            return -1
        first = self.stretches[rank][-1][0]
        return self.first_clock if first == -inf else int(first)
