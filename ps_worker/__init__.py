"""The worker's side of Rowstead: `import ps_worker as ps`. It loads neither torch nor gRPC.

    connecting.py     connect
    client.py         Client: what a training loop calls; inputs.py what it takes, later_pulls.py reads for steps to come, capturing.py what
                      it resumes from, meeting.py barriers
    protocol/         what a worker says to the cluster and when; asking.py how it insists, retry.py for how long; no world in any of them
    router.py         ids to one request per server, and rows back; exporting.py a whole table from all servers, table_parts.py its parts
    driver.py         runs the protocol over a transport; transport/ what carries the calls
    connection.py     a client's threads and its transport, until it is closed; at_exit.py what becomes of those that nobody closed,
                      leasing.py how the coordinator hears that it lives
    local_cluster.py  a cluster of subprocesses on this machine; child.py one of them, process_log.py what it prints,
                      post.py what starts it again, restarts.py how often, held_port.py where it listens each time
    keeping/          save, load and to_torch; records.py rows with their state, as a client exports and restores them;
                      roots.py where checkpoints lie
    prefetch/         reading ahead of the training: rows that travel while the batch before computes
    resume/           what a worker needs to go on after a restart
    profiling/        where a step's time goes: ps.profile
    session.py        init and the session: a training script's place in its job, which place.py reads from the environment
    launch/           `rowstead launch` and `ps-worker`; cli/ the command `rowstead`

Read protocol/ with docs/protocol.md beside it: it is the worker's half of what ps_server/shard/shard.py does.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ps_proto.errors import (
    BarrierTimeout,
    CheckpointFailed,
    ClientClosed,
    ClusterFailed,
    CorruptFile,
    InternalError,
    InvalidRequest,
    JobEnded,
    JobMismatch,
    LoadFailed,
    NoCheckpoint,
    NoSavedModel,
    NotOwner,
    ObserverCannot,
    OptimizerFailed,
    Overloaded,
    ParameterServerError,
    PluginFailed,
    PushPartlyTaken,
    Recovering,
    RequestTooLarge,
    RolledBack,
    RowsUnset,
    StaleIncarnation,
    StalenessTimeout,
    StaleTimeline,
    StepPassed,
    StorageFailed,
    TableFull,
    TableMismatch,
    UnfinishedPush,
    UnknownTable,
    Unreachable,
)
from ps_proto.values import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Assigned,
    Async,
    BoundedStaleness,
    ClippedByRowNorm,
    ClippedByValue,
    Constant,
    Decorated,
    DecoupledWeightDecay,
    DelayCompensated,
    HeNormal,
    HeUniform,
    Initializer,
    Lion,
    Mode,
    Normal,
    Optimizer,
    RMSprop,
    RowWiseAdagrad,
    StalenessScaled,
    Sync,
    TableSpec,
    TruncatedNormal,
    Uniform,
    XavierNormal,
    XavierUniform,
    Zeros,
    register_initializer,
    register_optimizer,
)

if TYPE_CHECKING:
    from ps_proto.requests import CheckpointTaken, Stats
    from ps_worker import nn as nn
    from ps_worker import optim as optim
    from ps_worker.client import Client
    from ps_worker.connecting import connect
    from ps_worker.driver import Handle
    from ps_worker.keeping.loading import load as load
    from ps_worker.keeping.saving import save as save
    from ps_worker.keeping.serving import to_torch as to_torch
    from ps_worker.local_cluster import LocalCluster, local_cluster
    from ps_worker.optim.clipping import clip_grad_norm_ as clip_grad_norm_
    from ps_worker.prefetch import prefetch as prefetch
    from ps_worker.profiling.profile import Profile as Profile
    from ps_worker.profiling.profile import profile as profile
    from ps_worker.records import Records
    from ps_worker.session import Session, init
    from ps_worker.session import current_session as session

# What needs gRPC, numba or torch is imported when it is first used: name -> the module that has it, and as what where that differs.
_HOMES = {
    "CheckpointTaken": "ps_proto.requests",
    "Client": "ps_worker.client",
    "Handle": "ps_worker.driver",
    "LocalCluster": "ps_worker.local_cluster",
    "Profile": "ps_worker.profiling.profile",
    "Records": "ps_worker.records",
    "Session": "ps_worker.session",
    "Stats": "ps_proto.requests",
    "clip_grad_norm_": "ps_worker.optim.clipping",
    "connect": "ps_worker.connecting",
    "init": "ps_worker.session",
    "load": "ps_worker.keeping.loading",
    "local_cluster": "ps_worker.local_cluster",
    "prefetch": "ps_worker.prefetch",
    "profile": "ps_worker.profiling.profile",
    "save": "ps_worker.keeping.saving",
    "session": "ps_worker.session:current_session",
    "to_torch": "ps_worker.keeping.serving",
}
_ROOMS = ("nn", "optim")  # the subpackages that users name

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Assigned",
    "Async",
    "BarrierTimeout",
    "BoundedStaleness",
    "CheckpointFailed",
    "CheckpointTaken",
    "Client",
    "ClientClosed",
    "ClippedByRowNorm",
    "ClippedByValue",
    "ClusterFailed",
    "Constant",
    "CorruptFile",
    "Decorated",
    "DecoupledWeightDecay",
    "DelayCompensated",
    "Handle",
    "HeNormal",
    "HeUniform",
    "Initializer",
    "InternalError",
    "InvalidRequest",
    "JobEnded",
    "JobMismatch",
    "Lion",
    "LoadFailed",
    "LocalCluster",
    "Mode",
    "NoCheckpoint",
    "NoSavedModel",
    "Normal",
    "NotOwner",
    "ObserverCannot",
    "Optimizer",
    "OptimizerFailed",
    "Overloaded",
    "ParameterServerError",
    "PluginFailed",
    "Profile",
    "PushPartlyTaken",
    "RMSprop",
    "Records",
    "Recovering",
    "RequestTooLarge",
    "RolledBack",
    "RowWiseAdagrad",
    "RowsUnset",
    "Session",
    "StaleIncarnation",
    "StaleTimeline",
    "StalenessScaled",
    "StalenessTimeout",
    "Stats",
    "StepPassed",
    "StorageFailed",
    "Sync",
    "TableFull",
    "TableMismatch",
    "TableSpec",
    "TruncatedNormal",
    "UnfinishedPush",
    "Uniform",
    "UnknownTable",
    "Unreachable",
    "XavierNormal",
    "XavierUniform",
    "Zeros",
    "connect",
    "init",
    "local_cluster",
    "profile",
    "register_initializer",
    "register_optimizer",
    "session",
]


class _Package(ModuleType):
    """This package, whose attributes of _HOMES and _ROOMS are imported when they are asked for."""

    def __getattr__(self, name: str) -> Any:
        if name in _ROOMS:
            return import_module(f"{__name__}.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = _HOMES[name].partition(":")
        value = getattr(import_module(module), attribute or name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # The import of a module binds it here under its name, where the function of that name belongs: session, local_cluster.
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_HOMES, *_ROOMS})


sys.modules[__name__].__class__ = _Package
