import pytest

from ps_proto.requests import Stats
from ps_worker.profiling.server_times import ServerTimes, Split


def stats(cpu_s: float = 0.0, turns_s: float = 0.0, **ranks: tuple[float, float]) -> Stats:
    """Of the pulls of each rank, "r0" and so on: seconds parked, seconds of turns."""
    numbers = {int(name[1:]): {"pull_parked_s": parked_s, "pull_turn_s": turn_s} for name, (parked_s, turn_s) in ranks.items()}
    return Stats({"cpu_s": cpu_s, "turns_s": turns_s}, {}, numbers)


def test_calls_are_set_against_what_both_servers_did_in_between() -> None:
    before = {"a": stats(r0=(10.0, 1.0)), "b": stats(r1=(5.0, 5.0))}
    after = {"a": stats(4.0, 2.0, r0=(11.0, 1.5), r1=(0.25, 1.0)), "b": stats(1.0, 1.0, r0=(1.0, 0.5), r1=(5.0, 6.0))}
    times = ServerTimes.between(before, after, 0, {"pull": 4.0, "push": 0.0, "other": 1.0}, 8.0)
    assert times.splits == {"pull": Split(0.5, 0.25)}
    assert times.splits["pull"].wire == 0.25
    assert times.parked_s == {0: 2.0, 1: 0.25}
    assert (times.busy, times.turns) == ({"a": 0.5, "b": 0.125}, {"a": 0.25, "b": 0.125})


@pytest.mark.parametrize(("parked_s", "turn_s"), [(9.0, 9.0), (0.0, 9.0), (9.0, 0.0)])
def test_more_than_the_calls_took_is_cut(parked_s: float, turn_s: float) -> None:
    """A look may come between a call's begin and its end."""
    split = ServerTimes.between({"a": stats()}, {"a": stats(r0=(parked_s, turn_s))}, 0, {"pull": 4.0}, 1.0).splits["pull"]
    assert min(split.parked, split.turns, split.wire) >= 0.0
    assert split.parked + split.turns + split.wire == 1.0


def test_a_server_that_came_or_went_in_between_is_left_out() -> None:
    times = ServerTimes.between(
        {"a": stats(), "gone": stats()}, {"a": stats(r0=(1.0, 0.0)), "new": stats(r0=(9.0, 0.0))}, 0, {"pull": 2.0}, 1.0
    )
    assert times.splits == {"pull": Split(0.5, 0.0)}
    assert list(times.busy) == ["a"]
