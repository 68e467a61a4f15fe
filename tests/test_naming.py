"""Names of parameters within the wrappers of DistributedDataParallel and torch.compile."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from ps_worker.nn.naming import is_wrapper, named_modules, named_parameters, unwrapped


def model_of() -> nn.Sequential:
    tied = nn.Linear(2, 2)
    return nn.Sequential(nn.Linear(2, 2), nn.Sequential(tied, nn.BatchNorm1d(2)), tied)


def compiled(module: nn.Module) -> nn.Module:
    wrapper = torch.compile(module, backend="eager")
    assert isinstance(wrapper, nn.Module)
    return wrapper


def compiled_part() -> nn.Module:
    model = model_of()
    model[1] = compiled(model[1])
    return model


WRAPPED: dict[str, Callable[[], nn.Module]] = {
    "as it is": model_of,
    "compiled": lambda: compiled(model_of()),
    "a part compiled": compiled_part,
    "data parallel": lambda: nn.DataParallel(model_of()),
    "both": lambda: compiled(nn.DataParallel(compiled(model_of()))),
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_a_wrapper_changes_no_name_and_no_order(wrap: Callable[[], nn.Module]) -> None:
    plain, model = model_of(), wrap()
    assert [name for name, _ in named_parameters(model)] == [name for name, _ in plain.named_parameters()]
    assert [name for name, _ in named_modules(model)] == [name for name, _ in plain.named_modules()]
    assert {id(parameter) for _, parameter in named_parameters(model)} == {id(parameter) for parameter in model.parameters()}
    assert not is_wrapper(unwrapped(model))


@pytest.mark.usefixtures("process_group")
def test_distributed_data_parallel_is_a_wrapper() -> None:
    model = nn.parallel.DistributedDataParallel(model_of())
    assert [name for name, _ in named_parameters(model)] == [name for name, _ in model_of().named_parameters()]


def test_a_part_that_is_called_module_keeps_its_name() -> None:
    model = nn.ModuleDict({"module": nn.Linear(1, 1)})
    assert [name for name, _ in named_parameters(model)] == ["module.weight", "module.bias"]
