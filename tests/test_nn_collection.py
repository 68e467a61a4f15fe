"""ps.nn.EmbeddingBagCollection beside one torch.nn.EmbeddingBag for each table."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ps_worker as ps
from beside_torch import backward, give_rows, gradient_of, trained
from inprocess import InProcess
from ps_proto.requests import Pull

ROWS, DIM, BATCH = 10, 3, 4
FEATURES = {"C1": "C1", "C2": "shared", "C3": "C3", "C4": "shared"}
IDS = torch.tensor([7, 3, 7, 9, 0, 3])
OFFSETS = torch.tensor([0, 3, 3, 5])
SINGLE, WIDE = IDS[:BATCH], torch.tensor([[1, 2, 9]] * BATCH)
each_pooling = pytest.mark.parametrize("pooling", ["sum", "mean", "max"])


def beside(client: ps.Client, pooling: str = "sum") -> tuple[ps.nn.EmbeddingBagCollection, dict[str, nn.EmbeddingBag]]:
    """Return ours and torch's by table, with the same rows."""
    torch.manual_seed(3)
    plain = {table: nn.EmbeddingBag(ROWS, DIM, mode=pooling) for table in FEATURES.values()}
    bags = ps.nn.EmbeddingBagCollection(DIM, FEATURES, pooling)
    trained(client, bags)
    for table, module in plain.items():
        give_rows(client, table, module.weight)
    return bags, plain


def assert_same(bags: ps.nn.EmbeddingBagCollection, plain: dict[str, nn.EmbeddingBag], ours: Tensor, theirs: list[Tensor]) -> None:
    torch.testing.assert_close(ours, torch.cat(theirs, dim=1), rtol=0, atol=0)
    backward(ours)
    backward(torch.cat(theirs, dim=1))
    for name, table in bags.tables.items():
        torch.testing.assert_close(gradient_of(table, ROWS), plain[name].weight.grad)


@each_pooling
def test_all_kinds_of_features_are_torchs_side_by_side(client: ps.Client, pooling: str) -> None:
    bags, plain = beside(client, pooling)
    ours = bags({"C4": (IDS, OFFSETS), "C1": SINGLE, "C2": SINGLE, "C3": WIDE, "label": None})
    theirs = [
        plain["C1"](SINGLE.unsqueeze(1)),
        plain["shared"](SINGLE.unsqueeze(1)),
        plain["C3"](WIDE),
        plain["shared"](IDS, OFFSETS),
    ]
    assert ours.shape == (BATCH, DIM * len(FEATURES))
    assert_same(bags, plain, ours, theirs)


def test_weights_count_where_they_are_given(client: ps.Client) -> None:
    bags, plain = beside(client)
    mine, theirs = (torch.linspace(-1, 2, len(IDS)).requires_grad_() for _ in range(2))
    ours = bags({"C1": (IDS, OFFSETS, mine), "C2": WIDE, "C3": SINGLE, "C4": (IDS, OFFSETS, mine)})
    expected = [
        plain["C1"](IDS, OFFSETS, theirs),
        plain["shared"](WIDE),
        plain["C3"](SINGLE.unsqueeze(1)),
        plain["shared"](IDS, OFFSETS, theirs),
    ]
    assert_same(bags, plain, ours, expected)
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_a_forward_asks_each_server_once_for_all_tables_and_each_id_once(joined: tuple[InProcess, ps.Client]) -> None:
    cluster, client = joined
    bags, _ = beside(client)
    cluster.calls.clear()
    bags({"C1": SINGLE, "C2": SINGLE, "C3": torch.arange(ROWS).repeat(BATCH, 1), "C4": (IDS, OFFSETS)})
    pulls = [(address, body) for address, body in cluster.calls if isinstance(body, Pull)]
    assert Counter(address for address, _ in pulls) == {"server-0:0": 1, "server-1:0": 1}
    shared = Counter(int(id) for _, body in pulls for part in body.tables if part.table == "shared" for id in part.ids)
    assert shared == dict.fromkeys(IDS.tolist(), 1)


def test_an_empty_batch_has_no_rows_and_backward_accepts_it(client: ps.Client) -> None:
    bags, _ = beside(client)
    none = IDS[:0]
    output = bags({"C1": none, "C2": none, "C3": (none, none), "C4": none.reshape(0, 5)})
    assert output.shape == (0, DIM * len(FEATURES))
    output.sum().backward()


@pytest.mark.parametrize(
    ("sparse", "words"),
    [
        ({"C1": SINGLE}, r"features is \['C1'\], without 'C2', but must be all of \['C1', 'C2', 'C3', 'C4'\]"),
        (
            {"C1": SINGLE, "C2": SINGLE, "C3": SINGLE[:3], "C4": SINGLE},
            r"batches of different sizes, {.*'C3': 3.*}, but must be all of one",
        ),
        (SINGLE, r"features is Tensor, but must be a dict with all of"),
        ({feature: [SINGLE] for feature in FEATURES}, r"feature 'C1' is list of 1"),
        ({feature: [1, 2] for feature in FEATURES}, r"ids of 'C1' is int"),
        (dict.fromkeys(FEATURES, (IDS, OFFSETS, None, None)), r"feature 'C1' is tuple of 4, but must be .* \(values, offsets\)"),
        (dict.fromkeys(FEATURES, "ids"), r"feature 'C1' is str"),
        (dict.fromkeys(FEATURES, SINGLE.float()), r"ids of 'C1' is torch.float32"),
        (dict.fromkeys(FEATURES, IDS.reshape(1, 2, 3)), r"ids of 'C1' is \[1, 2, 3\]"),
        (dict.fromkeys(FEATURES, (IDS, OFFSETS, torch.ones(2))), r"per_sample_weights is \[2\]"),
    ],
)
def test_what_is_no_batch_of_the_features_is_refused(client: ps.Client, sparse: Any, words: str) -> None:
    bags, _ = beside(client)
    with pytest.raises(ps.InvalidRequest, match=words):
        bags(sparse)


@pytest.mark.parametrize(
    ("features", "options", "words"),
    [
        ({}, {}, r"features is {}, but must be a dict from feature to table"),
        (["C1"], {}, r"features is \['C1'\]"),
        ({"C1": 3}, {}, r"TableSpec.name is 3"),
        ({"C1": "C1"}, {"pooling": "last"}, r"mode of pooling is 'last'"),
        ({"C1": "C1"}, {"dim": 0}, r"TableSpec.dim is 0"),
    ],
)
def test_a_collection_that_cannot_be_is_refused(features: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ps.InvalidRequest, match=words):
        ps.nn.EmbeddingBagCollection(**{"dim": DIM, "features": features, **options})
