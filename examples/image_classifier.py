"""A small convolutional network on made-up images: a model without embeddings, trained by several workers.

    python examples/image_classifier.py                               alone, with a small cluster of its own
    rowstead launch --servers 2 --workers 2 examples/image_classifier.py

You will see the accuracy on new images before training and after it; to guess gives 25 %.

The idea to take away: dense parameters are rows too, so a model of torch.nn alone needs `ServerOptimizer` in place of its optimizer, and
nothing else. Each rank draws images of its own; in synchronous mode a step is the same as one process's on the joined batch.
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

import ps_worker as ps
from measuring import standstill

SIZE = 16
CLASSES = 4  # a horizontal line, a vertical one, a falling diagonal, a rising one
NOISE_STD = 0.6
BATCH = 32  # of each rank
MEASURED = 1_000


def draw(count: int, random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return images float32[count, 1, SIZE, SIZE], each of one line somewhere in noise, and their classes int64[count]."""
    classes = random.integers(0, CLASSES, count)
    images = random.normal(0.0, NOISE_STD, (count, 1, SIZE, SIZE)).astype(np.float32)
    places = random.integers(2, SIZE - 2, count)
    along = np.arange(SIZE)
    for image, kind, place in zip(images[:, 0], classes, places, strict=True):
        across = {0: np.full(SIZE, place), 1: along, 2: along + place - SIZE // 2, 3: SIZE // 2 + place - along}[int(kind)]
        down = {0: along, 1: np.full(SIZE, place)}.get(int(kind), along)
        is_inside = (across >= 0) & (across < SIZE)
        image[across[is_inside], down[is_inside]] += 1.0
    return torch.from_numpy(images), torch.from_numpy(classes)


def build() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )


def accuracy(model: nn.Module) -> float:
    images, classes = draw(MEASURED, np.random.default_rng(2**32))
    with torch.no_grad():
        return float((model(images).argmax(dim=1) == classes).float().mean())


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Train an image classifier on made-up images.")
    parser.add_argument("--steps", type=int, default=400, help="steps of each worker (default 400)")
    chosen = parser.parse_args(arguments)
    torch.manual_seed(0)
    with ps.init(mode=ps.Sync()) as session:
        model = build()
        optimizer = ps.optim.ServerOptimizer(model, dense=ps.Adam(lr=3e-3))
        criterion = nn.CrossEntropyLoss()
        random = np.random.default_rng(session.rank)
        for step in range(chosen.steps + 1):
            if step in (0, chosen.steps):
                with standstill(session) as measures:
                    if measures:
                        print(f"after {step} steps: accuracy {accuracy(model):.1%}", flush=True)
            if step < chosen.steps:
                images, classes = draw(BATCH, random)
                criterion(model(images), classes).backward()
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1:])
