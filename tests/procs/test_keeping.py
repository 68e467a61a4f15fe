"""Real processes: a model saved from two servers goes on training on three, with the same bits."""

import logging
from pathlib import Path

import pytest
import torch

import ps_worker as ps
from kept import batch, digest, model_of, optimizer_of, train

STEPS = 4


def test_a_model_saved_from_two_servers_goes_on_in_three(tmp_path: Path) -> None:
    with ps.local_cluster(servers=2) as cluster, ps.init(address=cluster.address, rank=0, world_size=1) as session:
        model = model_of(seed=1)
        optimizer = optimizer_of(model, session.client)
        train(model, optimizer, range(STEPS))
        ps.save(model, tmp_path / "model")
        saved = digest(session.client, model)
        train(model, optimizer, range(STEPS, 2 * STEPS))
        wanted = digest(session.client, model)
    with ps.local_cluster(servers=3) as cluster, ps.init(address=cluster.address, rank=0, world_size=1) as session:
        model = model_of(seed=2)
        ps.load(model, tmp_path / "model")
        optimizer = optimizer_of(model, session.client)
        assert digest(session.client, model) == saved
        train(model, optimizer, range(STEPS, 2 * STEPS))
        assert digest(session.client, model) == wanted


def test_an_embedded_cluster_that_was_saved_ends_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        with ps.init() as session:
            model = model_of(seed=1)
            train(model, optimizer_of(model, session.client), range(2))
            ps.save(model, tmp_path / "model")
        with ps.init():  # to serve: loaded, read, and let go
            again = model_of(seed=2)
            ps.load(again, tmp_path / "model")
            a, b, _ = batch(0, 0)
            served = ps.to_torch(again.eval())
            assert torch.equal(served(a, b), ps.to_torch(again)(a, b))
    assert caplog.messages == []
