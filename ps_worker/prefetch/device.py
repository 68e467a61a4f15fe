"""A batch, whatever it is made of, on another device."""

import copy
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor


def moved(value: Any, device: torch.device) -> Any:
    """Return the value with all its tensors on `device`, in tuples, lists, dicts and dataclasses too; what is none of these stays as it is.

    A copy to a GPU goes through pinned memory and does not wait for what computes there.
    """
    if isinstance(value, Tensor):
        if device.type == "cuda" and value.device.type == "cpu":
            return value.pin_memory().to(device, non_blocking=True)
        return value.to(device)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[moved(item, device) for item in value])
    if isinstance(value, tuple | list):
        return type(value)([moved(item, device) for item in value])
    there: Any
    if isinstance(value, dict):
        there = copy.copy(value)
        there.update({key: moved(item, device) for key, item in value.items()})
        return there
    if is_dataclass(value) and not isinstance(value, type):
        there = copy.copy(value)
        for field in fields(value):
            object.__setattr__(there, field.name, moved(getattr(value, field.name), device))  # a frozen one too
        return there
    return value
