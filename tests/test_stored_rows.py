"""Tables whose rows are bfloat16, or have a greatest norm: what a row is depends on what was done to it, and on nothing else."""

from dataclasses import replace
from math import sqrt

import numpy as np
import numpy.typing as npt
import pytest
import torch

from naive.bfloat16 import drawn_row, draws_of, nearest_row
from naive.sharding import bucket_of
from ps_proto.values import (
    OPTIMIZERS,
    SGD,
    Adagrad,
    Adam,
    ClippedByRowNorm,
    Constant,
    DelayCompensated,
    Normal,
    Optimizer,
    TableSpec,
    Uniform,
)
from ps_server.shard import bfloat16_records, blocks, row_norms
from ps_server.shard.optimizers.optimizer import Origin
from ps_server.shard.slab import RESERVED_BYTES_MAX
from ps_server.shard.table import Table
from sharding import bfloat16
from sharding.arrays import read_only
from sharding.hashing import NUM_BUCKETS

Rows = npt.NDArray[np.float32]
Ids = npt.NDArray[np.uint64]

SGD_1 = SGD(lr=1.0)
IDS = np.arange(500, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def halved(dim: int = 5, optimizer: Optimizer = SGD_1, max_norm: float | None = None) -> TableSpec:
    return TableSpec("user", dim, optimizer, Normal(), seed=3, dtype="bfloat16", max_norm=max_norm)


def gradients(num_rows: int, dim: int, seed: int = 0) -> Rows:
    return np.random.default_rng(seed).normal(size=(num_rows, dim)).astype(np.float32) * np.float32(0.01)


def update(table: Table, ids: Ids, given: Rows, step: int = 0, rank: int = -1) -> None:
    table.update(ids, given, table.spec.optimizer.parameters(), Origin(step, rank))


def held(table: Table) -> tuple[Ids, Rows]:
    return table.snapshot().read_records(0, len(table))


def nearest_of(rows: Rows) -> Rows:
    return torch.from_numpy(rows.copy()).to(torch.bfloat16).float().numpy()


# --- bfloat16: reading and setting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 2, 5, 16])
def test_an_absent_row_reads_as_what_an_update_starts_from_rounded_to_the_nearest(dim: int) -> None:
    table, plain = Table(halved(dim)), Table(replace(halved(dim), dtype="float32"))
    before = table.pull(IDS)
    assert before.tobytes() == nearest_of(plain.pull(IDS)).tobytes()
    update(table, IDS, np.zeros((IDS.size, dim), dtype=np.float32))
    assert table.pull(IDS).tobytes() == before.tobytes()


@pytest.mark.parametrize("dim", [1, 4, 7])
def test_what_is_assigned_reads_as_its_nearest_and_keeps_its_state(dim: int) -> None:
    table = Table(halved(dim, Adam()))
    update(table, IDS, gradients(IDS.size, dim))
    state = held(table)[1][:, dim:].copy()
    rows = gradients(IDS.size, dim, seed=1)
    order = np.argsort(IDS)
    table.assign(IDS, rows)
    assert table.pull(IDS).tobytes() == nearest_of(rows).tobytes()
    assert held(table)[1][:, dim:].tobytes() == state.tobytes()
    table.assign(IDS, rows * np.float32(2), only_absent=True)
    assert held(table)[1][:, :dim].tobytes() == nearest_of(rows[order]).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_records_come_and_go_to_the_last_bit(dtype: str) -> None:
    spec = replace(halved(5, Adam(), max_norm=20.0), dtype=dtype, initializer=Normal(std=100.0))
    source, target = Table(spec), Table(spec)
    for step in range(5):
        update(source, IDS, gradients(IDS.size, 5, step) * np.float32(100), step)
    ids, records = held(source)
    assert records.shape == (IDS.size, 5 + 11)
    assert norms(records[:, :5]).max() > 20.0  # by rounding, and it stays
    target.restore(ids, records)
    assert held(target)[1].tobytes() == records.tobytes()
    for table in (source, target):
        update(table, ids, gradients(ids.size, 5, 9), step=9)
    assert held(target)[1].tobytes() == held(source)[1].tobytes()


def test_a_snapshot_stays_while_the_table_goes_on() -> None:
    table = Table(halved(3, Adagrad()))
    update(table, IDS[:9], gradients(9, 3))
    ids, before = held(table)
    taken = table.snapshot()
    update(table, IDS, gradients(IDS.size, 3, 1), step=1)
    assert taken.read_records(0, 20)[1].tobytes() == before.tobytes()
    assert taken.read(2, 5)[1].tobytes() == before[2:5, :3].tobytes()
    assert taken.width == 6
    assert held(table)[0].size == IDS.size
    assert ids.size == 9


def test_buckets_move_as_they_lie() -> None:
    spec = halved(7, Adam())
    stays, source, target = Table(spec), Table(spec), Table(spec)
    for table in (stays, source):
        update(table, IDS, gradients(IDS.size, 7))
    moving = np.arange(NUM_BUCKETS) < NUM_BUCKETS // 3
    part = source.extract(moving)
    assert part.ids.tolist() == sorted(id for id in IDS.tolist() if moving[bucket_of("user", id)])
    assert part.records.shape == (part.ids.size, 4 + 15)  # seven numbers in four words, then m, v and t
    target.adopt(part)
    for table in (stays, target):
        update(table, part.ids, gradients(part.ids.size, 7, 1), step=1)
    assert target.pull(part.ids).tobytes() == stays.pull(part.ids).tobytes()


def test_it_takes_half_the_memory_of_a_row() -> None:
    for spec, words in ((halved(64), 32), (halved(5), 3), (halved(64, Adagrad()), 96), (halved(64, Adam()), 161)):
        table = Table(spec)
        update(table, IDS, gradients(IDS.size, spec.dim))
        assert table.nbytes == IDS.size * 4 * words
        assert table.rows_max == RESERVED_BYTES_MAX // (8 + 4 * words) or words < 32


# --- bfloat16: stochastic rounding ---------------------------------------------------------------------------------------------


def test_an_update_rounds_the_float32_result_by_the_rows_own_draws() -> None:
    table = Table(halved(6))
    start, given = table.pull(IDS), gradients(IDS.size, 6)
    update(table, IDS, given, step=8, rank=2)
    want = [drawn_row(row - g, draws_of(3, "user", id, 8, 2, 6)) for id, row, g in zip(IDS.tolist(), start, given, strict=True)]
    assert table.pull(IDS).tobytes() == np.array(want).tobytes()


@pytest.mark.parametrize(
    "optimizer", [setting() for setting in OPTIMIZERS.values()] + [ClippedByRowNorm(Adam())], ids=lambda one: one.label
)
@pytest.mark.parametrize("max_norm", [None, 0.8])
def test_bits_depend_on_no_other_row_and_no_other_server(optimizer: Optimizer, max_norm: float | None) -> None:
    """One table in one call a step; one in another order and calls of other sizes; three with a third of the buckets each."""
    one, other = (Table(halved(5, optimizer, max_norm)) for _ in range(2))
    servers = [Table(halved(5, optimizer, max_norm)) for _ in range(3)]
    owner = np.array([bucket_of("user", id) % 3 for id in IDS.tolist()])
    for step in range(4):
        given = gradients(IDS.size, 5, step)
        update(one, IDS, given, step)
        order = np.random.default_rng(step).permutation(IDS.size)
        for part in np.array_split(order, [1, 40, 300][: step + 1]):
            update(other, IDS[part], given[part], step)
        for server, table in enumerate(servers):
            update(table, IDS[owner == server], given[owner == server], step)
    want = held(one)
    assert held(other)[1].tobytes() == want[1].tobytes()
    parts = [held(table) for table in servers]
    ids = np.concatenate([ids for ids, _ in parts])
    assert np.concatenate([records for _, records in parts])[np.argsort(ids)].tobytes() == want[1].tobytes()


def test_repeats_are_applied_one_after_another() -> None:
    one, other = Table(halved(3, Adagrad(lr=0.1), 1.0)), Table(halved(3, Adagrad(lr=0.1), 1.0))
    ids, given = np.array([4, 4, 9, 4], dtype=np.uint64), gradients(4, 3) * np.float32(50)
    update(one, ids, given, step=2)
    for place in range(4):
        update(other, ids[place : place + 1], given[place : place + 1], step=2)
    assert held(one)[1].tobytes() == held(other)[1].tobytes()


@pytest.mark.parametrize(("dtype", "max_norm"), [("float32", 1.0), ("bfloat16", None)])
def test_each_gradient_keeps_to_what_was_read_of_its_row(dtype: str, max_norm: float | None) -> None:
    spec = TableSpec("user", 3, DelayCompensated(SGD(lr=0.1), compensation=5.0), Normal(), dtype=dtype, max_norm=max_norm)
    one, other = Table(spec), Table(spec)
    ids, given, read = np.array([4, 9, 4, 2], dtype=np.uint64), gradients(4, 3) * np.float32(50), read_only(gradients(3, 3, 1))
    places = np.array([1, -1, 2, 0], dtype=np.int32)
    parameters = spec.optimizer.parameters()
    one.update(ids, given, parameters, Origin(3, 0, 0, read, places))
    for place in range(4):
        part = slice(place, place + 1)
        other.update(ids[part], given[part], parameters, Origin(3, 0, 0, read, places[part]))
    assert held(one)[1].tobytes() == held(other)[1].tobytes()


def test_the_mean_of_many_roundings_is_the_number_itself() -> None:
    """1 + x lies between 1 and 1 + 2^-7, and of each a share that x says rounds up: for any column, id and step."""
    ids = np.arange(4_000, dtype=np.uint64)
    for step, x in ((0, 0.001), (1, 0.0039), (2, 0.007)):
        table = Table(TableSpec("user", 8, SGD_1, Constant(1.0), dtype="bfloat16"))
        update(table, ids, np.full((ids.size, 8), -x, dtype=np.float32), step)
        rows = table.pull(ids)
        assert set(rows.ravel().tolist()) == {1.0, 1.0 + 2**-7}
        share = x * 2**7
        bound = 5 * sqrt(share * (1 - share) / rows.size)
        assert abs((rows > 1).mean() - share) < bound
        assert np.abs((rows > 1).mean(axis=0) - share).max() < bound * sqrt(8)


def test_steps_too_small_to_be_seen_add_up() -> None:
    """Four hundred steps of 1/16 of the last bit: rounded to the nearest none of them counts, rounded stochastically their sum does."""
    ids, steps, size = np.arange(250, dtype=np.uint64), 400, np.float32(2**-12)
    table = Table(TableSpec("user", 4, SGD_1, Constant(1.0), seed=5, dtype="bfloat16"))
    given = np.full((ids.size, 4), size)
    nearest = nearest_of(table.pull(ids))
    for step in range(steps):
        update(table, ids, given, step)
        nearest = nearest_of(nearest - given)
    want = 1.0 - steps * float(size)
    assert (nearest == 1.0).all()
    rows = table.pull(ids).astype(np.float64)
    # Below 1 a bit is 2^-8 = 16 steps: each step's rounding has variance (1/16)(15/16) of its square, and they add up.
    deviation = sqrt(steps * (1 / 16) * (15 / 16)) * 2**-8
    assert abs(rows.mean() - want) < 5 * deviation / sqrt(rows.size)
    assert rows.std() == pytest.approx(deviation, rel=0.12)  # five deviations of itself


def test_a_row_that_bfloat16_has_stays_as_it_is() -> None:
    table = Table(TableSpec("user", 4, SGD(lr=0.5), Constant(1.0), dtype="bfloat16"))
    for step in range(20):
        update(table, IDS, np.ones((IDS.size, 4), dtype=np.float32), step)
    assert set(table.pull(IDS).ravel().tolist()) == {-9.0}


def test_the_greatest_numbers_stay_finite() -> None:
    great = np.finfo(np.float32).max
    table = Table(TableSpec("user", 4, SGD_1, Constant(float(great)), dtype="bfloat16"))
    assert np.isfinite(table.pull(IDS)).all()
    table.assign(IDS, np.full((IDS.size, 4), -great))
    for step in range(3):
        update(table, IDS, np.full((IDS.size, 4), 2.0**110, dtype=np.float32), step)
    assert (table.pull(IDS) == nearest_row(np.array([-great]))[0]).all()


# --- max_norm -----------------------------------------------------------------------------------------------------------------


def norms(rows: Rows) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = np.linalg.norm(rows.astype(np.float64), axis=1)
    return found


@pytest.mark.parametrize(("dtype", "slack"), [("float32", 2e-7), ("bfloat16", 2**-7)])
def test_no_row_is_longer_whatever_made_it(dtype: str, slack: float) -> None:
    table = Table(TableSpec("user", 6, Adagrad(lr=0.5), Uniform(-1.0, 1.0), dtype=dtype, max_norm=0.9))
    bound = 0.9 * (1 + slack)
    absent = table.pull(IDS)
    assert norms(absent).max() == pytest.approx(0.9, rel=2**-8)
    update(table, IDS, np.zeros((IDS.size, 6), dtype=np.float32))
    np.testing.assert_allclose(table.pull(IDS), absent, rtol=2 * slack)  # what rounding brought beyond is scaled once more
    for step in range(3):
        update(table, IDS, gradients(IDS.size, 6, step), step)
        assert norms(table.pull(IDS)).max() <= bound
    table.assign(IDS, gradients(IDS.size, 6, 7) * np.float32(1e4))
    assert norms(table.pull(IDS)).max() <= bound
    assert norms(table.pull(IDS)).min() >= 0.9 * (1 - slack)
    ids, records = held(table)
    records[:, :6] *= 3
    table.restore(ids, records)
    assert norms(table.pull(IDS)).max() <= bound
    assert held(table)[1][:, 6:].tobytes() == records[:, 6:].tobytes()


def test_it_trains_as_a_torch_embedding_that_is_looked_up_before_each_step() -> None:
    table = Table(TableSpec("user", 8, SGD(lr=0.5), Normal(), seed=1, max_norm=1.5))
    ids = np.arange(40, dtype=np.uint64)
    start = Table(TableSpec("user", 8, SGD(lr=0.5), Normal(), seed=1)).pull(ids)
    embedding = torch.nn.Embedding(40, 8, max_norm=1.5, sparse=True, _weight=torch.from_numpy(start.copy()))
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.5)
    for step in range(30):
        looked_up = np.flatnonzero(np.random.default_rng(step).random(40) < 0.5)
        given = gradients(looked_up.size, 8, step) * np.float32(30)
        rows = embedding(torch.from_numpy(looked_up))
        np.testing.assert_allclose(table.pull(ids[looked_up]), rows.detach().numpy(), rtol=1e-5, atol=1e-6)
        optimizer.zero_grad()
        rows.backward(torch.from_numpy(given))
        optimizer.step()
        update(table, ids[looked_up], given, step)


# --- kernels -------------------------------------------------------------------------------------------------------------------


def test_their_kernels_are_compiled_once() -> None:
    for max_norm in (None, 0.5, 1):
        for dtype in ("float32", "bfloat16"):
            table = Table(TableSpec("user", 3, Adagrad(), Uniform(-1.0, 1.0), dtype=dtype, max_norm=max_norm))
            ids = np.frombuffer(IDS.tobytes(), dtype=np.uint64)
            update(table, ids, gradients(ids.size, 3), 2**63, 5)
            taken = table.snapshot()
            update(table, ids[:5].copy(), gradients(5, 3))
            table.pull(np.arange(9, dtype=np.uint64))
            table.assign(ids[:5], gradients(5, 3), only_absent=True)
            table.assign(np.arange(5, dtype=np.uint64), gradients(5, 3), only_absent=True)
            table.restore(*taken.read_records(0, 300))
            taken.read(0, 300)
            table.adopt(table.extract(np.arange(NUM_BUCKETS) < NUM_BUCKETS // 2))
    kernels = (
        bfloat16._round,
        bfloat16_records._open,
        bfloat16_records._set_drawn,
        bfloat16_records._set_nearest,
        blocks._cut,
        row_norms._limit,
    )
    assert [len(getattr(kernel, "signatures", [()])) for kernel in kernels] == [1] * 6
