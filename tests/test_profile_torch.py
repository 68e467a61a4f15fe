"""What a profile sees of ps.nn, ps.optim and ps.prefetch."""

import itertools

import torch
from torch import nn

import ps_worker as ps
from beside_torch import one_worker
from ps_worker.profiling.profile import Profile


class Counting:
    """A clock that moves on by an eighth of a second whenever somebody looks: so every span takes time, whatever the machine does."""

    def __init__(self) -> None:
        self._looks = itertools.count()

    def __call__(self) -> float:
        return next(self._looks) / 8


def seen_parts(mode: ps.Mode, overlap_pushes: bool) -> dict[str, float]:
    """Train a small model on batches that are read ahead; return the mean of each row that is not zero."""
    with one_worker(mode) as (_, client):
        bag = ps.nn.EmbeddingBag(None, 4, mode="sum", name="words")
        model = nn.Sequential(bag, nn.Linear(4, 1))
        optimizer = ps.optim.ServerOptimizer(model, overlap_pushes=overlap_pushes, client=client)
        words = [torch.arange(12).reshape(4, 3) + number for number in range(6)]
        with Profile(client, 1, Counting()) as profile:
            for batch in ps.prefetch(words, ids=lambda batch: {bag: batch}, client=client):
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        client.flush()
        assert profile.steps == 5
        return {name: row["mean_s"] for name, row in profile.as_dict()["rows"].items() if row["mean_s"]}


def test_each_stage_of_a_training_has_its_part() -> None:
    parts = seen_parts(ps.Sync(), overlap_pushes=False)
    want = {f"worker.{part}" for part in ("ids", "tensors", "pooling", "pooling back", "gradients", "steps")}
    assert {*want, "load", "pulls.wire", "pushes.wire", "compute"} <= parts.keys()
    assert {"other", "barrier"}.isdisjoint(parts)
    tops = ("compute", "load", "pulls", "pushes", "worker")
    assert abs(sum([parts[name] for name in tops]) - parts["step"]) < 1e-9


def test_overlapped_steps_end_where_the_next_one_begins() -> None:
    parts = seen_parts(ps.Async(), overlap_pushes=True)
    assert {"pulls", "pushes", "worker.gradients", "worker.steps"} <= parts.keys()
