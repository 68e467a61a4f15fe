"""A two-tower retrieval model: a user and an item become vectors, and the items nearest to a user are what to show.

    python examples/two_tower.py                                      alone, with a small cluster of its own
    rowstead launch --servers 2 --workers 2 examples/two_tower.py

You will see recall@10 among 600 items, before training and after: how often the item that a user took next is among the ten nearest. To
guess gives 1.7 %, a perfect model gets 25 %.

The idea to take away: a shared table. A user is the mean of the items in the history, and those rows are the very ones that the item tower
reads: one table "item", in which the gradients of both towers add up. Users come from no list: one without history is a mean of
nothing, zeros.

The made-up world has 30 genres of 20 items; a user likes two genres. Training is asynchronous, as usual where speed counts; the loss is the
softmax over the items of a batch (Yi et al., RecSys 2019, without their correction for popular items: here all are equally popular).
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ps_worker as ps
from measuring import standstill

ITEMS, GENRES, LIKED = 600, 30, 2
HISTORY_MAX = 8
DIM = 16
BATCH = 64  # of each rank
MEASURED = 1_000
NEAREST = 10
SCALE = 10.0  # of the cosines, before the softmax

Items = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Visits:
    """What users took: bags of item ids int64[n] with offsets int64[B], and the item int64[B] that each took next."""

    history: Tensor
    offsets: Tensor
    taken: Tensor


def draw(count: int, random: np.random.Generator) -> Visits:
    """Return visits of `count` new users."""
    liked = random.random((count, GENRES)).argpartition(LIKED, axis=1)[:, :LIKED]
    sizes = random.integers(1, HISTORY_MAX + 1, count)
    users = np.repeat(np.arange(count), sizes)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)[:-1]])
    return Visits(*(torch.from_numpy(array) for array in (_items(liked[users], random), offsets, _items(liked, random))))


def _items(liked: Items, random: np.random.Generator) -> Items:
    """Return an item of one of the liked genres, int64[n], for each row of int64[n, LIKED]."""
    genres = liked[np.arange(len(liked)), random.integers(0, LIKED, len(liked))]
    return genres + GENRES * random.integers(0, ITEMS // GENRES, len(liked))


class TwoTower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        initializer = ps.Normal(std=0.1)
        self.history = ps.nn.EmbeddingBag(None, DIM, mode="mean", name="item", initializer=initializer)
        self.item = ps.nn.Embedding(None, DIM, name="item", initializer=initializer)
        self.user_tower = nn.Sequential(nn.Linear(DIM, 32), nn.ReLU(), nn.Linear(32, DIM))
        self.item_tower = nn.Linear(DIM, DIM)

    def users(self, history: Tensor, offsets: Tensor) -> Tensor:
        """Return a unit vector for each bag of items, float32[B, DIM]."""
        return F.normalize(self.user_tower(self.history(history, offsets)))

    def items(self, ids: Tensor) -> Tensor:
        """Return a unit vector for each item, float32[n, DIM]."""
        return F.normalize(self.item_tower(self.item(ids)))

    def forward(self, visits: Visits) -> Tensor:
        """Return the scores of each user with each user's item, float32[B, B]."""
        return SCALE * self.users(visits.history, visits.offsets) @ self.items(visits.taken).T


def recall(model: TwoTower) -> float:
    """Return how often the item taken is among the NEAREST of all items."""
    visits = draw(MEASURED, np.random.default_rng(2**32))
    with torch.no_grad():
        scores = model.users(visits.history, visits.offsets) @ model.items(torch.arange(ITEMS)).T
        nearest = scores.topk(NEAREST, dim=1).indices
    return float((nearest == visits.taken.unsqueeze(1)).any(dim=1).float().mean())


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Train a two-tower retrieval model on made-up visits.")
    parser.add_argument("--steps", type=int, default=500, help="steps of each worker (default 500)")
    chosen = parser.parse_args(arguments)
    torch.manual_seed(0)
    with ps.init(mode=ps.Async()) as session:
        model = TwoTower()
        optimizer = ps.optim.ServerOptimizer(model, dense=ps.Adam(lr=2e-3), sparse=ps.Adagrad(lr=0.05))
        criterion = nn.CrossEntropyLoss()
        random = np.random.default_rng(session.rank)
        for step in range(chosen.steps + 1):
            if step in (0, chosen.steps):
                with standstill(session) as measures:
                    if measures:
                        print(f"after {step} steps: recall@{NEAREST} {recall(model):.1%}", flush=True)
            if step < chosen.steps:
                visits = draw(BATCH, random)
                criterion(model(visits), torch.arange(BATCH)).backward()
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1:])
