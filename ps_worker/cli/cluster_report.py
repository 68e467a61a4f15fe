"""A cluster as an operator sees it: asked of the coordinator, then of every server at once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ps_proto.errors import ParameterServerError, Unreachable
from ps_proto.requests import Cluster, Fence, GetCluster, GetStats, Stats

Call = Callable[[str, object, float, str], object]  # (address, request, timeout_s, peer) -> reply; raises ParameterServerError


@dataclass(frozen=True)
class ServerReport:
    """One server. `state`: "serving", "unreachable" or "refusing"; `detail`: the error where it does not serve."""

    name: str
    address: str
    incarnation: int
    weight: float
    buckets: int
    state: str
    detail: str
    rows: dict[str, int]  # table name -> rows held here


@dataclass(frozen=True)
class TableReport:
    """One table. `mode`: None follows the job; `rows` counts those on the servers that answered."""

    name: str
    dim: int
    optimizer: str
    mode: str | None
    rows: int


@dataclass(frozen=True)
class ClusterReport:
    """The whole cluster. `map_version`: 0 until the expected servers are there. `ranks`: rank -> incarnation, of those taking part now.

    `lost`: the ranks whose lease has run out. `timeline`: how often it went back to a checkpoint. `checkpoint`: the number of the last
    complete one, 0: none. `notice`: what an operator must know.
    """

    coordinator: str
    servers_expected: int
    map_version: int
    mode: str | None
    world_size: int
    ranks: dict[int, int]
    lost: list[int]
    timeline: int
    checkpoint: int
    notice: str
    servers: list[ServerReport]
    tables: list[TableReport]


def collect(call: Call, coordinator: str, timeout_s: float) -> ClusterReport:
    """Ask the coordinator at `coordinator`, then all servers at once; waits at most twice `timeout_s`.

    Raises ParameterServerError where the coordinator does not answer; a server that does not is part of the report.
    """
    cluster = call(coordinator, GetCluster(), timeout_s, "The coordinator")
    assert isinstance(cluster, Cluster)
    servers = _ask_servers(call, cluster, timeout_s)
    return ClusterReport(
        coordinator=coordinator,
        servers_expected=cluster.servers_expected,
        map_version=_map_version(cluster),
        mode=cluster.mode.kind if cluster.mode is not None else None,
        world_size=cluster.world_size,
        ranks=dict(cluster.ranks),
        lost=list(cluster.lost),
        timeline=cluster.timeline,
        checkpoint=cluster.checkpoint,
        notice=cluster.notice,
        servers=servers,
        tables=[
            TableReport(
                name=spec.name,
                dim=spec.dim,
                optimizer=spec.optimizer.label,
                mode=spec.mode.kind if spec.mode is not None else None,
                rows=sum(server.rows.get(spec.name, 0) for server in servers),
            )
            for spec in sorted(cluster.tables, key=lambda spec: spec.name)
        ],
    )


def _map_version(cluster: Cluster) -> int:
    return cluster.shard_map.version if cluster.shard_map is not None else 0


def _ask_servers(call: Call, cluster: Cluster, timeout_s: float) -> list[ServerReport]:
    in_map = {server.name: server for server in cluster.shard_map.servers} if cluster.shard_map is not None else {}
    buckets = dict(zip(in_map, cluster.shard_map.counts().tolist(), strict=True)) if cluster.shard_map is not None else {}
    addresses = {name: server.address for name, server in in_map.items()} | cluster.servers

    def ask(name: str) -> ServerReport:
        state, detail, rows = "serving", "", {}
        try:
            stats = call(addresses[name], GetStats(Fence(_map_version(cluster))), timeout_s, name)
        except Unreachable as error:
            state, detail = "unreachable", str(error)
        except ParameterServerError as error:
            state, detail = "refusing", str(error)
        else:
            assert isinstance(stats, Stats)
            rows = {table: int(numbers["rows"]) for table, numbers in stats.tables.items()}
        server = in_map.get(name)
        incarnation, weight = (server.incarnation, server.weight) if server is not None else (0, 0.0)
        return ServerReport(name, addresses[name], incarnation, weight, buckets.get(name, 0), state, detail, rows)

    with ThreadPoolExecutor(max_workers=32) as pool:
        return list(pool.map(ask, sorted(addresses)))
