"""ps.save, ps.load and ps.to_torch of a model whose rows are bfloat16 and within a norm."""

from pathlib import Path

import numpy as np
import pytest
import torch

import ps_worker as ps
from inprocess import InProcess
from kept import Model, batch, digest, optimizer_of, train
from ps_proto.errors import TableMismatch

SPARSE = [ps.SGD(lr=0.1), ps.Adagrad(lr=0.1), ps.Adam(lr=0.01)]


def model_of(seed: int, max_norm: float | None = 0.5, table_dtype: str = "bfloat16", wire: str = "float32") -> Model:
    torch.manual_seed(seed)
    return Model(5, table_dtype, max_norm, wire)


@pytest.mark.parametrize("sparse", SPARSE, ids=lambda sparse: sparse.kind)
@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_what_two_servers_kept_three_have_to_the_last_bit(tmp_path: Path, sparse: ps.Optimizer, max_norm: float | None) -> None:
    with InProcess(2).connect(0, 1, ps.Sync()) as client:
        model = model_of(1, max_norm)
        train(model, optimizer_of(model, client, sparse), range(3))
        ps.save(model, tmp_path / "model")
        saved = digest(client, model)
    with InProcess(3).connect(0, 1, ps.Sync()) as client:
        model = model_of(2, max_norm)
        optimizer_of(model, client, sparse)
        ps.load(model, tmp_path / "model")
        assert digest(client, model) == saved


@pytest.mark.parametrize(
    ("max_norm", "table_dtype", "wire", "field"),
    [(0.5, "float32", "float32", "dtype"), (0.25, "bfloat16", "float32", "max_norm"), (0.5, "bfloat16", "int8", "wire")],
)
def test_another_kind_of_table_does_not_take_the_rows(tmp_path: Path, max_norm: float, table_dtype: str, wire: str, field: str) -> None:
    with InProcess(2).connect(0, 1, ps.Sync()) as client:
        model = model_of(1)
        train(model, optimizer_of(model, client), range(2))
        ps.save(model, tmp_path / "model")
    with InProcess(2).connect(0, 1, ps.Sync()) as client:
        model = model_of(1, max_norm, table_dtype, wire)
        optimizer_of(model, client)
        with pytest.raises(TableMismatch, match=field):
            ps.load(model, tmp_path / "model")


def test_a_plain_torch_model_has_the_same_rows() -> None:
    with InProcess(2).connect(0, 1, ps.Sync()) as client:
        model = model_of(1)
        train(model, optimizer_of(model, client), range(4))
        model.eval()
        a, b, _ = batch(rank=0, step=0)
        plain = ps.to_torch(model)
        with torch.no_grad():
            assert plain(a, b).numpy().tobytes() == model(a, b).numpy().tobytes()
        rows = client.export("user")[1]
        assert not np.any(rows.view(np.uint32) & 0xFFFF)
        assert np.linalg.norm(rows, axis=1).max() <= 0.5 * (1 + 2**-7)
