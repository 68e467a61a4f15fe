"""The benchmarks of ps.prefetch run, and count what they say they count."""

from benchmarks import plan_beside, read_ahead
from ps_worker.prefetch import planning


def test_rows_that_were_read_ahead_lack_what_their_depth_says() -> None:
    row = read_ahead.run("asynchronous", depth=2, overlaps=False, steps=read_ahead.FIRST + 4, step_s=0.0)
    assert row.own_max <= 2
    assert row.own_mean > 0.0


def test_plans_beside_and_at_once_are_timed_in_turn_and_the_limit_is_put_back() -> None:
    usual = planning.BESIDE_MIN
    row = plan_beside.run("sync", size=32, pairs=2)
    assert row.ids == 32 * 26
    assert min(row.next_beside_s, row.next_at_once_s, row.step_s, *row.ratio) > 0.0
    assert usual == planning.BESIDE_MIN
