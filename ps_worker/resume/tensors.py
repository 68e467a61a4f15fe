"""Arrays and tensors as a description and their bytes, and back. torch is used where a tensor is, and only then."""

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

KINDS = "biufcSUmM"  # numpy's dtypes that are their bytes alone: objects and structures are not


def is_tensor(value: object) -> bool:
    """Return whether it is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def array_to_bytes(array: Any) -> tuple[str, tuple[int, ...], bytes] | None:
    """Return dtype, shape and bytes in C order of a numpy array or scalar; None where its dtype is more than its bytes."""
    if array.dtype.kind not in KINDS:
        return None
    return array.dtype.str, array.shape, array.tobytes()


def array_from_bytes(dtype: str, shape: tuple[int, ...], data: bytes) -> Any:
    """Return a new array; raises ValueError or TypeError where the three do not fit together."""
    kind = np.dtype(dtype)
    _check_size(kind.itemsize, dtype, shape, data)
    return np.frombuffer(data, kind).reshape(shape).copy() if data else np.zeros(shape, kind)


def tensor_to_bytes(tensor: "Tensor") -> tuple[str, str, tuple[int, ...], bytes] | None:
    """Return dtype, device, shape and bytes in C order; None for a sparse, quantized or meta one. It waits for a GPU."""
    import torch

    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return None
    there = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    data = there.view(torch.uint8).numpy().tobytes() if there.numel() else b""
    return str(tensor.dtype).removeprefix("torch."), str(tensor.device), tuple(tensor.shape), data


def tensor_from_bytes(dtype: str, device: str, shape: tuple[int, ...], data: bytes) -> "Tensor":
    """Return a new tensor, on its device where this process has it, else on the CPU; ValueError where the parts do not fit together."""
    import torch

    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"no dtype of torch is called {dtype!r}")
    _check_size(kind.itemsize, dtype, shape, data)
    tensor = torch.empty(shape, dtype=kind)
    if data:
        tensor.reshape(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    try:
        return tensor.to(device)
    except (RuntimeError, AssertionError):  # a build without it, or a machine without as many
        return tensor


def _check_size(itemsize: int, dtype: str, shape: tuple[int, ...], data: bytes) -> None:
    if math.prod(shape) * itemsize != len(data):
        raise ValueError(f"{len(data)} bytes are no {dtype} of shape {list(shape)}")
