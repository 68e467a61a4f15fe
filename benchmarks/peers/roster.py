"""Which peers there are, what each needs, and how to install it."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Final

from benchmarks.peers.loopback import may_have_own_network


@dataclass(frozen=True, slots=True)
class Peer:
    """One line-up of a peer. Nothing of it is imported here: the process that measures stays as a user's."""

    name: str
    module: str  # in this package; has `opened(*options)`, a context manager that yields a Store
    distributions: tuple[str, ...]  # any one of them has it
    install: str
    ours: tuple[str, ...]  # the transports of ours that stand beside it, unless others are asked for
    notes: Mapping[str, str]  # what it does in each case that it can do
    options: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()  # to be found on PATH
    listens_everywhere: bool = False  # so that it runs in a network namespace that has loopback and nothing else
    environment: Mapping[str, str] = field(default_factory=dict)

    def version(self) -> str | None:
        """Return the version that is installed, None where there is none."""
        for name in self.distributions:
            try:
                return version(name)
            except PackageNotFoundError:
                continue
        return None

    def absent(self) -> str | None:
        """Return what is missing and how to get it, None where all is there."""
        if self.version() is None:
            return f"not installed: {self.install}"
        for program in self.programs:
            if shutil.which(program) is None:
                return f"no {program} on PATH: install it from your system's packages, as in 'apt install {program}'"
        if self.listens_everywhere and not may_have_own_network():
            return "it listens on every interface, and this system lets us make no network namespace (unshare -n) to keep it on loopback"
        return None


_TORCH_NOTES: Final = MappingProxyType(
    {
        "W1": "index_select on the server",
        "W2": "torch.optim.Adagrad, sparse gradient, ids sorted beforehand and marked as coalesced",
        "W3": "one tensor, torch.optim.SGD",
        "W4": "index_select on the server",
    }
)
_REDIS_NOTES: Final = MappingProxyType(
    {
        "W1": "MGET of keys made beforehand, joined into one array",
        "W2": "no optimizer: a blind MSET of the rows",
        "W4": "MGET of keys made beforehand, joined into one array",
    }
)
_TORCH_LOOPBACK: Final = MappingProxyType({"TP_SOCKET_IFNAME": "lo"})

PEERS: Final = (
    Peer(
        name="torch.rpc",
        module="torch_rpc",
        distributions=("torch",),
        install="pip install torch",
        ours=("arena",),
        notes=_TORCH_NOTES,
        environment=_TORCH_LOOPBACK,
    ),
    Peer(
        name="torch.rpc-tcp",
        module="torch_rpc",
        distributions=("torch",),
        install="pip install torch",
        ours=("arena", "tcp"),
        notes=_TORCH_NOTES,
        options=("uv", "basic"),
        environment=_TORCH_LOOPBACK,
    ),
    Peer(
        name="ray",
        module="ray_actor",
        distributions=("ray",),
        install="pip install ray",
        ours=("arena",),
        notes=MappingProxyType(
            {
                "W1": "np.take in an actor",
                "W2": "Adagrad in numpy in the actor",
                "W3": "one array, SGD in numpy; what is pulled is a read-only view",
                "W4": "np.take in an actor",
            }
        ),
        listens_everywhere=True,
        environment=MappingProxyType({"RAY_USAGE_STATS_ENABLED": "0"}),
    ),
    Peer(
        name="tensorflow",
        module="tensorflow_ps",
        distributions=("tensorflow-cpu", "tensorflow"),
        install="pip install tensorflow-cpu",
        ours=("arena", "tcp"),
        notes=MappingProxyType(
            {
                "W1": "ResourceGather on a ps task over grpc",
                "W2": "ResourceSparseApplyAdagradV2",
                "W3": "one variable, ResourceApplyGradientDescent",
                "W4": "ResourceGather on a ps task over grpc",
            }
        ),
        listens_everywhere=True,
        environment=MappingProxyType({"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}),
    ),
    Peer(
        name="redis",
        module="redis_mset",
        distributions=("redis",),
        install="pip install 'redis[hiredis]', and redis-server from your system's packages",
        ours=("arena", "tcp"),
        notes=_REDIS_NOTES,
        options=("tcp",),
        programs=("redis-server",),
    ),
    Peer(
        name="redis-unix",
        module="redis_mset",
        distributions=("redis",),
        install="pip install 'redis[hiredis]', and redis-server from your system's packages",
        ours=("arena", "unix"),
        notes=_REDIS_NOTES,
        options=("unix",),
        programs=("redis-server",),
    ),
)
