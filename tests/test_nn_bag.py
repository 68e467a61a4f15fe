"""ps.nn.EmbeddingBag beside torch.nn.EmbeddingBag."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ps_worker as ps
from beside_torch import asked_ids, assert_same, give_rows, trained
from inprocess import InProcess
from ps_proto.requests import Pull, Push

ROWS, DIM = 10, 3
IDS = torch.tensor([7, 3, 7, 9, 0, 3, 3, 1])
BAGS = {
    "four": torch.tensor([0, 3, 4, 6]),
    "empty ones": torch.tensor([0, 0, 3, 3, 8, 8]),
    "one": torch.tensor([0]),
}
each_pooling = pytest.mark.parametrize("pooling", ["sum", "mean", "max"])
each_bags = pytest.mark.parametrize("offsets", BAGS.values(), ids=BAGS)


def beside(client: ps.Client, pooling: str, **options: Any) -> tuple[ps.nn.EmbeddingBag, nn.EmbeddingBag]:
    """Return ours and torch's, with the same rows."""
    torch.manual_seed(3)
    plain = nn.EmbeddingBag(ROWS, DIM, mode=pooling, **options)
    module = ps.nn.EmbeddingBag(ROWS, DIM, mode=pooling, name="rows", **options)
    trained(client, module)
    give_rows(client, "rows", plain.weight)
    return module, plain


# --- as torch --------------------------------------------------------------------------------------------------------------------


@each_pooling
@each_bags
def test_bags_by_offsets_are_torchs(client: ps.Client, pooling: str, offsets: Tensor) -> None:
    module, plain = beside(client, pooling)
    assert_same(module, plain, module(IDS, offsets), plain(IDS, offsets))


@each_pooling
@each_bags
def test_bags_with_the_last_offset_are_torchs(client: ps.Client, pooling: str, offsets: Tensor) -> None:
    module, plain = beside(client, pooling, include_last_offset=True)
    ended = torch.cat([offsets, torch.tensor([len(IDS)])])
    assert_same(module, plain, module(IDS, ended), plain(IDS, ended))


@each_pooling
def test_offsets_that_are_overwritten_before_backward_do_not_change_it(client: ps.Client, pooling: str) -> None:
    """As a loader does that fills its buffers anew; the kernels would read wherever they point."""
    module, plain = beside(client, pooling)
    offsets = BAGS["four"].clone()
    output = module(IDS, offsets)
    offsets[:] = torch.tensor([0, 1, 2, 7])
    assert_same(module, plain, output, plain(IDS, BAGS["four"]))


@each_pooling
@pytest.mark.parametrize("shape", [(2, 4), (4, 2), (8, 1)], ids=str)
def test_bags_of_equal_size_are_torchs(client: ps.Client, pooling: str, shape: tuple[int, int]) -> None:
    module, plain = beside(client, pooling)
    assert_same(module, plain, module(IDS.reshape(shape)), plain(IDS.reshape(shape)))


@pytest.mark.parametrize("ids", [torch.int32, torch.uint64], ids=str)
def test_ids_and_offsets_of_other_integers_are_taken(client: ps.Client, ids: torch.dtype) -> None:
    module, plain = beside(client, "mean")
    offsets = BAGS["four"]
    assert_same(module, plain, module(IDS.to(ids), offsets.to(torch.int32)), plain(IDS, offsets))


@each_bags
def test_weighted_sums_are_torchs_and_the_weights_have_gradients(client: ps.Client, offsets: Tensor) -> None:
    module, plain = beside(client, "sum")
    mine, theirs = (torch.linspace(-1, 2, len(IDS)).requires_grad_() for _ in range(2))
    assert_same(module, plain, module(IDS, offsets, mine), plain(IDS, offsets, theirs))
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_weights_of_bags_of_equal_size_have_their_shape(client: ps.Client) -> None:
    module, plain = beside(client, "sum")
    weights = torch.linspace(-1, 2, len(IDS)).reshape(4, 2)
    ids = IDS.reshape(4, 2)
    assert_same(module, plain, module(ids, per_sample_weights=weights), plain(ids, per_sample_weights=weights))


@each_pooling
@each_bags
def test_padding_is_left_out_of_the_bag_and_never_pulled_or_pushed(
    joined: tuple[InProcess, ps.Client], pooling: str, offsets: Tensor
) -> None:
    cluster, client = joined
    module, plain = beside(client, pooling, padding_idx=3)
    optimizer = trained(client, module)
    cluster.calls.clear()
    assert_same(module, plain, module(IDS, offsets), plain(IDS, offsets))
    optimizer.step()
    assert asked_ids(cluster, Pull, "rows") == asked_ids(cluster, Push, "rows") == set(IDS.tolist()) - {3}


def test_padding_takes_its_weight_along(client: ps.Client) -> None:
    module, plain = beside(client, "sum", padding_idx=3)
    mine, theirs = (torch.linspace(-1, 2, len(IDS)).requires_grad_() for _ in range(2))
    offsets = BAGS["empty ones"]
    assert_same(module, plain, module(IDS, offsets, mine), plain(IDS, offsets, theirs))
    assert mine.grad is not None
    assert theirs.grad is not None
    kept = IDS != 3  # torch gives a padding's weight a gradient, though its row is not in the sum
    torch.testing.assert_close(mine.grad[kept], theirs.grad[kept])
    assert not mine.grad[~kept].any()


@each_pooling
@pytest.mark.parametrize(("ids", "offsets"), [([], [0, 0, 0]), ([], []), ([3, 3], [0, 1])], ids=["empty bags", "no bags", "all padding"])
def test_bags_without_any_row_are_zeros_that_backward_accepts(client: ps.Client, pooling: str, ids: list[int], offsets: list[int]) -> None:
    module, _ = beside(client, pooling, padding_idx=3)
    optimizer = trained(client, module)
    output = module(torch.tensor(ids, dtype=torch.int64), torch.tensor(offsets, dtype=torch.int64))
    assert output.tolist() == [[0.0] * DIM] * len(offsets)
    output.sum().backward()
    before = client.pull("rows", np.arange(ROWS))
    optimizer.step()
    np.testing.assert_array_equal(client.pull("rows", np.arange(ROWS)), before)


@each_pooling
def test_double_bags_are_torchs(client: ps.Client, pooling: str) -> None:
    module, plain = beside(client, pooling)
    ours, theirs = module.double()(IDS, BAGS["four"]), plain.double()(IDS, BAGS["four"])
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert ours.dtype == torch.float64


@pytest.mark.parametrize("id", [ROWS, -1])
def test_an_id_outside_is_an_index_error(client: ps.Client, id: int) -> None:
    module, _ = beside(client, "sum")
    with pytest.raises(IndexError, match=f"id {id} is outside of table 'rows' of 10 embeddings"):
        module(torch.tensor([[1, id]]))


# --- what is no bag --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pooling", "options", "inputs", "words"),
    [
        ("sum", {}, (IDS,), r"ids of 'rows' is \[8\], but must be \[B, n\], or \[n\] with offsets"),
        ("sum", {}, (IDS.reshape(2, 2, 2),), r"ids of 'rows' is \[2, 2, 2\]"),
        ("sum", {}, (IDS.reshape(2, 4), torch.tensor([0])), r"ids of 'rows' is \[2, 4\], but must be \[n\] where offsets are given"),
        ("sum", {}, (IDS, torch.tensor([1, 3])), r"offsets of 'rows' is \[1, 3\] .* ascending from 0 to at most 8"),
        ("sum", {}, (IDS, torch.tensor([0, 3, 2])), r"offsets of 'rows' is \[0, 3, 2\]"),
        ("sum", {}, (IDS, torch.tensor([0, 9])), r"offsets of 'rows' is \[0, 9\]"),
        ("sum", {}, (IDS, torch.tensor([[0, 3]])), r"offsets of 'rows' is \[0, 3\] of shape \[1, 2\]"),
        ("sum", {}, (IDS, [0, 3]), r"offsets of 'rows' is list, but must be a tensor"),
        ("sum", {}, (IDS, torch.tensor([0.0])), r"offsets of 'rows' is torch.float32"),
        ("sum", {"include_last_offset": True}, (IDS, torch.tensor([0, 3])), r"\[0, 3\] of shape \[2\], .* ascending from 0 to 8"),
        ("sum", {"include_last_offset": True}, (IDS, IDS[:0]), r"offsets of 'rows' is \[\]"),
        ("sum", {}, (IDS.float(), torch.tensor([0])), r"ids of 'rows' is torch.float32\[8\]"),
        ("mean", {}, (IDS, torch.tensor([0]), torch.ones(8)), r"per_sample_weights is given with mode 'mean'"),
        ("sum", {}, (IDS, torch.tensor([0]), torch.ones(7)), r"per_sample_weights is \[7\], but must be .* \[8\]"),
        ("sum", {}, (IDS.reshape(2, 4), None, torch.ones(4, 2)), r"per_sample_weights is \[4, 2\]"),
        ("sum", {}, (IDS, torch.tensor([0]), [1.0] * 8), r"per_sample_weights is list"),
    ],
)
def test_what_is_no_bag_is_refused(client: ps.Client, pooling: str, options: dict[str, Any], inputs: tuple[Any, ...], words: str) -> None:
    module, _ = beside(client, pooling, **options)
    with pytest.raises(ps.InvalidRequest, match=words):
        module(*inputs)


def test_an_unknown_pooling_is_refused() -> None:
    with pytest.raises(ps.InvalidRequest, match=r"mode of pooling is 'median', but must be one of sum, mean, max"):
        ps.nn.EmbeddingBag(None, DIM, mode="median", name="rows")


def test_the_table_may_have_a_mode_of_its_own(client: ps.Client) -> None:
    module = ps.nn.EmbeddingBag(None, DIM, name="rows", table_mode=ps.Async())
    assert module.tables["rows"].spec().mode == ps.Async()
