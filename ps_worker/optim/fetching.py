"""Dense parameters brought to the step's values before they are used: hooks of the model and its parts."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ps_proto.errors import InvalidRequest
from ps_worker.client import Client
from ps_worker.nn.compiling import not_compiled
from ps_worker.nn.naming import is_compiled
from ps_worker.optim.dense import DenseBlocks, fetch


class FetchFirst:
    """A hook of modules: bring the dense parameters to this step's values before a module uses them or shows its state.

    In a deep copy of the model, which no optimizer trains, it does nothing.
    """

    def __init__(self, dense: Sequence[DenseBlocks] = (), client: Client | None = None) -> None:
        self.dense = tuple(dense)
        self.client = client
        self.is_removed = False
        self._handles: list[RemovableHandle] = []

    @not_compiled
    def __call__(self, *_: Any) -> None:
        if self.client is not None:
            fetch(self.dense, self.client)

    def __reduce__(self) -> tuple[type["FetchFirst"], tuple[()]]:
        return FetchFirst, ()

    def install(self, model: nn.Module) -> None:
        """Hook the model and each part of it that has parameters of its own: a part may be called alone, such as one of two towers.

        A graph of torch.compile would break at each hook. So it has none within: the hook of the model, or of what torch.compile has put
        around a part, is called before the graph, and those of parts are left out of it.
        """
        trained = {id(parameter) for blocks in self.dense for parameter in blocks.parameters}
        for module in model.modules():
            is_outer = module is model or is_compiled(module)
            if is_outer or not trained.isdisjoint([id(parameter) for parameter in module.parameters(recurse=False)]):
                self._handles += [
                    module.register_forward_pre_hook(self if is_outer else _OfPart(self)),
                    module.register_state_dict_pre_hook(self),  # type: ignore[no-untyped-call]
                    module.register_load_state_dict_post_hook(_RefuseLoad(self)),  # type: ignore[no-untyped-call]
                ]

    def remove(self) -> None:
        """Take the hooks out."""
        self.is_removed = True
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class _OfPart:
    """The hook of a part of a model, which a compiled model's graph leaves out."""

    def __init__(self, whole: FetchFirst) -> None:
        self.whole = whole

    def __call__(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self.whole()


class _RefuseLoad:
    """The hook behind load_state_dict: the next fetch would bring the servers' values back, without a word. A deep copy may be loaded."""

    def __init__(self, whole: FetchFirst) -> None:
        self.whole = whole

    def __call__(self, *_: Any) -> None:
        if self.whole.client is not None:
            raise InvalidRequest(
                "load_state_dict", "called after the ServerOptimizer was made", "called before it, or ps.load(model, path) used"
            )


def is_fetching(hook: object) -> bool:
    """Return whether a hook is one of these."""
    return isinstance(hook, FetchFirst | _OfPart | _RefuseLoad)


def fetching_hooks(model: nn.Module) -> list[FetchFirst]:
    """Return the hooks of the optimizers that train the model or parts of it, each once."""
    found = [hook for module in model.modules() for hook in module._forward_pre_hooks.values()]
    wholes = [hook.whole if isinstance(hook, _OfPart) else hook for hook in found]
    return list(dict.fromkeys([hook for hook in wholes if isinstance(hook, FetchFirst)]))


def check_whole(model: nn.Module, hooks: Sequence[FetchFirst]) -> None:
    """Raise InvalidRequest where one of the hooks fetches parameters beyond the model's."""
    held = {id(parameter) for parameter in model.parameters()}
    for blocks in [blocks for hook in hooks for blocks in hook.dense]:
        if not held.issuperset([id(parameter) for parameter in blocks.parameters]):
            raise InvalidRequest(
                "model", f"a part of what is trained in table {blocks.name!r}", "the whole that its ServerOptimizer was given"
            )
