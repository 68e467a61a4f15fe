"""torch.nn.Embedding and EmbeddingBag over tables: torch's arguments, as far as rows on servers have them, and torch's results."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ps_proto.errors import InvalidRequest
from ps_proto.requests import Ids
from ps_proto.values import Initializer, Mode, Normal
from ps_worker.nn.pooling import Bags, check_pooling, pool
from ps_worker.nn.reading import Lookup, Plan, RowModule, ids_of
from ps_worker.nn.table import RowTable


class NoWeight(InvalidRequest, AttributeError):
    """An embedding's `weight`, which is not here; an AttributeError too, so that hasattr() says no."""

    def __str__(self) -> str:
        return f"{self.field} is {self.got}; it can be {self.want}."


class _OneTable(RowModule):
    """What Embedding and EmbeddingBag have in common."""

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        padding_idx: int | None,
        max_norm: float | None,
        norm_type: float,
        name: str | None,
        initializer: Initializer | None,
        seed: int,
        mode: Mode | None,
        table_dtype: str,
        wire: str,
        scale_grad_by_freq: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        if scale_grad_by_freq:
            raise InvalidRequest("scale_grad_by_freq", "True", "False: a server sees a row's gradient summed, not how often it was used")
        if name is None:
            raise InvalidRequest(
                "name", "missing", f"the table's name, as in {type(self).__name__}({num_embeddings}, {embedding_dim}, name='user')"
            )
        if max_norm is not None and norm_type != 2.0:
            raise InvalidRequest("norm_type", repr(norm_type), "2.0: servers scale a row by its Euclidean norm")
        if num_embeddings is not None and not _is_whole(num_embeddings, 1, 2**64):
            raise InvalidRequest("num_embeddings", repr(num_embeddings), "a whole number from 1, or None: any id")
        padding_min, padding_max = (-(2**63), 2**64) if num_embeddings is None else (-num_embeddings, num_embeddings)
        if padding_idx is not None and not _is_whole(padding_idx, padding_min, padding_max):
            raise InvalidRequest("padding_idx", repr(padding_idx), f"None or a whole number from {padding_min} to {padding_max - 1}")
        if num_embeddings is not None and padding_idx is not None and padding_idx < 0:
            padding_idx += num_embeddings
        super().__init__([RowTable(name, embedding_dim, initializer or Normal(), seed, mode, table_dtype, max_norm, wire)])
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_idx
        self.table_name = name
        self.to(device=device, dtype=dtype)

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            raise NoWeight("weight", "on the servers", "read with client.export(name), ps.to_torch(model) or ps.save")
        return super().__getattr__(name)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, name={self.table_name!r}, padding_idx={self.padding_idx}"

    def _checked(self, ids: Ids) -> Ids:
        """Raise IndexError for ids outside of num_embeddings, as torch does."""
        if self.num_embeddings is not None and ids.size and int(ids.max()) >= self.num_embeddings:
            largest = int(ids.max().view(np.int64))  # as given, where it is a negative one
            raise IndexError(f"id {largest} is outside of table {self.table_name!r} of {self.num_embeddings} embeddings")
        return ids

    def _is_kept(self, ids: Ids) -> npt.NDArray[np.bool_] | None:
        """Return which ids are no padding, bool[n]; None where all are."""
        if self.padding_idx is None:
            return None
        kept: npt.NDArray[np.bool_] = ids != np.uint64(self.padding_idx % 2**64)
        return None if kept.all() else kept


def _is_whole(value: object, least: int, beyond: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < beyond


class Embedding(_OneTable):
    """torch.nn.Embedding over the table `name`.

    num_embeddings  None: any id; a number: ids outside are an IndexError, as in torch.
    padding_idx     reads as zeros, is never pulled or pushed.
    initializer     of rows that nobody has pushed to; Normal() as in torch.
    max_norm        the greatest Euclidean norm of a row (so norm_type must be 2.0). Servers keep to it: a row never is longer, where torch
                    shortens those that a forward looks up, before it. All modules of a table must have the same.
    sparse          is accepted and changes nothing: gradients are of the rows used.
    device, dtype   where rows go, and as what; .to() does the same.
    table_dtype     how servers keep rows: "float32", or "bfloat16", which takes half the memory.
    wire            how rows and their gradients travel: "float32", "bfloat16" or "int8", which take a half and some quarter of the bytes.
    """

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        *,
        name: str | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        initializer: Initializer | None = None,
        seed: int = 0,
        mode: Mode | None = None,
        table_dtype: str = "float32",
        wire: str = "float32",
    ) -> None:
        super().__init__(
            num_embeddings,
            embedding_dim,
            padding_idx,
            max_norm,
            norm_type,
            name,
            initializer,
            seed,
            mode,
            table_dtype,
            wire,
            scale_grad_by_freq,
            device,
            dtype,
        )

    def plan(self, *inputs: Any) -> Plan:
        ids = self._checked(ids_of(inputs[0], f"ids of {self.table_name!r}"))
        kept = self._is_kept(ids)
        (table,) = self._tables.values()
        return Plan([Lookup.of(table, ids if kept is None else ids[kept])], kept)

    def forward(self, input: Tensor) -> Tensor:
        """Return float32[*input.shape, dim] for ids of any shape."""
        plan, (leaf,) = self.read(input)
        inverse = torch.from_numpy(plan.lookups[0].inverse).to(leaf.device)
        if plan.rest is None:
            rows = F.embedding(inverse, leaf)
        else:
            kept = torch.from_numpy(np.flatnonzero(plan.rest)).to(leaf.device)
            rows = leaf.new_zeros((plan.rest.size, self.embedding_dim)).index_copy(0, kept, F.embedding(inverse, leaf))
        return rows.reshape(*input.shape, self.embedding_dim)


class EmbeddingBag(_OneTable):
    """torch.nn.EmbeddingBag over the table `name`; arguments as for Embedding. Padding is left out of the bag."""

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        max_norm: float | None = None,
        *,
        mode: str = "mean",
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        name: str | None = None,
        initializer: Initializer | None = None,
        seed: int = 0,
        table_mode: Mode | None = None,
        table_dtype: str = "float32",
        wire: str = "float32",
    ) -> None:
        check_pooling(mode)
        super().__init__(
            num_embeddings,
            embedding_dim,
            padding_idx,
            max_norm,
            norm_type,
            name,
            initializer,
            seed,
            table_mode,
            table_dtype,
            wire,
            scale_grad_by_freq,
            device,
            dtype,
        )
        self.mode = mode
        self.include_last_offset = include_last_offset

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"

    def plan(self, *inputs: Any) -> Plan:
        values, offsets, weights = inputs
        bags = Bags.of(values, offsets, weights, self.table_name, self.mode, self.include_last_offset)
        kept = self._is_kept(self._checked(bags.ids))
        if kept is not None:
            bags = bags.only(kept)
        (table,) = self._tables.values()
        return Plan([Lookup.of(table, bags.ids)], bags)

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """Return float32[B, dim]: for ids[B, n], or for ids[n] with offsets[B]."""
        plan, (leaf,) = self.read(input, offsets, per_sample_weights)
        return pool(leaf, plan.lookups[0].inverse, plan.rest, self.mode)
