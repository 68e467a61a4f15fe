"""`ps.to_torch`: a model as plain torch, to serve where there is no cluster."""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ps_proto.errors import InvalidRequest
from ps_proto.requests import Ids, Rows
from ps_worker.client import Client
from ps_worker.keeping.lookup import PlainEmbedding, PlainEmbeddingBag, PlainEmbeddingBagCollection, PlainFeature, RowLookup
from ps_worker.keeping.parts import ModelParts
from ps_worker.nn import Embedding, EmbeddingBag, EmbeddingBagCollection
from ps_worker.nn.naming import unwrapped
from ps_worker.nn.reading import RowModule
from ps_worker.optim.fetching import is_fetching

_FIRST_NEGATIVE = np.uint64(2**63)  # ids from here on are negative as int64


def to_torch(model: nn.Module) -> nn.Module:
    """Return a copy of the model that holds its rows itself: plain torch, which works without a cluster, and which torch.jit.script takes.

    Dense parameters have their newest values. An id without a row reads as zeros, also where training would read its initial value: nobody
    pushed to it. In a bag it counts as a row of zeros. The rows of all tables are in this process's memory then. Any rank may call it
    alone; while others train on asynchronously, tables are as of slightly different instants.
    """
    parts = ModelParts.of(model)
    parts.refresh()
    model = unwrapped(model)
    rows = {name: _read(parts.client, name, table.dim) for name, table in parts.tables.items()}
    plain = {id(module): _plain(module, rows) for module in model.modules() if isinstance(module, RowModule)}
    served: nn.Module = copy.deepcopy(model, plain)
    for module in served.modules():
        _drop_hooks(module._forward_pre_hooks)
        _drop_hooks(module._state_dict_pre_hooks)
        _drop_hooks(module._load_state_dict_post_hooks)
    return served


def _read(client: Client, table: str, dim: int) -> tuple[Tensor, Tensor]:
    """Return ids int64[n], ascending, and weight float32[n + 2, dim], whose last two rows are zeros."""
    halves: tuple[list[tuple[Ids, Rows]], list[tuple[Ids, Rows]]] = ([], [])  # ids come ascending as uint64; as int64 the upper go first
    for ids, rows in client.export_iter(table):
        cut = np.searchsorted(ids, _FIRST_NEGATIVE)
        halves[0].append((ids[cut:], rows[cut:]))
        halves[1].append((ids[:cut], rows[:cut]))
    ordered = [*halves[0], *halves[1]]
    ids = np.concatenate([np.empty(0, np.uint64), *[ids for ids, _ in ordered]])
    weight = np.concatenate([*[rows for _, rows in ordered], np.zeros((2, dim), np.float32)])
    return torch.from_numpy(ids.view(np.int64)), torch.from_numpy(weight)


def _plain(module: RowModule, rows: dict[str, tuple[Tensor, Tensor]]) -> nn.Module:
    """Return what stands in for a module of ours, where and in the dtype that it would compute in."""

    def lookup(table: str, padding: int | None = None) -> RowLookup:
        ids, weight = rows[table]
        return RowLookup(ids.to(module.place.device), weight.to(module.place), padding)

    plain: nn.Module
    match module:
        case Embedding():
            found = lookup(module.table_name, _signed(module.padding_idx))
            plain = PlainEmbedding(found, module.embedding_dim)
        case EmbeddingBag():
            found = lookup(module.table_name, _signed(module.padding_idx))
            plain = PlainEmbeddingBag(found, module.embedding_dim, module.mode, module.include_last_offset)
        case EmbeddingBagCollection():
            bags = [PlainFeature(feature, lookup(table), module.pooling) for feature, table in module.features.items()]
            plain = PlainEmbeddingBagCollection(module.dim, dict(module.features), module.pooling, bags)
        case _:
            raise InvalidRequest(
                "model", f"with a {type(module).__name__}", "of Embedding, EmbeddingBag and EmbeddingBagCollection of ps.nn"
            )
    return plain.train(module.training)


def _signed(padding: int | None) -> int | None:
    """Return an id from -2**63 to 2**64 - 1 as the int64 of its bits."""
    return None if padding is None else (padding + 2**63) % 2**64 - 2**63


def _drop_hooks(hooks: dict[int, Any]) -> None:
    """Take out our own: a script cannot have them, and a copy has nothing to fetch."""
    for number in [number for number, hook in hooks.items() if is_fetching(hook)]:
        del hooks[number]
