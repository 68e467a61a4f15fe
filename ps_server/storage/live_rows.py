"""The rows of one table as a checkpoint has them, of all servers and layers: of each id the newest, and none that a later layer voids."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ps_proto.requests import Ids
from ps_server.storage.manifest import Manifest
from ps_server.storage.part import Part, TablePart
from ps_server.storage.program import Program
from ps_server.storage.reading import read_part
from ps_server.storage.rows_file import FilesAhead, rows_of
from ps_server.tasks import Records
from sharding.hashing import NUM_BUCKETS, buckets_of, table_salt

Parts = Sequence[Sequence[Part]]  # of each layer, oldest first


def read_parts(root: str, manifest: Manifest) -> Program[Parts]:
    """Return what the part.json files of a checkpoint say."""
    layers = []
    for layer in manifest.layers:
        parts = []
        for entry in layer.parts:
            part = yield from read_part(root, entry)
            parts.append(part)
        layers.append(parts)
    return layers


class LiveRows:
    """Reads the layers newest first, a file at a time. It remembers the ids of all layers but the oldest: 8 bytes each."""

    def __init__(self, root: str, manifest: Manifest, parts: Parts, table: str) -> None:
        self._root = root
        self._salt = table_salt(table)
        self._files: list[tuple[int, TablePart, int]] = []  # place of the layer, the table in a part, number of its file
        self._voids: list[NDArray[np.bool_]] = []  # bool[16384], by layer: whose rows the newer ones void
        void = np.zeros(NUM_BUCKETS, np.bool_)
        for place, owners in reversed(list(enumerate(manifest.layer_owners()))):
            self._voids.insert(0, void.copy())
            for shard, part in enumerate(parts[place]):
                for held in part.tables:
                    if held.name == table:
                        self._files += [(place, held, number) for number in range(len(held.parts))]
                        if held.is_full:
                            void[owners == shard] = True
        self._ahead = FilesAhead(root, [held.parts[number] for _, held, number in self._files])
        self._layer = len(parts) - 1
        self._newer: Ids = np.zeros(0, np.uint64)  # the ids of newer layers, ascending
        self._own: list[Ids] = []  # those of the layer at work

    def read(self) -> Program[tuple[Ids, Records] | None]:
        """Return the next ids uint64[n] and records uint32[n, words], in no order; None: there are no more. n may be 0."""
        if not self._files:
            return None
        place, held, number = self._files.pop(0)
        entry = held.parts[number]
        ids, records = rows_of((yield from self._ahead.read()), f"{self._root}/{entry.file}", held, entry)
        if place < self._layer:
            self._newer = np.unique(np.concatenate([self._newer, *self._own]))
            self._own, self._layer = [], place
        if place > 0:
            self._own.append(ids.copy())
        is_live = ~self._voids[place][buckets_of(self._salt, ids)]
        if self._newer.size:
            at = np.minimum(np.searchsorted(self._newer, ids), self._newer.size - 1)
            is_live &= self._newer[at] != ids
        return (ids, records) if np.all(is_live) else (ids[is_live], records[is_live])
