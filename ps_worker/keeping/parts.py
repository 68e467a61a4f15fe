"""What of a model is kept, and through which client it is read."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ps_proto.errors import InvalidRequest
from ps_worker.client import Client
from ps_worker.nn.reading import RowModule
from ps_worker.nn.table import RowTable
from ps_worker.optim.dense import DenseBlocks, FetchFirst
from ps_worker.session import current_session


@dataclass(frozen=True)
class ModelParts:
    """tables and dense by name: the embeddings' tables, and the dense blocks of each ServerOptimizer that trains the model."""

    model: nn.Module
    client: Client
    tables: dict[str, RowTable]
    dense: dict[str, DenseBlocks]

    @classmethod
    def of(cls, model: nn.Module) -> "ModelParts":
        """Look through a model. Raises InvalidRequest for what is none, and where it is a part of what an optimizer trains."""
        if not isinstance(model, nn.Module):
            raise InvalidRequest("model", type(model).__name__, "a torch module")
        tables: dict[str, RowTable] = {}
        for module in _row_modules(model):
            for name, table in module.tables.items():
                tables.setdefault(name, table).check_same(table)
        hooks = _fetching_hooks(model)
        dense = {hook.dense.name: hook.dense for hook in hooks if hook.dense is not None}
        held = {id(parameter) for parameter in model.parameters()}
        for blocks in dense.values():
            if not held.issuperset([id(parameter) for parameter in blocks.parameters]):
                raise InvalidRequest(
                    "model", f"a part of what is trained in table {blocks.name!r}", "the whole that its ServerOptimizer was given"
                )
        bound = next((hook.client for hook in hooks if hook.client is not None), None)
        found = next(iter(tables.values())).client if tables else bound
        return cls(model, found or current_session().client, tables, dense)

    def untrained(self) -> list[str]:
        """Return the parameters that want a gradient and are in no dense table, by name."""
        trained = {id(parameter) for blocks in self.dense.values() for parameter in blocks.parameters}
        return [name for name, parameter in self.model.named_parameters() if parameter.requires_grad and id(parameter) not in trained]

    def tensors(self) -> dict[str, Tensor]:
        """Return the parameters and the persistent buffers by name; one of several names once."""
        passing = {
            f"{prefix}.{name}" if prefix else name
            for prefix, module in self.model.named_modules()
            for name in module._non_persistent_buffers_set
        }
        buffers = {name: buffer for name, buffer in self.model.named_buffers() if name not in passing}
        return {**dict(self.model.named_parameters()), **buffers}

    def refresh(self) -> None:
        """Bring the dense parameters to what the servers hold now."""
        for blocks in self.dense.values():
            blocks.refresh(self.client)

    def set(self, tensors: dict[str, Tensor]) -> None:
        """Set the parameters and buffers, given by name, and forget every row that was asked for ahead."""
        with torch.no_grad():
            for name, target in self.tensors().items():
                target.copy_(tensors[name])
        for module in _row_modules(self.model):
            module.forget_ahead()
        self.refresh()


def _row_modules(model: nn.Module) -> list[RowModule]:
    return [module for module in model.modules() if isinstance(module, RowModule)]


def _fetching_hooks(model: nn.Module) -> list[FetchFirst]:
    """Return the hooks of the model's optimizers, the newest last."""
    return [hook for module in model.modules() for hook in module._forward_pre_hooks.values() if isinstance(hook, FetchFirst)]
