"""W7-ids: a pull of 10^2 to 10^6 ids from the table of W1, beside `np.take` of the same rows."""

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.bed import Bed, bed
from benchmarks.curve import Curve, Point
from benchmarks.harness import measure
from benchmarks.pulling import Pull
from benchmarks.scaling.sizes import ScalingSizes


def ids_curve(sizes: ScalingSizes, seed: int) -> Curve:
    def points() -> Iterator[Point]:
        with bed(sizes.path, seed) as made:
            for count in sizes.ids:
                yield pulled(made, count, at=count)

    note = f"through shared memory, from {sizes.path.table_rows:,} rows of 64 floats; np.take from an array in the worker"
    return Curve(
        "W7-ids", "A pull, by the number of its ids", "ids per pull", {"pull": "ms", "np.take": "ms", "np.take / pull": ""}, note, points
    )


def pulled(made: Bed, count: int, at: int) -> Point:
    """Measure pulls of so many ids, as W1 does; raises WrongAnswer."""
    made.sizes = replace(made.sizes, batch=count)
    (result,) = measure(Pull(made, "arena"), made.sizes.rounds, made.sizes.warm_ups)
    return Point(at, {"pull": result.ours, "np.take": result.floor, "np.take / pull": result.ratio})
