"""A torch optimizer whose arithmetic is the servers': step() pushes the gradients and ends the step."""

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from ps_proto.errors import InvalidRequest, PushPartlyTaken
from ps_proto.requests import Ids, Rows
from ps_proto.values import Adagrad, Adam, Mode
from ps_worker.client import Client
from ps_worker.nn.compiling import not_compiled
from ps_worker.nn.naming import named_parameters
from ps_worker.nn.reading import RowModule
from ps_worker.nn.table import RowTable
from ps_worker.optim.assignment import Dense, Sparse, dense_parts, sparse_optimizers
from ps_worker.optim.dense import DenseBlocks, fetch
from ps_worker.optim.fetching import FetchFirst, check_whole, fetching_hooks
from ps_worker.optim.gradients import gradients
from ps_worker.optim.in_flight import StepInFlight, check_may_overlap
from ps_worker.optim.resuming import Buffers, register, warn_of_dense_weights
from ps_worker.profiling.stopwatch import GRADIENTS, span
from ps_worker.session import current_session

_DENSE, _SPARSE = Adam(), Adagrad()


class ServerOptimizer(torch.optim.Optimizer):
    """Trains `model` on the servers: embeddings of ps.nn with `sparse`, everything else that wants a gradient with `dense`.

        optimizer = ps.optim.ServerOptimizer(model, dense=ps.Adam(lr=1e-3), sparse=ps.Adagrad(lr=1e-2))
        loss.backward(); optimizer.step(); optimizer.zero_grad()

    It creates the tables, fetches the dense weights (rank 0's start values, or what the servers have) and, before each forward or
    state_dict() of the model, those of the step. `param_groups` has one group for each dense table and for each table of embeddings; the
    `params` of the latter are the step's row leaves, from backward to zero_grad(). Hyperparameters in the groups count at the next step(),
    so learning-rate schedulers work; in synchronous mode every rank must set the same.

    torch.amp.GradScaler works as with torch's own: unscale_() reaches the rows, and where it finds an inf, step() pushes nothing and ends
    the step. For its sake the `params` of the first group have a zero more, which is nobody's and has a gradient of zero.

    dense   an optimizer, or a list of (params, optimizer) that has each parameter once: each pair is a table of its own. Or None: the dense
            parameters are left to an optimizer of yours, such as torch's beside DistributedDataParallel.
    sparse  an optimizer, or a mapping from table to optimizer; "*" in it is for all tables that it does not name.
    dense_name, dense_mode   the dense tables are called `dense_name`, `dense_name`.1, `dense_name`.2 and so on, in the order of the list,
            and may have a mode of their own; a second model of the job needs another name.

    overlap_pushes   step() returns while its push travels and is applied; the next step() waits for it, and raises what became of it. Only
            in jobs without synchronous tables: what a step reads may lack this worker's last push too (docs/modes.md).

    A second optimizer of a model takes the first one's place. DistributedDataParallel and torch.compile around a model change no names.

    The dense weights are those of the step once the model, or a part of it, is called; not where `model.forward` or a parameter is used
    directly. step() refuses gradients that it sees to come from older weights. Between step() and the next call they are those of the step
    before: `fetch()` brings them, for an average of weights, say. Freeze, unfreeze and load_state_dict before the optimizer is made.
    """

    # torch's GradScaler looks for it, and then calls step() in each step, with `found_inf` and perhaps `grad_scale` set.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        model: nn.Module,
        *,
        dense: Dense = _DENSE,
        sparse: Sparse = _SPARSE,
        dense_mode: Mode | None = None,
        dense_name: str = "dense",
        overlap_pushes: bool = False,
        client: Client | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InvalidRequest("model", type(model).__name__, "the model itself, as in ServerOptimizer(model)")
        named = list(named_parameters(model))
        parts = dense_parts(dense, named, dense_name)
        self.client = client or current_session().client
        self.tables = _shared_tables(model)
        sparse_of = sparse_optimizers(sparse, self.tables)
        if not parts and not self.tables:
            want = "a module with embeddings of ps.nn" + ("" if dense is None else ", or with parameters")
            raise InvalidRequest("model", type(model).__name__, want)
        taken = [part.table for part in parts if part.table in self.tables]
        if taken:
            raise InvalidRequest("dense_name", f"{taken[0]!r}, which is an embedding's table", "another name")
        self.dense = tuple([DenseBlocks(part.parameters, part.table, dense_mode) for part in parts])
        replaced = fetching_hooks(model)
        check_whole(model, replaced)
        self._settings = {part.table: part.optimizer for part in parts} | sparse_of
        params: dict[str, list[Tensor]] = {blocks.name: [*blocks.parameters] for blocks in self.dense}
        groups = [{"params": params.get(name, []), "table": name, **it.hyperparameters()} for name, it in self._settings.items()]
        self._anchor = _anchor(self.dense, model)
        if self.dense:
            groups[0]["params"].append(self._anchor)
        else:
            next(iter(self.tables.values())).leaves.keep([self._anchor])
        super().__init__(groups, defaults=_cycled(groups))
        self._frozen = [] if dense is None else [parameter for _, parameter in named if not parameter.requires_grad]
        self._pushed_at: int | None = None  # the client's turn in which the push was sent, until its step is ended
        self._in_flight = StepInFlight(self.client)
        self.overlap_pushes = overlap_pushes
        self._show_leaves()
        for table in self.tables.values():
            table.bind(self.client)
            self.client.create_table(table.spec(sparse_of[table.name]))
        for blocks in self.dense:
            blocks.create(self.client, self._settings[blocks.name])
        if overlap_pushes:
            check_may_overlap(self.client)
        for hook in replaced:
            hook.remove()
        self._hook = FetchFirst(self.dense, self.client)
        if self.dense:
            self._hook.install(model)
        for module in _row_modules(model):
            module.optimizer_dense = self.dense
            module.is_hybrid = dense is None
        self._buffers = Buffers(model)
        register(self, self._buffers, dense_name if self.dense else ",".join(self.tables), self.client)
        if dense is None and any(parameter.requires_grad for _, parameter in named):
            warn_of_dense_weights()

    def _show_leaves(self) -> None:
        """Let each table's group show the list that backward adds to: add_param_group has made a copy."""
        for group in self.param_groups:
            if group["table"] in self.tables:
                group["params"] = self.tables[group["table"]].leaves.shown

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse what is not of the model as the optimizer was made for it."""
        if "table" not in param_group:
            raise InvalidRequest("param_group", "added", "in the model before the optimizer is made: tables do not grow by parameters")
        super().add_param_group(param_group)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Push the gradients of the leaves and of the dense parameters, once for all tables, and end the step.

        A rank without any gradient ends the step all the same: the others wait for it. So does one whose GradScaler found a gradient that
        is not finite: it pushes nothing, while the mean of a synchronous step still is over all ranks. After Unreachable or a timeout call
        it again, with no zero_grad() in between: it goes on where it was, and what it pushed counts once.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        try:
            self._step()
        except BaseException:
            for name in ("grad_scale", "found_inf"):  # GradScaler takes them back after a step that succeeds alone
                vars(self).pop(name, None)
            raise
        return loss

    @not_compiled
    def _step(self) -> None:
        self._in_flight.land()
        if self.overlap_pushes:
            self._begin_step()
            return
        if self._pushed_at is not None:
            self.client.retry_push()
        elif self._has_inf():
            self._note_pushed()
        else:
            self._tell_hyperparameters()
            self._push()
        if self._pushed_at == self.client.turn:  # else end_step() could not reach all servers: they hear it with the next request
            self.client.end_step()
        self._pushed_at = None

    def _begin_step(self) -> None:
        """Queue the push and the end of the step."""
        pushes = {}
        if not self._has_inf():
            self._tell_hyperparameters()
            pushes = self._gradients()
        self._in_flight.take_off(pushes)
        for table in self.tables.values():
            table.leaves.mark_pushed()

    def fetch(self) -> None:
        """Bring the dense parameters to the newest values that this step may see; waits as a pull does."""
        fetch(self.dense, self.client)

    def _check_gradients(self) -> None:
        if any(parameter.grad is not None for parameter in self._frozen):
            want = "unfrozen before the ServerOptimizer is made: the servers do not have it"
            raise InvalidRequest("a parameter with a gradient", "one that was frozen", want)
        if self._hook.is_removed:
            raise InvalidRequest("ServerOptimizer", "replaced by a newer one of its model", "the newest one that was made")
        for blocks in self.dense:
            if blocks.has_gradient and blocks.turn != self.client.turn:
                got = f"of the weights of step {blocks.turn}, in step {self.client.turn}"
                want = (
                    "of this step's: call the model or its parts, not .forward() or their parameters, zero_grad() after each step(), and "
                    "torch.compile for a part before the optimizer is made; models that share a loss need one ServerOptimizer together, as "
                    "of an nn.ModuleDict, since each step() ends the step"
                )
                raise InvalidRequest("dense gradients", got, want)

    def _gradients(self) -> dict[str, tuple[Ids, Rows]]:
        """Return what to push, by table."""
        self._check_gradients()
        with span(GRADIENTS):
            return gradients(self.tables.values(), self.dense, self._unscaling())

    def _push(self) -> None:
        pushes = self._gradients()
        try:
            if pushes:
                self.client.push(pushes)
        except (PushPartlyTaken, ConnectionError, TimeoutError):  # some of it may have arrived, and it keeps its name
            self._note_pushed()
            raise
        self._note_pushed()

    def _note_pushed(self) -> None:
        self._pushed_at = self.client.turn
        for table in self.tables.values():
            table.leaves.mark_pushed()

    def _has_inf(self) -> bool:
        """Return whether the GradScaler that calls step() has found a gradient that is not finite."""
        return float(vars(self).get("found_inf", 0.0)) > 0

    def _unscaling(self) -> float:
        """Return what the gradients are still to be multiplied with: 1 unless a GradScaler calls step() and has not unscaled them."""
        scale = vars(self).get("grad_scale")
        return 1.0 if scale is None else 1.0 / float(scale)

    def gradients_now(self) -> list[torch.Tensor]:
        """Return the gradients that backward has left since the last zero_grad()."""
        params = [param for group in self.param_groups for param in group["params"] if param is not self._anchor]
        return [param.grad for param in params if param.grad is not None]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and the row leaves with theirs, whatever `set_to_none` says of the others."""
        for table in self.tables.values():
            table.leaves.clear()
        super().zero_grad(set_to_none)
        self._anchor.grad = torch.zeros_like(self._anchor)
        self._pushed_at = None

    def _tell_hyperparameters(self) -> None:
        for group in self.param_groups:
            have = self._settings[group["table"]]
            numbers = {name: _plain(group[name]) for name in have.hyperparameters()}
            if numbers != have.hyperparameters():
                want = have.with_hyperparameters(numbers)
                self.client.set_optimizer(group["table"], want)
                self._settings[group["table"]] = want

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the hyperparameters of a `state_dict()`; the state itself is the servers', and ps.load brings it back.

        Gradients are forgotten: where the training goes on after a restart, those there are belong to passes that made no step.
        """
        got, want = ([group.get("table") for group in groups] for groups in (state_dict["param_groups"], self.param_groups))
        if got != want:
            raise InvalidRequest("tables of the state_dict", str(got), f"{want}, as of this optimizer")
        pairs = list(zip(state_dict["param_groups"], self.param_groups, strict=True))
        for saved, mine in pairs:
            numbers = self._settings[mine["table"]].hyperparameters()
            if not saved.keys() >= numbers.keys():
                raise InvalidRequest(f"state_dict of table {mine['table']!r}", str(sorted(saved)), f"one that has {sorted(numbers)}")
        shaped = [{**saved, "params": list(range(len(mine["params"])))} for saved, mine in pairs]  # leaves of then are none of now
        super().load_state_dict({"state": {}, "param_groups": shaped})
        self._show_leaves()
        self.zero_grad()


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


def _anchor(dense: Sequence[DenseBlocks], model: nn.Module) -> nn.Parameter:
    """Return a zero with a gradient of zero, where the model computes.

    A GradScaler must see a gradient in each step, or it raises; a batch may have none.
    """
    place = dense[0].parameters[0] if dense else _row_modules(model)[0].place
    anchor = nn.Parameter(torch.zeros(1, device=place.device))
    anchor.grad = torch.zeros_like(anchor)
    return anchor


def _cycled(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the defaults in which OneCycleLR and CyclicLR look for what they may cycle: what all groups have."""
    name = next((name for name in ("betas", "momentum") if all(group.get(name) for group in groups)), None)
    return {} if name is None else {name: groups[0][name]}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor | np.generic) else value
