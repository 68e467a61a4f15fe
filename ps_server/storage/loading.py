"""Read of a checkpoint what one server owns, whoever wrote it: any number of servers reads what any number has written.

Layers are read oldest first. Of each, the parts of servers that had buckets which are this server's now:

    is_full    what older layers had of the table, in the buckets that the part's server had: dropped
    rows       those of buckets that are this server's now: set

and of the last one the names of pushes, which every layer has whole. While the core takes a file in, the next one is read: two of them are
the most that is in memory. Every file's checksum is compared before anything of it is told to the core.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ps_proto.errors import CorruptFile
from ps_proto.requests import Finished
from ps_server.storage.arrays_file import decode
from ps_server.storage.manifest import Manifest
from ps_server.storage.part import Part
from ps_server.storage.program import Ask, AskAll, Program
from ps_server.storage.reading import read_file, read_manifest, read_part
from ps_server.storage.rows_file import FilesAhead, rows_of
from ps_server.storage.saving import PIECE_BYTES
from ps_server.tasks import ClearBuckets, LoadFacts, LoadNames, LoadPart, LoadRows, SavedNames
from sharding.hashing import NUM_BUCKETS, buckets_of, table_salt

BucketMask = NDArray[np.bool_]  # bool[16384]


def load_part(task: LoadPart, piece_bytes: int = PIECE_BYTES) -> Program[int]:
    """Load all that is this server's; return how many rows were set, those of older layers too.

    Raises CorruptFile where a file is not as it was written, StorageFailed, or what the core refuses; rows may have been set then.
    """
    root = task.source.root
    manifest = yield from read_manifest(root, task.source.number)
    owned = _owned_by(task)
    num_rows = 0
    has_rows: set[str] = set()  # the tables of which there may be rows by now
    shares: list[_Share] = []
    for layer, owners in zip(manifest.layers, manifest.layer_owners(), strict=True):
        shares = []
        for place, entry in enumerate(layer.parts):
            had = owners == place
            if np.any(had & owned):
                shares.append(_Share((yield from read_part(root, entry)), had, had & owned))
        num_rows += yield from _load_layer(task, shares, has_rows, piece_bytes)
    for share in shares:
        data = yield from read_file(root, share.part.names)
        yield Ask(LoadNames(task.timeline, _names_of(data, f"{root}/{share.part.names.file}")))
    yield Ask(LoadFacts(task.timeline, (yield from _read_facts(root, manifest))))
    return num_rows


@dataclass(frozen=True, slots=True)
class _Share:
    """What is to be read of a part: of the buckets that its server `had`, the `shared` ones, which are this server's now."""

    part: Part
    had: BucketMask
    shared: BucketMask

    @property
    def is_whole(self) -> bool:
        """Whether all of it is this server's."""
        return bool(np.all(self.had == self.shared))

    def expected(self, num_rows: int) -> int:
        """Return about how many of the part's rows are this server's."""
        return num_rows * int(np.count_nonzero(self.shared)) // int(np.count_nonzero(self.had))


def _owned_by(task: LoadPart) -> BucketMask:
    names = [server.name for server in task.shard_map.servers]
    if task.server not in names:
        return np.zeros(NUM_BUCKETS, np.bool_)
    return np.asarray(task.shard_map.owners == names.index(task.server))


def _load_layer(task: LoadPart, shares: Sequence[_Share], has_rows: set[str], piece_bytes: int) -> Program[int]:
    """Load the rows of one layer; add its tables to `has_rows`, those that had rows before it."""
    reader = FilesAhead(task.source.root, [entry for share in shares for table in share.part.tables for entry in table.parts])
    expected: Counter[str] = Counter()
    for share in shares:
        for table in share.part.tables:
            expected[table.name] += share.expected(table.rows)
    num_rows = 0
    for share in shares:
        for table in share.part.tables:
            if table.is_full and table.name in has_rows:
                yield Ask(ClearBuckets(task.timeline, table.name, share.shared))
            for entry in table.parts:
                data = yield from reader.read()
                ids, records = rows_of(data, f"{task.source.root}/{entry.file}", table, entry)
                if not share.is_whole:
                    chosen = share.shared[buckets_of(table_salt(table.name), ids)]
                    ids, records = ids[chosen], records[chosen]
                size = max(1, piece_bytes // (8 + 4 * table.record_words))
                questions = []
                for begin in range(0, ids.size, size):
                    part = ids[begin : begin + size]
                    left = max(expected[table.name], part.size)
                    questions.append(LoadRows(task.timeline, table.name, part, records[begin : begin + size], left))
                    expected[table.name] -= part.size
                yield AskAll(questions)
                num_rows += ids.size
    has_rows.update(expected)
    return num_rows


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
