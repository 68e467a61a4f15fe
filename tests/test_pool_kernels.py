"""Bags pooled by our kernels, beside torch's embedding_bag: the same sums, bit for bit, and the same gradients but for rounding."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ps_worker.nn import pool_kernels
from ps_worker.nn.pool_kernels import Placed, is_for_kernels, pool_side_by_side
from sharding.partition import Indexes, deduplicate

DIM = 5
SEEDS = range(8)


def bags_of(rng: np.random.Generator, count: int) -> tuple[Indexes, Indexes, int]:
    """Return inverse, offsets and the number of rows of `count` bags with 0 to 4 ids, repeats included."""
    sizes = rng.integers(0, 5, count)
    unique, inverse = deduplicate(rng.integers(0, 12, int(sizes.sum()), dtype=np.uint64))
    return inverse, np.cumsum(sizes, dtype=np.int64) - sizes, unique.size


def by_torch(leaf: Tensor, inverse: Indexes, offsets: Indexes, mode: str) -> Tensor:
    return F.embedding_bag(torch.from_numpy(inverse), leaf, torch.from_numpy(offsets), mode=mode)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_two_tables_equal_torchs(mode: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch = int(rng.integers(1, 9))
    # Table one has the features in columns 0 and 2, table two the one between them.
    places = [np.array([0, 2 * DIM], np.int64), np.array([DIM], np.int64)]
    made = [bags_of(rng, batch * place.size) for place in places]
    values = [torch.from_numpy(rng.standard_normal((rows, DIM), dtype=np.float32)) for _, _, rows in made]
    ours, theirs = ([value.clone().requires_grad_() for value in values] for _ in range(2))

    placed = [Placed(inverse, offsets, place) for (inverse, offsets, _), place in zip(made, places, strict=True)]
    pooled = pool_side_by_side(placed, ours, batch, 3 * DIM, mode)
    first = by_torch(theirs[0], *made[0][:2], mode).reshape(2, batch, DIM)
    expected = torch.cat([first[0], by_torch(theirs[1], *made[1][:2], mode), first[1]], dim=1)
    slope = torch.from_numpy(rng.standard_normal(pooled.shape, dtype=np.float32))
    pooled.backward(slope)  # type: ignore[no-untyped-call]
    expected.backward(slope)  # type: ignore[no-untyped-call]

    assert torch.equal(pooled, expected)
    for mine, its in zip(ours, theirs, strict=True):
        assert mine.grad is not None
        assert its.grad is not None
        torch.testing.assert_close(mine.grad, its.grad, rtol=1e-6, atol=1e-6)


def test_a_gradient_adds_up_in_the_order_of_the_bags() -> None:
    """1e8 + 1 - 1e8 is 0 in float32, in any other order it is not."""
    leaf = torch.zeros((1, 1), requires_grad=True)
    placed = Placed(np.zeros(3, np.int64), np.arange(3, dtype=np.int64), np.zeros(1, np.int64))
    pooled = pool_side_by_side([placed], [leaf], 3, 1, "sum")
    pooled.backward(torch.tensor([[1e8], [1.0], [-1e8]]))  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [[0.0]]


def test_bags_without_any_id_are_zeros_and_leave_no_gradient() -> None:
    leaf = torch.zeros((0, DIM), requires_grad=True)
    placed = Placed(np.zeros(0, np.int64), np.zeros(3, np.int64), np.zeros(1, np.int64))
    pooled = pool_side_by_side([placed], [leaf], 3, DIM, "mean")
    pooled.sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(pooled, torch.zeros(3, DIM))
    assert leaf.grad is not None
    assert leaf.grad.shape == (0, DIM)


def test_a_gradient_that_is_part_of_a_wider_one_is_taken() -> None:
    leaf = torch.ones((2, DIM), requires_grad=True)
    placed = Placed(np.array([1, 0, 1], np.int64), np.arange(3, dtype=np.int64), np.zeros(1, np.int64))
    pooled = pool_side_by_side([placed], [leaf], 3, DIM, "sum")
    torch.cat([torch.ones(3, 2), pooled], dim=1).sum().backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    assert leaf.grad[:, 0].tolist() == [1.0, 2.0]


def test_what_has_no_graph_is_pooled_too() -> None:
    placed = Placed(np.array([1, 0], np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))
    assert pool_side_by_side([placed], [torch.tensor([[1.0], [2.0]])], 1, 1, "mean").tolist() == [[1.5]]


@pytest.mark.parametrize(
    ("dtype", "is_weighted", "mode", "expected"),
    [
        (torch.float32, False, "sum", True),
        (torch.float32, False, "mean", True),
        (torch.float32, False, "max", False),
        (torch.float32, True, "sum", False),
        (torch.float64, False, "sum", False),
    ],
)
def test_torch_pools_the_rest(dtype: torch.dtype, is_weighted: bool, mode: str, expected: bool) -> None:
    assert is_for_kernels(torch.zeros(1, 1, dtype=dtype), is_weighted, mode) is expected


def test_torch_pools_what_is_elsewhere() -> None:
    assert not is_for_kernels(torch.zeros(1, 1, device="meta"), False, "sum")


def test_the_kernels_are_compiled_once() -> None:
    for width in (DIM, 2 * DIM):
        leaf = torch.ones((2, DIM), requires_grad=True)
        placed = Placed(np.array([1, 0, 1], np.int64), np.arange(3, dtype=np.int64), np.zeros(1, np.int64))
        pooled = pool_side_by_side([placed], [leaf], 3, DIM, "sum")
        torch.cat([pooled, torch.ones(3, width)], dim=1).sum(dim=0)[::2].sum().backward()  # type: ignore[no-untyped-call]
    assert [len(getattr(kernel, "signatures", [()])) for kernel in (pool_kernels._pool, pool_kernels._spread)] == [1, 1]
