"""What of a model is kept, and through which client it is read."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ps_proto.errors import InvalidRequest
from ps_worker.client import Client
from ps_worker.nn.naming import named_buffers, named_parameters
from ps_worker.nn.reading import RowModule
from ps_worker.nn.table import RowTable
from ps_worker.optim.dense import DenseBlocks
from ps_worker.optim.fetching import check_whole, fetching_hooks
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
        hooks = fetching_hooks(model)
        check_whole(model, hooks)
        dense = {blocks.name: blocks for hook in hooks for blocks in hook.dense}
        bound = next((hook.client for hook in hooks if hook.client is not None), None)
        found = next(iter(tables.values())).client if tables else bound
        return cls(model, found or current_session().client, tables, dense)

    @property
    def is_hybrid(self) -> bool:
        """Return whether a ServerOptimizer leaves the dense parameters to an optimizer of the user's."""
        return any(module.is_hybrid for module in _row_modules(self.model))

    def untrained(self) -> list[str]:
        """Return the parameters that want a gradient, by name, which no dense table has and no optimizer of the user's either."""
        if self.is_hybrid:
            return []
        trained = {id(parameter) for blocks in self.dense.values() for parameter in blocks.parameters}
        return [name for name, parameter in named_parameters(self.model) if parameter.requires_grad and id(parameter) not in trained]

    def tensors(self) -> dict[str, Tensor]:
        """Return the parameters and the persistent buffers by name, without names of wrappers; one of several names once."""
        return {**dict(named_parameters(self.model)), **dict(named_buffers(self.model))}

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
