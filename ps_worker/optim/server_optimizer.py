"""A torch optimizer whose arithmetic is the servers': step() pushes the gradients and ends the step."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from ps_proto.errors import InvalidRequest, PushPartlyTaken
from ps_proto.values import Adagrad, Adam, Mode, Optimizer
from ps_worker.client import Client
from ps_worker.nn.reading import RowModule
from ps_worker.nn.table import RowTable
from ps_worker.optim.dense import DenseBlocks, FetchFirst
from ps_worker.session import current_session


class ServerOptimizer(torch.optim.Optimizer):
    """Trains `model` on the servers: embeddings of ps.nn with `sparse`, everything else that wants a gradient with `dense`.

        optimizer = ps.optim.ServerOptimizer(model, dense=ps.Adam(lr=1e-3), sparse=ps.Adagrad(lr=1e-2))
        loss.backward(); optimizer.step(); optimizer.zero_grad()

    It creates the tables, fetches the dense weights (rank 0's start values, or what the servers have) and, before each forward or
    state_dict() of the model, those of the step. `param_groups` has one group for the dense parameters and one for each table; the `params`
    of the latter are the step's row leaves, from forward to zero_grad(). Hyperparameters in the groups count at the next step(), so
    learning-rate schedulers work; in synchronous mode every rank must set the same. `dense_mode` lets the dense table, called `dense_name`,
    have a mode of its own; a second model of the job needs another name.

    The dense weights are those of the step once the model, or a part of it, is called; not where `model.forward` or a parameter is used
    directly. step() refuses gradients that it sees to come from older weights. Between step() and the next call they are those of the step
    before: `fetch()` brings them, for an average of weights, say. Freeze, unfreeze and load_state_dict before the optimizer is made.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        dense: Optimizer | None = None,
        sparse: Optimizer | None = None,
        dense_mode: Mode | None = None,
        dense_name: str = "dense",
        client: Client | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InvalidRequest("model", type(model).__name__, "the model itself, as in ServerOptimizer(model)")
        dense, sparse = Adam() if dense is None else dense, Adagrad() if sparse is None else sparse
        for name, given in (("dense", dense), ("sparse", sparse)):
            if not isinstance(given, Optimizer):
                raise InvalidRequest(name, repr(given), "a server-side optimizer such as ps.Adam(lr=1e-3)")
        self.client = client or current_session().client
        self.tables = _shared_tables(model)
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        self.dense = DenseBlocks(named, dense_name, dense_mode) if named else None
        if self.dense is None and not self.tables:
            raise InvalidRequest("model", type(model).__name__, "a module with parameters, or with embeddings of ps.nn")
        if self.dense is not None and dense_name in self.tables:
            raise InvalidRequest("dense_name", f"{dense_name!r}, which is an embedding's table", "another name")
        groups: list[dict[str, Any]] = []
        if self.dense is not None:
            groups.append({"params": self.dense.parameters, "table": dense_name, **_numbers(dense)})
        groups += [{"params": [], "table": name, **_numbers(sparse)} for name in self.tables]
        has_betas = all("betas" in group for group in groups)
        super().__init__(groups, defaults={"betas": groups[0]["betas"]} if has_betas else {})  # what OneCycleLR looks for
        self._settings = {name: sparse for name in self.tables} | ({dense_name: dense} if self.dense is not None else {})
        self._frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
        self._pushed_at: int | None = None  # the step whose push was sent, until it is ended
        self._show_leaves()
        for table in self.tables.values():
            table.bind(self.client)
            self.client.create_table(table.spec(sparse))
        if self.dense is not None:
            self.dense.create(self.client, dense)
            _hook(model, self.dense, self.client)
        for module in _row_modules(model):
            module.optimizer_dense = self.dense

    def _show_leaves(self) -> None:
        """Let each table's group show the list that its forwards add to: add_param_group has made a copy."""
        for group in self.param_groups:
            if group["table"] in self.tables:
                group["params"] = self.tables[group["table"]].leaves

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse what is not of the model as the optimizer was made for it."""
        if "table" not in param_group:
            raise InvalidRequest("param_group", "added", "in the model before the optimizer is made: what is dense is one table")
        super().add_param_group(param_group)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Push the gradients of the leaves and of the dense parameters, once for all tables, and end the step.

        A rank without any gradient ends the step all the same: the others wait for it. After Unreachable or a timeout call it again, with
        no zero_grad() in between: it goes on where it was, and what it pushed counts once.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._pushed_at is None:
            self._tell_hyperparameters()
            self._push()
        else:
            self.client.retry_push()
        if self._pushed_at == self.client.clock:  # else end_step() could not reach all servers: they hear it with the next request
            self.client.end_step()
        self._pushed_at = None
        return loss

    def fetch(self) -> None:
        """Bring the dense parameters to the newest values that this step may see; waits as a pull does."""
        if self.dense is not None:
            self.dense.fetch(self.client)

    def _check_gradients(self) -> None:
        if any(parameter.grad is not None for parameter in self._frozen):
            want = "unfrozen before the ServerOptimizer is made: the servers do not have it"
            raise InvalidRequest("a parameter with a gradient", "one that was frozen", want)
        if self.dense is not None and self.dense.has_gradient and self.dense.clock != self.client.clock:
            got = f"of the weights of step {self.dense.clock}, in step {self.client.clock}"
            want = "of this step's: call the model or its parts, not .forward() or their parameters, and zero_grad() after each step()"
            raise InvalidRequest("dense gradients", got, want)

    def _push(self) -> None:
        self._check_gradients()
        pushes = {name: gradient for name, table in self.tables.items() if (gradient := table.gradient()) is not None}
        if self.dense is not None:
            pushes[self.dense.name] = (self.dense.ids, self.dense.gradient())
        try:
            if pushes:
                self.client.push(pushes)
        except (PushPartlyTaken, ConnectionError, TimeoutError):  # some of it may have arrived, and it keeps its name
            self._note_pushed()
            raise
        self._note_pushed()

    def _note_pushed(self) -> None:
        self._pushed_at = self.client.clock
        for table in self.tables.values():
            table.mark_pushed()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and the row leaves with theirs."""
        super().zero_grad(set_to_none)
        self._pushed_at = None
        for table in self.tables.values():
            table.clear()

    def _tell_hyperparameters(self) -> None:
        for group in self.param_groups:
            have = self._settings[group["table"]]
            want = replace(have, **{name: _plain(group[name]) for name in _numbers(have)})
            if want != have:
                self.client.set_optimizer(group["table"], want)
                self._settings[group["table"]] = want

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the hyperparameters of a `state_dict()`; the state itself is the servers', and ps.load brings it back."""
        got, want = ([group.get("table") for group in groups] for groups in (state_dict["param_groups"], self.param_groups))
        if got != want:
            raise InvalidRequest("tables of the state_dict", str(got), f"{want}, as of this optimizer")
        pairs = list(zip(state_dict["param_groups"], self.param_groups, strict=True))
        for saved, mine in pairs:
            numbers = _numbers(self._settings[mine["table"]])
            if not saved.keys() >= numbers.keys():
                raise InvalidRequest(f"state_dict of table {mine['table']!r}", str(sorted(saved)), f"one that has {sorted(numbers)}")
        shaped = [{**saved, "params": list(range(len(mine["params"])))} for saved, mine in pairs]  # leaves of then are none of now
        super().load_state_dict({"state": {}, "param_groups": shaped})
        self._show_leaves()


def _row_modules(model: nn.Module) -> list[RowModule]:
    return [module for module in model.modules() if isinstance(module, RowModule)]


def _shared_tables(model: nn.Module) -> dict[str, RowTable]:
    """Let all modules of a table's name share one RowTable; raise InvalidRequest where they want different ones."""
    shared: dict[str, RowTable] = {}
    for module in _row_modules(model):
        for name, table in module.tables.items():
            shared.setdefault(name, table).check_same(table)
    for module in _row_modules(model):
        module.share(shared)
    return shared


def _hook(model: nn.Module, dense: DenseBlocks, client: Client) -> None:
    """Hook the model and each part of it that has parameters of its own: a part may be called alone, such as one of two towers."""
    trained, fetch = set(dense.parameters), FetchFirst(dense, client)
    for module in model.modules():
        if module is model or not trained.isdisjoint(module.parameters(recurse=False)):
            module.register_forward_pre_hook(fetch)
            module.register_state_dict_pre_hook(fetch)  # type: ignore[no-untyped-call]
            module.register_load_state_dict_post_hook(_refuse_load)  # type: ignore[no-untyped-call]


def _refuse_load(module: nn.Module, _: Any) -> None:
    """The next fetch would bring the servers' values back, without a word."""
    raise InvalidRequest("load_state_dict", "called after the ServerOptimizer was made", "called before it, or ps.load(model, path) used")


def _numbers(optimizer: Optimizer) -> dict[str, Any]:
    return {field.name: getattr(optimizer, field.name) for field in fields(optimizer)}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor | np.generic) else value
