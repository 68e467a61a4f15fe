"""The row leaves of a table in the step at work: what backward left gradients at, to be pushed once.

A leaf is one of the step's once a gradient reaches it. Until then only the graph of its forward has it, so that a forward whose result
nobody goes back from, such as an evaluation without no_grad(), leaves nothing behind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from ps_proto.errors import InvalidRequest
from ps_proto.requests import Ids


@dataclass
class Leaf:
    """A forward's rows: `tensor` [unique, dim], of `ids`; `number`: of the forward. `is_pushed`: its gradient is on the servers."""

    number: int
    ids: Ids
    tensor: Tensor
    is_pushed: bool = False


class Leaves:
    """The leaves from backward to zero_grad().

    shown    their tensors, after `kept`: what an optimizer's group shows as `params`; always the same list.
    kept     tensors that stay there, whatever the step.
    """

    def __init__(self) -> None:
        self.shown: list[Tensor] = []
        self._kept: list[Tensor] = []
        self._reached: dict[int, Leaf] = {}
        self._forwards = 0

    def watch(self, ids: Ids, tensor: Tensor) -> None:
        """Take the tensor in once backward has left a gradient at it, as often as that happens after a zero_grad()."""
        self._forwards += 1
        tensor.register_post_accumulate_grad_hook(partial(self._reach, self._forwards, ids))  # type: ignore[no-untyped-call]

    def _reach(self, number: int, ids: Ids, tensor: Tensor) -> None:
        if id(tensor) not in self._reached:
            self._reached[id(tensor)] = Leaf(number, ids, tensor)
            self.shown.append(tensor)

    def keep(self, tensors: Sequence[Tensor]) -> None:
        """Let these stand before the leaves from now on."""
        self._kept = list(tensors)
        self.shown[:] = [*self._kept, *[leaf.tensor for leaf in self._reached.values()]]

    def in_order(self) -> list[tuple[Ids, Tensor]]:
        """Return ids and gradient, [unique, dim], of each leaf that has one, in the order of the forwards."""
        reached = sorted(self._reached.values(), key=lambda leaf: leaf.number)
        return [(leaf.ids, leaf.tensor.grad) for leaf in reached if leaf.tensor.grad is not None]

    def check_new(self) -> None:
        """Raise InvalidRequest where a gradient was pushed before, so that none counts twice."""
        if any(leaf.is_pushed and leaf.tensor.grad is not None for leaf in self._reached.values()):
            want = "called after each step() on the optimizer: model.zero_grad() does not reach the rows, which live on servers"
            raise InvalidRequest("zero_grad()", "not called since the last step()", want)

    def mark_pushed(self) -> None:
        """Note that what `in_order` returned is on the servers, or dropped for good."""
        for leaf in self._reached.values():
            leaf.is_pushed = True

    def clear(self) -> None:
        """Drop the leaves, and their gradients as they are: a push may be reading them."""
        for leaf in self._reached.values():
            leaf.tensor.grad = None
        self._reached.clear()
        self.shown[:] = self._kept
