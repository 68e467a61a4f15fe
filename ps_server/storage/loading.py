"""Read of a checkpoint what one server owns, whoever wrote it: any number of servers reads what any number has written.

Layers are read oldest first. Of each, the parts of servers that had buckets which are this server's now; of their rows, those of these
buckets are set, but for what a later layer makes void: it does, in all buckets that a server had, where its part of a table `is_full`.
Files of which nothing is left are not read. The names of pushes are the last layer's, since each has them whole.

While the core takes a file in, the next one is read: two of them are the most that is in memory. Every file's checksum is compared before
anything of it is told to the core.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ps_proto.errors import CorruptFile
from ps_proto.requests import Finished
from ps_server.storage.arrays_file import decode
from ps_server.storage.entries import RowsEntry
from ps_server.storage.manifest import Manifest
from ps_server.storage.part import Part, TablePart
from ps_server.storage.program import Ask, AskAll, Program
from ps_server.storage.reading import read_file, read_manifest, read_part
from ps_server.storage.rows_file import FilesAhead, rows_of
from ps_server.storage.saving import PIECE_BYTES
from ps_server.tasks import LoadFacts, LoadNames, LoadPart, LoadRows, SavedNames
from sharding.hashing import NUM_BUCKETS, buckets_of, table_salt

BucketMask = NDArray[np.bool_]  # bool[16384]


def load_part(task: LoadPart, piece_bytes: int = PIECE_BYTES) -> Program[int]:
    """Load all that is this server's; return how many rows were set, those of older layers too.

    Raises CorruptFile where a file is not as it was written, StorageFailed, or what the core refuses; rows may have been set then.
    """
    root = task.source.root
    manifest = yield from read_manifest(root, task.source.number)
    layers, parts = yield from _read_shares(task, manifest)
    num_rows = 0
    for shares in layers:
        num_rows += yield from _load_layer(task, shares, piece_bytes)
    for part in parts:
        data = yield from read_file(root, part.names)
        yield Ask(LoadNames(task.timeline, _names_of(data, f"{root}/{part.names.file}")))
    yield Ask(LoadFacts(task.timeline, (yield from _read_facts(root, manifest))))
    return num_rows


@dataclass(frozen=True, slots=True)
class _Share:
    """What is to be read of a table in a part: of the buckets that its server `had`, the `wanted` ones."""

    table: TablePart
    had: BucketMask
    wanted: BucketMask

    @property
    def is_whole(self) -> bool:
        """Whether all of its rows are wanted."""
        return bool(np.all(self.had == self.wanted))

    @property
    def expected(self) -> int:
        """About how many of its rows are wanted."""
        return self.table.rows * int(np.count_nonzero(self.wanted)) // int(np.count_nonzero(self.had))


def _owned_by(task: LoadPart) -> BucketMask:
    names = [server.name for server in task.shard_map.servers]
    if task.server not in names:
        return np.zeros(NUM_BUCKETS, np.bool_)
    return np.asarray(task.shard_map.owners == names.index(task.server))


def _read_shares(task: LoadPart, manifest: Manifest) -> Program[tuple[list[list[_Share]], list[Part]]]:
    """Return what is to be read of each layer, oldest first, and the parts of the last one that are to be read."""
    owned = _owned_by(task)
    void: dict[str, BucketMask] = {}  # of each table the buckets of which later layers say all
    layers: list[list[_Share]] = []
    last: list[Part] = []
    for layer, owners in reversed(list(zip(manifest.layers, manifest.layer_owners(), strict=True))):
        shares = []
        for place, entry in enumerate(layer.parts):
            had = owners == place
            if not np.any(had & owned):
                continue
            part = yield from read_part(task.source.root, entry)
            if layer is manifest.layers[-1]:
                last.append(part)
            for table in part.tables:
                known = void.get(table.name, np.zeros(NUM_BUCKETS, np.bool_))
                wanted = had & owned & ~known
                if np.any(wanted):
                    shares.append(_Share(table, had, wanted))
                if table.is_full:
                    void[table.name] = known | had
        layers.insert(0, shares)
    return layers, last


def _load_layer(task: LoadPart, shares: Sequence[_Share], piece_bytes: int) -> Program[int]:
    """Load the rows of one layer; return how many."""
    files = FilesAhead(task.source.root, [entry for share in shares for entry in share.table.parts])
    expected: Counter[str] = Counter()
    for share in shares:
        expected[share.table.name] += share.expected
    num_rows = 0
    for share in shares:
        for entry in share.table.parts:
            num_rows += yield from _load_file(task, share, entry, files, expected, piece_bytes)
    return num_rows


def _load_file(
    task: LoadPart, share: _Share, entry: RowsEntry, files: FilesAhead, expected: Counter[str], piece_bytes: int
) -> Program[int]:
    """Load the next of `files`; return how many rows were wanted. On its own, so that nothing holds a file once it is loaded."""
    table = share.table
    ids, records = rows_of((yield from files.read()), f"{task.source.root}/{entry.file}", table, entry)
    if not share.is_whole:
        chosen = share.wanted[buckets_of(table_salt(table.name), ids)]
        ids, records = ids[chosen], records[chosen]
    size = max(1, piece_bytes // (8 + 4 * table.record_words))
    questions = []
    for begin in range(0, ids.size, size):
        part = ids[begin : begin + size]
        left = max(expected[table.name], part.size)
        questions.append(LoadRows(task.timeline, table.name, part, records[begin : begin + size], left))
        expected[table.name] -= part.size
    yield AskAll(questions)
    return int(ids.size)


def _names_of(data: memoryview, path: str) -> SavedNames:
    arrays = decode(data, path)
    buckets, ranks, names = arrays.get("buckets"), arrays.get("ranks"), arrays.get("names")
    if buckets is None or buckets.dtype != np.int32 or buckets.ndim != 1:
        raise CorruptFile(path, "it has no list of buckets")
    if buckets.size and not (buckets[0] >= 0 and buckets[-1] < NUM_BUCKETS and np.all(buckets[:-1] < buckets[1:])):
        raise CorruptFile(path, f"its buckets are not ascending from 0 to {NUM_BUCKETS - 1}")
    if ranks is None or ranks.dtype != np.int64 or ranks.ndim != 1:
        raise CorruptFile(path, "it has no list of ranks")
    if names is None or names.dtype != np.uint64 or names.shape != (ranks.size, buckets.size):
        raise CorruptFile(path, f"it has no names of {ranks.size} ranks in {buckets.size} buckets")
    return SavedNames(tuple(ranks.tolist()), buckets, names)


def _read_facts(root: str, manifest: Manifest) -> Program[dict[int, Finished]]:
    """Return what each rank finished last, with its resume state, where a part has the state of exactly that step."""
    facts: dict[int, Finished] = {}
    parts = manifest.layers[-1].parts
    for shard in sorted({rank.shard for rank in manifest.ranks if rank.shard is not None}):
        part = yield from read_part(root, parts[shard])
        path = f"{root}/{part.resume.file}"
        states = decode((yield from read_file(root, part.resume)), path)
        for rank in manifest.ranks:
            if rank.shard == shard:
                state = states.get(f"rank-{rank.rank}")
                if state is None or state.dtype != np.uint8 or part.facts.get(rank.rank) != rank.clock:
                    raise CorruptFile(path, f"it has no resume state of rank {rank.rank} after step {rank.clock}")
                facts[rank.rank] = Finished(rank.clock, resume=state.tobytes())
    return facts
