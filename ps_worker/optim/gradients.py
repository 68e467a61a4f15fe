"""What a step pushes: the gradients of row leaves and dense parameters, from wherever they were computed to float32 on this host."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ps_proto.requests import Ids, Rows
from ps_worker.nn.table import RowTable
from ps_worker.optim.dense import DenseBlocks

Flat = npt.NDArray[np.float32]


def gradients(tables: Collection[RowTable], dense: Sequence[DenseBlocks], factor: float = 1.0) -> dict[str, tuple[Ids, Rows]]:
    """Return ids and gradients, float32[n, dim], by table: `factor` times what backward left; a table of embeddings without any has none.

    Ids of several forwards repeat, in the order of the forwards. Raises InvalidRequest where some were pushed before.
    """
    for table in tables:
        table.leaves.check_new()
    reached = {table.name: leaves for table in tables if (leaves := table.leaves.in_order())}
    rows = [gradient for leaves in reached.values() for _, gradient in leaves]
    parts = [parameter.grad for blocks in dense for parameter in blocks.parameters]
    arrays = iter(on_host([*rows, *[part for part in parts if part is not None]], factor))
    found: dict[str, tuple[Ids, Rows]] = {}
    for name, leaves in reached.items():
        ids = [its_ids for its_ids, _ in leaves]
        found[name] = _joined(ids), _joined([next(arrays).reshape(gradient.shape) for _, gradient in leaves])
    for blocks in dense:
        flat = [None if parameter.grad is None else next(arrays) for parameter in blocks.parameters]
        found[blocks.name] = blocks.ids, blocks.laid_out(flat)
    return found


def on_host(tensors: Sequence[Tensor], factor: float = 1.0) -> list[Flat]:
    """Return each tensor as float32[numel], times `factor`; those of a device come in one copy. May share memory with what is here."""
    places: dict[torch.device, list[int]] = {}
    for position, tensor in enumerate(tensors):
        places.setdefault(tensor.device, []).append(position)
    arrays: dict[int, Flat] = {}
    for device, positions in places.items():
        flat = [tensors[position].detach().to(torch.float32).reshape(-1) for position in positions]
        if device.type != "cpu":
            flat = list(torch.split(torch.cat(flat).cpu(), [item.numel() for item in flat]))
        arrays.update(zip(positions, [item.numpy() for item in flat], strict=True))
    if factor != 1.0:
        return [arrays[position] * np.float32(factor) for position in range(len(tensors))]
    return [arrays[position] for position in range(len(tensors))]


def _joined(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
