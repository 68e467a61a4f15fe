"""The slow twin of examples/click_log.py: one field at a time."""

import math


def parse_line(line: str) -> tuple[float, list[float], list[int]]:
    """Return (label, counts as log(1 + count), ids) of a line whose categories have at most 40 bits."""
    label, *fields = line.removesuffix("\n").split("\t")
    counts = [math.log1p(max(int(field or "0"), 0)) for field in fields[:13]]
    ids = [position << 40 | int(field or "0", 16) for position, field in enumerate(fields[13:])]
    return float(label), counts, ids
