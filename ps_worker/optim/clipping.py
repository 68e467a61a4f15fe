"""`ps.clip_grad_norm_`: torch.nn.utils.clip_grad_norm_ for a model whose rows are on servers."""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ps_proto.errors import InvalidRequest
from ps_proto.requests import Ids
from ps_worker.nn.reading import RowModule
from sharding.partition import deduplicate


class NormNotFinite(InvalidRequest, RuntimeError):
    """A norm of gradients that is inf or nan; a RuntimeError too, as torch raises it."""


@torch.no_grad()
def clip_grad_norm_(model: nn.Module, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False) -> Tensor:
    """Scale all gradients of a model, its rows' too, in their place so that their norm is at most `max_norm`; return the norm they had.

    All are one vector: the dense parameters, and each row that the step read once, with the sum of its gradients where several forwards
    read it, which is what the server will see. Call it between backward and step(), once the gradients are unscaled where there is a
    GradScaler. norm_type  from 1 on, inf for the greatest number.

    It is the norm of this worker's own gradients, before the mean over the ranks; ps.ClippedByRowNorm clips behind it. Where
    DistributedDataParallel has the dense parameters, the greatest norm of any rank counts for all, as their copies must stay the same: so
    all ranks must call it.

    Raises InvalidRequest; with `error_if_nonfinite` also NormNotFinite, a RuntimeError, for a norm that is inf or nan.
    """
    if not isinstance(model, nn.Module):
        raise InvalidRequest("model", type(model).__name__, "the model itself, as in clip_grad_norm_(model, 1.0): it knows its rows")
    max_norm, norm_type = float(max_norm), float(norm_type)
    if not norm_type >= 1:
        raise InvalidRequest("norm_type", str(norm_type), "at least 1, such as 2.0, or inf")
    if not max_norm >= 0:
        raise InvalidRequest("max_norm", str(max_norm), "at least 0")
    dense = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    tables = {name: table for module in model.modules() if isinstance(module, RowModule) for name, table in module.tables.items()}
    rows = [reached for table in tables.values() if (reached := table.leaves.in_order())]
    norm = _agreed(_norm([*dense, *[_merged(reached) for reached in rows]], norm_type), model)
    if error_if_nonfinite and not math.isfinite(norm.item()):
        raise NormNotFinite("norm of the gradients", str(norm.item()), "finite, as error_if_nonfinite=True asks for")
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for gradient in [*dense, *[gradient for reached in rows for _, gradient in reached]]:
        gradient.mul_(factor.to(gradient.device, gradient.dtype))
    return norm


def _merged(reached: Sequence[tuple[Ids, Tensor]]) -> Tensor:
    """Return the gradients of several forwards as [unique, dim], those of an id summed in the order of the forwards."""
    if len(reached) == 1:
        return reached[0][1]
    unique, inverse = deduplicate(np.concatenate([ids for ids, _ in reached]))
    first = reached[0][1]
    merged = torch.zeros((unique.size, first.shape[1]), dtype=torch.float32, device=first.device)
    places = torch.split(torch.from_numpy(inverse), [ids.size for ids, _ in reached])
    for its_places, (_, gradient) in zip(places, reached, strict=True):  # one by one: each names an id once, so no order is left open
        merged.index_add_(0, its_places.to(first.device), gradient.to(first.device, torch.float32))
    return merged


def _norm(gradients: Sequence[Tensor], norm_type: float) -> Tensor:
    """Return the norm of all, computed in float32 at least; 0 where there are none."""
    filled = [gradient for gradient in gradients if gradient.numel()]
    if not filled:
        return torch.zeros(())
    norms = [
        torch.linalg.vector_norm(item.detach(), norm_type, dtype=torch.promote_types(item.dtype, torch.float32)).to(filled[0].device)
        for item in filled
    ]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    return norm


def _agreed(norm: Tensor, model: nn.Module) -> Tensor:
    """Return the greatest norm of any rank where the model is, or has, a DistributedDataParallel; else the norm as it is."""
    shared = next((module for module in model.modules() if isinstance(module, DistributedDataParallel)), None)
    if shared is None:
        return norm
    greatest = torch.nan_to_num(norm.to(next(shared.parameters()).device, torch.float32), nan=math.inf, posinf=math.inf)  # max skips a nan
    torch.distributed.all_reduce(greatest, torch.distributed.ReduceOp.MAX, group=shared.process_group)
    return greatest
