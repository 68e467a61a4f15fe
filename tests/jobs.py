"""Small training jobs in numpy, as pure functions of (rank, step): the same job runs in the simulator, over gRPC and in one process.

The gradient depends on the rows read, so that one row read from another step changes every bit after it.
"""

import hashlib

import numpy as np
import numpy.typing as npt

from ps_proto.values import SGD, Adagrad, Adam, Mode, Normal, TableSpec, Uniform

Ids = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.float32]

USER = TableSpec("user", dim=8, optimizer=Adam(lr=0.01), initializer=Uniform(-1.0, 1.0), seed=7)
ITEM = TableSpec("item", dim=5, optimizer=Adagrad(lr=0.1), initializer=Normal(0.0, 0.5), seed=2**64 - 1)
WORD = TableSpec("word", dim=3, optimizer=SGD(lr=0.1), initializer=Uniform(-1.0, 1.0), dtype="bfloat16", max_norm=1.2)
QUERY = TableSpec("query", dim=6, optimizer=Adagrad(lr=0.1), initializer=Uniform(-1.0, 1.0), wire="bfloat16")
PHRASE = TableSpec("phrase", dim=9, optimizer=Adam(lr=0.01), initializer=Normal(), seed=3, wire="int8")
TABLES = (USER, ITEM, WORD, QUERY, PHRASE)
IDS_COUNT = 50  # so that ranks meet on most ids
SPECIAL_IDS = (0, 2**64 - 1)


def ids_of(rank: int, step: int, table: str) -> Ids:
    """Return the ids that a rank uses in a step, with repeats, over all of uint64."""
    rng = np.random.default_rng([rank, step, len(table)])
    ids = rng.integers(0, IDS_COUNT, rng.integers(0, 30)).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return np.concatenate([ids, np.array(SPECIAL_IDS if step % 3 == rank % 3 else (), np.uint64)])


def gradients_of(rank: int, step: int, ids: Ids, rows: Rows) -> Rows:
    """Return float32[n, dim], a function of the rows read and of who reads them."""
    rng = np.random.default_rng([rank, step, ids.size])
    return rows * np.float32(0.3) + rng.standard_normal(rows.shape, np.float32)


def halves(count: int) -> tuple[slice, slice]:
    """Return the parts of a step's ids that its two pushes carry."""
    return slice(0, count // 2), slice(count // 2, count)


def checksum(tables: dict[str, tuple[Ids, Rows]]) -> str:
    """Return sha256 over all ids and rows, by table name."""
    digest = hashlib.sha256()
    for name in sorted(tables):
        ids, rows = tables[name]
        digest.update(name.encode() + ids.tobytes() + rows.tobytes())
    return digest.hexdigest()


def counting_table(name: str, mode: Mode | None = None) -> TableSpec:
    """Return a table whose rows are minus the sum of all that was pushed to them: exact, as long as the sums stay below 2**24."""
    return TableSpec(name, dim=2, optimizer=SGD(lr=1.0), mode=mode)
