"""The router's slow twin: one id at a time, dicts and lists."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from naive.sharding import bucket_of
from sharding.shard_map import ShardMap

Requests = dict[str, dict[int, list[int]]]  # server -> position of the table -> its ids, each once, in order of first appearance


def route(tables: Sequence[tuple[str, Sequence[int]]], shard_map: ShardMap) -> Requests:
    """What each server is asked for."""
    requests: Requests = {}
    for position, (table, ids) in enumerate(tables):
        for id in dict.fromkeys(ids):
            server = shard_map.servers[shard_map.owners[bucket_of(table, id)]].name
            requests.setdefault(server, {}).setdefault(position, []).append(id)
    return requests


def pulled(tables: Sequence[tuple[str, Sequence[int]]], row_of: Callable[[str, int], list[float]]) -> list[npt.NDArray[np.float32]]:
    """What the caller gets: a row for each id, repeats included, in the caller's order."""
    return [np.array([row_of(table, id) for id in ids], np.float32) for table, ids in tables]
