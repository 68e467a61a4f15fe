"""ps.save, ps.load and ps.to_torch of a model whose rows travel compressed: what is kept has every bit."""

from pathlib import Path

import pytest
import torch

import ps_worker as ps
from inprocess import InProcess
from kept import Model, digest, optimizer_of, train


@pytest.mark.parametrize("wire", ["bfloat16", "int8"])
def test_a_loaded_model_goes_on_as_the_saved_one(tmp_path: Path, wire: str) -> None:
    def model_of(seed: int) -> Model:
        torch.manual_seed(seed)
        return Model(5, wire=wire)

    with InProcess(2).connect(0, 1, ps.Sync()) as client:
        model = model_of(1)
        optimizer = optimizer_of(model, client)
        train(model, optimizer, range(3))
        ps.save(model, tmp_path / "model")
        saved = digest(client, model)
        train(model, optimizer, range(3, 6))
        trained = digest(client, model)
    with InProcess(3).connect(0, 1, ps.Sync()) as client:
        model = model_of(2)
        optimizer = optimizer_of(model, client)
        ps.load(model, tmp_path / "model")
        assert digest(client, model) == saved
        assert client.spec("user").wire == wire
        train(model, optimizer, range(3, 6))
        assert digest(client, model) == trained
