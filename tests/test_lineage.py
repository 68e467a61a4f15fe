"""Which checkpoints are of the time that led here."""

from ps_server.coordinator.lineage import BRANCHES_KEPT, NUMBER_MAX, Lineage


def branches(lineage: Lineage) -> list[tuple[int, int]]:
    return [(branch.timeline, branch.number) for branch in lineage.stored()]


def test_a_timeline_that_begins_lower_leaves_nothing_of_those_before() -> None:
    lineage = Lineage(7)
    assert lineage.told() == ((7, 0, NUMBER_MAX),)
    for timeline, number in ((1, 8), (2, 12), (4, 20), (5, 12)):
        lineage.begin(timeline, number)
    assert branches(lineage) == [(1, 8), (5, 12)]
    assert Lineage(7, lineage.stored()).told() == ((7, 0, NUMBER_MAX), (7, 1, 8), (7, 5, 12))
    lineage.begin(6, 0)
    assert branches(lineage) == [(6, 0)]


def test_of_very_many_the_oldest_are_counted_more_strictly() -> None:
    lineage = Lineage(7)
    for timeline in range(1, BRANCHES_KEPT + 3):
        lineage.begin(timeline, 10 * timeline)
    assert branches(lineage)[:2] == [(3, 10), (4, 40)]
    assert len(branches(lineage)) == BRANCHES_KEPT
