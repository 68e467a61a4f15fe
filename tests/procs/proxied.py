"""A coordinator and servers as processes, with a faulty proxy before each server."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from faulty_proxy import FaultyProxy
from procs.started import started


@dataclass(frozen=True)
class ProxiedCluster:
    address: str
    proxies: list[FaultyProxy]

    def faults(self, kind: str) -> int:
        """Return how often the proxies did `kind`."""
        return sum(proxy.faults[kind] for proxy in self.proxies)


@contextmanager
def proxied_cluster(folder: Path, servers: int, seed: int, lose: float, double: float) -> Iterator[ProxiedCluster]:
    """Run it for the length of the block. Orders of the coordinator go through the proxies too."""
    with ExitStack() as stack:
        coordinator = stack.enter_context(started(folder, "coordinator", "coordinator", f"--servers={servers}"))
        proxies = [stack.enter_context(FaultyProxy(seed + number, lose, double)) for number in range(servers)]
        for number, proxy in enumerate(proxies):
            name = f"server-{number}"
            arguments = ("server", f"--name={name}", f"--coordinator={coordinator.address}", f"--advertise={proxy.address}")
            proxy.target = stack.enter_context(started(folder, name, *arguments)).address
        yield ProxiedCluster(coordinator.address, proxies)
