"""What a batch reads, worked out beside the step before it: the ids of its forwards, once each, laid end to end by table."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, partial
from inspect import Signature, signature
from typing import Any

import numpy as np
from torch import Tensor

from ps_proto.requests import Ids
from ps_worker.client import Client
from ps_worker.nn.reading import Plan, RowModule, Versions, versions_of
from ps_worker.profiling.stopwatch import PLAN, span

# Ids, and what else a batch has beside them, from which on it is planned beside. Of each plan some 0.2 ms are Python, in which the two
# threads hold each other up, and only what is in kernels overlaps. Measured with 26 features on two cores, a whole step took 1.06 times as
# long with 1,700 ids, 1.00 times with 13,000, 1.02 times with 27,000, 0.98 times with 53,000 and 0.97 to 0.99 times with 106,000. They are
# medians of pairs whose quartiles lie some 4 % away on either side: benchmarks/plan_beside.py measures it again.
BESIDE_MIN = 40_000


@dataclass(frozen=True)
class Forward:
    """A module's forward of a batch, to be planned.

    given     its arguments as they were read.     inputs   those that it will be called with.
    versions  of the inputs when the batch was read, so that a change of them while it is planned counts as one.
    """

    module: RowModule
    given: tuple[Any, ...]
    inputs: tuple[Any, ...]
    versions: Versions

    @classmethod
    def of(cls, module: RowModule, given: Any, moved: Any) -> "Forward":
        """Return the forward of `given`, a tensor, a dict or a tuple of arguments; `moved` is the same where the forward will find it."""
        inputs = arguments(module, moved)
        return cls(module, arguments(module, given), inputs, versions_of(inputs))

    def plan(self) -> Plan:
        """Return its plan."""
        return self.module.plan(*self.given)


def arguments(module: RowModule, given: Any) -> tuple[Any, ...]:
    """Return the arguments of a forward, those left out with their defaults."""
    bound = _signature(type(module).forward).bind(module, *(given if isinstance(given, tuple) else (given,)))
    bound.apply_defaults()
    return bound.args[1:]


@cache
def _signature(forward: Callable[..., Any]) -> Signature:
    return signature(forward)


@dataclass(frozen=True)
class Needs:
    """What a batch reads.

    plans    of its forwards, in their order.     wanted   the ids of each table that has any, those of one forward after another.
    places   for each forward: of each table, which of the ids [begin, end) are its.
    """

    plans: Sequence[Plan]
    wanted: Mapping[str, Ids]
    places: Sequence[Mapping[str, tuple[int, int]]]

    @classmethod
    def of(cls, forwards: Sequence[Forward]) -> "Needs":
        """Plan the forwards; raises what their plans raise."""
        plans = [forward.plan() for forward in forwards]
        ids: dict[str, list[Ids]] = {}
        counts: dict[str, int] = {}
        all_places = []
        for plan in plans:
            places = {}
            for table, its_ids in plan.wanted().items():
                if its_ids.size:
                    begin = counts.get(table, 0)
                    places[table] = (begin, begin + its_ids.size)
                    counts[table] = begin + its_ids.size
                    ids.setdefault(table, []).append(its_ids)
            all_places.append(places)
        return cls(plans, {table: parts[0] if len(parts) == 1 else np.concatenate(parts) for table, parts in ids.items()}, all_places)


def planned(forwards: Sequence[Forward], client: Client) -> "Future[Needs]":
    """Return what the forwards need, to come: large batches are planned beside the user's thread, which goes on with the step at work.

    Small ones are planned at once, and what their plans raise is raised here; of large ones the future raises it. What lies on a GPU is
    planned at once as well: in which of its streams the ids are made, and when they are ready, the user's thread knows alone.
    """
    tensors = _tensors([forward.given for forward in forwards])
    if sum([tensor.numel() for tensor in tensors]) >= BESIDE_MIN and all([tensor.device.type == "cpu" for tensor in tensors]):
        return client.plan_async(partial(Needs.of, forwards))
    at_once: Future[Needs] = Future()
    with span(PLAN):
        at_once.set_result(Needs.of(forwards))
    return at_once


def _tensors(given: Any) -> list[Tensor]:
    """Return the tensors of a forward's arguments."""
    if isinstance(given, Tensor):
        return [given]
    if isinstance(given, Mapping):
        return _tensors([*given.values()])
    if isinstance(given, tuple | list):
        return [tensor for item in given for tensor in _tensors(item)]
    return []
