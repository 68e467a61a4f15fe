"""What a model's parts are called, whatever is wrapped around them: DistributedDataParallel and torch.compile put a name in between.

DistributedDataParallel(model)    module.layer.weight       -> layer.weight
torch.compile(model)              _orig_mod.layer.weight    -> layer.weight
"""

from collections.abc import Iterator

from torch import Tensor, nn

_DISTRIBUTED = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def is_compiled(module: nn.Module) -> bool:
    """Return whether it is what torch.compile made of a module."""
    return "_orig_mod" in module._modules  # its class is in torch._dynamo, which nobody should import for this


def is_wrapper(module: nn.Module) -> bool:
    """Return whether its only part is the module that it wraps."""
    return isinstance(module, _DISTRIBUTED) or is_compiled(module)


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module within all wrappers around it."""
    while is_wrapper(module):
        (module,) = module.children()
    return module


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield what model.named_modules() does, without wrappers and their names."""
    names: dict[str, tuple[str, bool]] = {}  # path -> name, and whether a wrapper has it
    for path, module in model.named_modules():
        parent, _, last = path.rpartition(".")
        outer, is_wrapped = names[parent] if path else ("", True)
        name = outer if is_wrapped else f"{outer}.{last}" if outer else last
        names[path] = (name, is_wrapper(module))
        if not is_wrapper(module):
            yield name, module


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield what model.named_parameters() does, each once, without the names of wrappers."""
    seen: set[int] = set()
    for name, module in named_modules(model):
        for last, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{name}.{last}" if name else last, parameter


def named_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the persistent buffers of a model, each once, without the names of wrappers."""
    seen: set[int] = set()
    for name, module in named_modules(model):
        for last, buffer in module.named_buffers(recurse=False):
            if last not in module._non_persistent_buffers_set and id(buffer) not in seen:
                seen.add(id(buffer))
                yield f"{name}.{last}" if name else last, buffer
