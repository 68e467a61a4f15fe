"""W7-servers: one worker's pull from 1 to 8 servers on this machine."""

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.bed import bed
from benchmarks.curve import Curve, Point
from benchmarks.machine import cores
from benchmarks.scaling.ids import pulled
from benchmarks.scaling.sizes import ScalingSizes


def servers_curve(sizes: ScalingSizes, seed: int) -> Curve:
    def points() -> Iterator[Point]:
        for servers in sizes.servers:
            with bed(replace(sizes.path, table_rows=sizes.server_rows), seed, servers) as made:
                yield pulled(made, sizes.path.batch, at=servers)

    note = (
        f"{sizes.path.batch:,} ids, {sizes.server_rows:,} rows of 64 floats in all; {cores()} processors are shared by the worker and all "
        "servers, so this shows what splitting and joining costs, and no gain beyond the processors"
    )
    title = f"One worker's pull of {sizes.path.batch:,} ids, by the servers, on {cores()} processors"
    return Curve("W7-servers", title, "servers", {"pull": "ms", "np.take": "ms", "np.take / pull": ""}, note, points)
