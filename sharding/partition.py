"""The client's data path around a request: dedup the ids, sum repeated rows, split by owner, and lay the parts back in the caller's order.

        ids    [7 3 7 9]            deduplicate   unique [7 3 9]   inverse [0 1 0 2]
        rows   [a b c d]            sum_repeats          [a+c b d]
        unique [7 3 9]              split         order [1 0 2]    offsets [0 1 3]      server 0 owns 3, server 1 owns 7 and 9
        unique to server 1          gather_ids    [7 9]            the reply's rows: scatter_rows writes them at 0 and 2

Nothing here depends on hash seeds, threads or earlier calls, and only `split` looks at owners: the order of a sum is the caller's on any
number of servers (R17). No function keeps a buffer, so all may run in several threads at once. Arrays are C-contiguous; ids are uint64
and every value is legal; empty ones work everywhere.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sharding.hashing import BUCKET_SHIFT, hash_id, mix64
from sharding.kernel import kernel

Ids = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.float32]  # [n, dim]
Indexes = npt.NDArray[np.int64]
Owners = npt.NDArray[np.int32]  # [16384], a ShardMap's

_BUCKET_SHIFT = np.uint64(BUCKET_SHIFT)
_IDS_MAX = 2**31 - 1  # positions in the dedup's hash table are int32: half the memory to miss a cache in


class Split(NamedTuple):
    """A stable sort of n ids by owner. `order` int64[n], `offsets` int64[k + 1]: server s gets `order[offsets[s]:offsets[s + 1]]`."""

    order: Indexes
    offsets: Indexes

    def part(self, server: int) -> Indexes:
        """Return the positions of the ids that the server owns, ascending; a view."""
        return self.order[self.offsets[server] : self.offsets[server + 1]]


def deduplicate(ids: Ids) -> tuple[Ids, Indexes]:
    """Return each id once, in order of first appearance, and where each one went: `unique[inverse] == ids`.

    ids  uint64[n], n < 2**31.     unique  uint64[u].     inverse  int64[n].     O(n) expected.

    >>> deduplicate(np.array([7, 3, 7, 9], dtype=np.uint64))[1].tolist()
    [0, 1, 0, 2]
    """
    _check_count(ids)
    return _deduplicate(ids)


def _check_count(ids: Ids) -> None:
    if ids.size > _IDS_MAX:
        raise ValueError(f"{ids.size} ids in one call are more than {_IDS_MAX}; make the call in parts.")


@kernel
def _deduplicate(ids: Ids) -> tuple[Ids, Indexes]:
    """Insert into an open-addressing table of positions in `unique`; -1 is empty, so that no id has to be set apart."""
    capacity = 16
    while capacity < 2 * ids.size:
        capacity *= 2
    mask = np.uint64(capacity - 1)
    one = np.uint64(1)
    table = np.full(capacity, np.int32(-1), dtype=np.int32)
    unique = np.empty(ids.size, dtype=np.uint64)
    inverse = np.empty(ids.size, dtype=np.int64)
    count = 0
    for i in range(ids.size):
        id = ids[i]
        probe = mix64(id) & mask
        position = table[probe]
        while position >= 0 and unique[position] != id:
            probe = (probe + one) & mask
            position = table[probe]
        if position < 0:
            position = np.int32(count)
            table[probe] = position
            unique[count] = id
            count += 1
        inverse[i] = position
    return unique[:count], inverse


def has_few_repeats(ids: Ids, most: int) -> bool:
    """Return True where at most `most` of the ids came before in the batch; False where more did, or where it is not cheap to tell.

    ids  uint64[n], n < 2**31.     O(n), in a few bytes for each id: where nothing repeats, a third of what `deduplicate` costs.

    >>> has_few_repeats(np.array([7, 3, 7, 9], dtype=np.uint64), 0), has_few_repeats(np.array([7, 3, 7, 9], dtype=np.uint64), 1)
    (False, True)
    """
    _check_count(ids)
    return _has_few_repeats(ids, most)


@kernel
def _has_few_repeats(ids: Ids, most: int) -> bool:
    """Mark a bit for each id, 8 to 16 for every one that there is; only ids whose bit is marked twice are compared with each other.

    Where nothing repeats, one id in 16 at most is expected to find its bit marked (n² / 2 pairs, 8 n bits); twice as many, beside `most`,
    and it is `deduplicate` that tells.
    """
    bits = 64
    while bits < 8 * ids.size:
        bits *= 2
    mask = np.uint64(bits - 1)
    word_shift, in_word, one = np.uint64(6), np.uint64(63), np.uint64(1)
    marked = np.zeros(bits // 64, dtype=np.uint64)
    again = np.zeros(bits // 64, dtype=np.uint64)
    hits, hits_max = 0, most + ids.size // 8 + 8
    for i in range(ids.size):
        bit = mix64(ids[i]) & mask
        word = np.int64(bit >> word_shift)
        flag = one << (bit & in_word)
        hit = (marked[word] >> (bit & in_word)) & one
        hits += int(hit)
        again[word] |= hit << (bit & in_word)
        marked[word] |= flag
    if hits <= most:
        return True  # an id that came before has hit its bit
    if hits > hits_max:
        return False
    suspects = np.empty(ids.size, dtype=np.uint64)
    count = 0
    for i in range(ids.size):
        bit = mix64(ids[i]) & mask
        suspects[count] = ids[i]
        count += int((again[np.int64(bit >> word_shift)] >> (bit & in_word)) & one)
    unique, _ = _deduplicate(suspects[:count])
    return bool(count - unique.size <= most)


def sum_repeats(rows: Rows, inverse: Indexes, unique_count: int) -> Rows:
    """Return the sum of the rows of each unique id: a left fold in the caller's order, float32, from the first one.

    rows  float32[n, dim].     inverse  int64[n], as `deduplicate` gives it; ValueError where it is not.     result  float32[u, dim].
    The first row is copied, never added to 0.0, so that a lone -0.0 or NaN keeps its bits. If no id repeats, the result is `rows` itself.
    """
    if inverse.shape != rows.shape[:1]:
        raise ValueError(f"There are {len(rows)} rows for {len(inverse)} ids.")
    if unique_count == len(rows):
        return rows
    sums = np.empty((unique_count, rows.shape[1]), dtype=np.float32)
    if not _sum_repeats(rows, inverse, sums):
        raise ValueError(f"The inverse does not number {unique_count} ids in order of first appearance.")
    return sums


@kernel
def _sum_repeats(rows: Rows, inverse: Indexes, sums: Rows) -> bool:
    """Fold each row into its place in `sums`; return whether the inverse was a legal one that fills them all."""
    count = 0
    for i in range(inverse.size):
        position = inverse[i]
        if position < 0 or position > count or position >= sums.shape[0]:
            return False
        row = rows[i]
        target = sums[position]
        if position == count:
            count += 1
            for column in range(row.size):
                target[column] = row[column]
        else:
            for column in range(row.size):
                target[column] += row[column]
    return bool(count == sums.shape[0])


def split(salt: np.uint64, ids: Ids, owners: Owners, servers_count: int) -> Split:
    """Sort the positions of the ids by the server that owns them, stably: a counting sort.

    ids  uint64[n].     owners  int32[16384], indexes below `servers_count`; ValueError where an id's is not.     O(n + servers).
    """
    order, offsets = _split(salt, ids, owners, servers_count)
    if offsets[-1] != ids.size:
        raise ValueError(f"The shard map has owners beyond its {servers_count} servers.")
    return Split(order, offsets)


@kernel
def _split(salt: np.uint64, ids: Ids, owners: Owners, servers_count: int) -> tuple[Indexes, Indexes]:
    """Count, then place. An owner out of range stops the count, so that the last offset is not n."""
    order = np.empty(ids.size, dtype=np.int64)
    offsets = np.zeros(servers_count + 1, dtype=np.int64)
    owner_of = np.empty(ids.size, dtype=np.int32)
    for i in range(ids.size):
        owner = owners[np.int64(hash_id(salt, ids[i]) >> _BUCKET_SHIFT)]
        if owner < 0 or owner >= servers_count:
            offsets[servers_count] = -1
            return order, offsets
        owner_of[i] = owner
        offsets[owner + 1] += 1
    for server in range(servers_count):
        offsets[server + 1] += offsets[server]
    ends = offsets.copy()
    for i in range(ids.size):
        owner = owner_of[i]
        order[ends[owner]] = i
        ends[owner] += 1
    return order, offsets


def gather_ids(ids: Ids, order: Indexes) -> Ids:
    """Return `ids[order]`, uint64[m]; an index out of range raises IndexError."""
    return ids.take(order)


def gather_rows(rows: Rows, order: Indexes) -> Rows:
    """Return `rows[order]`, float32[m, dim]; an index out of range raises IndexError."""
    return rows.take(order, axis=0)


def gather_rows_to(rows: Rows, order: Indexes, out: Rows) -> None:
    """Write `rows[order]` to `out`, float32[m, dim]; `order` as `split` gives it."""
    np.take(rows, order, axis=0, out=out, mode="clip")  # "clip": take checks no index and buffers nothing


def scatter_rows(part: Rows, order: Indexes, out: Rows) -> None:
    """Write row i of `part` to row `order[i]` of `out`, the inverse of `gather_rows`; ValueError for shapes that do not fit.

    part  float32[m, dim].     order  int64[m].     out  float32[n, dim], its other rows are left as they are.
    """
    if part.shape != (order.size, out.shape[1]):
        raise ValueError(f"The part is float32{list(part.shape)}, but must be float32{[order.size, out.shape[1]]}.")
    if not _scatter_rows(part, order, out):
        raise ValueError(f"The order has an index beyond {len(out)} rows.")


@kernel
def _scatter_rows(part: Rows, order: Indexes, out: Rows) -> bool:
    """Copy until an index is out of range; return whether none was."""
    for i in range(order.size):
        if order[i] < 0 or order[i] >= out.shape[0]:
            return False
        row = part[i]
        target = out[order[i]]
        for column in range(row.size):
            target[column] = row[column]
    return True


@kernel
def all_owned(salt: np.uint64, ids: Ids, owners: Owners, me: int) -> bool:
    """Return whether server `me` (an index) owns every id; ids uint64[n], owners int32[16384]."""
    for i in range(ids.size):  # noqa: SIM110  # numba compiles no generator expression
        if owners[np.int64(hash_id(salt, ids[i]) >> _BUCKET_SHIFT)] != me:
            return False
    return True
