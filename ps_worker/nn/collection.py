"""Many sparse features at once: one pull for all their tables, one row of pooled embeddings for each sample."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ps_proto.errors import InvalidRequest
from ps_proto.values import Initializer, Mode, Normal
from ps_worker.nn.pool_kernels import Placed, is_for_kernels, pool_side_by_side
from ps_worker.nn.pooling import Bags, check_pooling, pool
from ps_worker.nn.reading import Lookup, Plan, RowModule
from ps_worker.nn.table import RowTable

Feature = Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]


class EmbeddingBagCollection(RowModule):
    """Pooled embeddings of several features, side by side.

    features  feature -> table; several features may share one.     pooling  "sum", "mean" or "max".
    table_dtype, max_norm, wire  of all the tables, as for Embedding.

        bags({"C1": ids, "C2": (values, offsets), "C3": (values, offsets, weights)}) -> float32[B, dim * n_features]

    ids[B] is one id for each sample, ids[B, n] a bag of n. Columns are in the order of `features`.
    """

    def __init__(
        self,
        dim: int,
        features: Mapping[str, str],
        pooling: str = "sum",
        *,
        initializer: Initializer | None = None,
        seed: int = 0,
        mode: Mode | None = None,
        table_dtype: str = "float32",
        max_norm: float | None = None,
        wire: str = "float32",
    ) -> None:
        check_pooling(pooling)
        if not isinstance(features, Mapping) or not features:
            raise InvalidRequest("features", repr(features), "a dict from feature to table, such as {'C1': 'C1'}")
        names = dict.fromkeys(features.values())
        super().__init__([RowTable(name, dim, initializer or Normal(), seed, mode, table_dtype, max_norm, wire) for name in names])
        self.dim = dim
        self.features = dict(features)
        self.pooling = pooling
        begins = {feature: dim * position for position, feature in enumerate(features)}
        self._columns = {
            name: np.array([begins[feature] for feature, table in features.items() if table == name], np.int64) for name in names
        }

    def extra_repr(self) -> str:
        return f"dim={self.dim}, features={self.features}, pooling={self.pooling!r}"

    def plan(self, *inputs: Any) -> Plan:
        (sparse,) = inputs
        if not isinstance(sparse, Mapping):
            raise InvalidRequest("features", type(sparse).__name__, f"a dict with all of {sorted(self.features)}")
        bags = {feature: self._bags(feature, sparse) for feature in self.features}
        counts = {item.offsets.size for item in bags.values()}
        if len(counts) > 1:
            sizes = {feature: int(item.offsets.size) for feature, item in bags.items()}
            raise InvalidRequest("features", f"of batches of different sizes, {sizes}", "all of one batch")
        lookups, joined = [], []
        for name, table in self._tables.items():
            together = _joined([bags[feature] for feature, its_table in self.features.items() if its_table == name])
            lookups.append(Lookup.of(table, together.ids))
            joined.append(together)
        return Plan(lookups, (joined, counts.pop()))

    def forward(self, sparse: Mapping[str, Feature]) -> Tensor:
        """Return float32[B, dim * n_features]."""
        plan, leaves = self.read(sparse)
        joined, count = plan.rest
        if all(is_for_kernels(leaf, bags.weights is not None, self.pooling) for leaf, bags in zip(leaves, joined, strict=True)):
            placed = [
                Placed(lookup.inverse, bags.offsets, self._columns[lookup.table.name])
                for lookup, bags in zip(plan.lookups, joined, strict=True)
            ]
            return pool_side_by_side(placed, leaves, count, self.dim * len(self.features), self.pooling)
        pooled: dict[str, Tensor] = {}
        for lookup, leaf, bags in zip(plan.lookups, leaves, joined, strict=True):
            features = [feature for feature, table in self.features.items() if table == lookup.table.name]
            rows = pool(leaf, lookup.inverse, bags, self.pooling).reshape(len(features), count, self.dim)
            pooled.update(zip(features, rows, strict=True))
        return torch.cat([pooled[feature] for feature in self.features], dim=1)

    def _bags(self, feature: str, sparse: Mapping[str, Feature]) -> Bags:
        if feature not in sparse:
            raise InvalidRequest("features", f"{sorted(sparse)}, without {feature!r}", f"all of {sorted(self.features)}")
        given = sparse[feature]
        if isinstance(given, Tensor):
            return Bags.of(given.unsqueeze(1) if given.dim() == 1 else given, None, None, feature, self.pooling)
        if not isinstance(given, tuple | list) or len(given) not in (2, 3):
            got = type(given).__name__ + (f" of {len(given)}" if isinstance(given, tuple | list) else "")
            raise InvalidRequest(f"feature {feature!r}", got, "a tensor of ids, (values, offsets) or (values, offsets, weights)")
        values, offsets, *weights = given
        return Bags.of(values, offsets, weights[0] if weights else None, feature, self.pooling)


def _joined(bags: list[Bags]) -> Bags:
    """Return the bags of several features of one table, one feature after another."""
    if len(bags) == 1:
        return bags[0]
    begins = np.cumsum([0] + [item.ids.size for item in bags[:-1]])
    ids = np.concatenate([item.ids for item in bags])
    offsets = np.concatenate([item.offsets + begin for item, begin in zip(bags, begins, strict=True)])
    if all(item.weights is None for item in bags):
        return Bags(ids, offsets)
    weights = [item.weights if item.weights is not None else torch.ones(item.ids.size) for item in bags]
    return Bags(ids, offsets, torch.cat([item.cpu() for item in weights]))
