"""`rowstead status`: look at a cluster."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from ps_proto.address import check_address
from ps_proto.errors import InvalidRequest, ParameterServerError, PluginFailed
from ps_proto.plugins import load_plugins
from ps_worker.cli.cluster_report import ClusterReport, ServerReport, TableReport, collect

UNREACHABLE, WRONG_USAGE = 1, 2  # the exit codes


def status(
    coordinator: Annotated[str, Parameter(env_var="ROWSTEAD_COORDINATOR", help="The coordinator's host:port.")],
    *,
    as_json: Annotated[bool, Parameter("--json", negative=(), help="Print JSON instead of a table.")] = False,
    timeout_s: Annotated[float, Parameter(help="How long to wait for each process, in seconds.")] = 5.0,
) -> int:
    """Show the servers, tables and job of a cluster."""
    try:
        check_address("the coordinator's address", coordinator)
        load_plugins(os.environ)
    except (InvalidRequest, PluginFailed) as error:
        print(error, file=sys.stderr)
        return WRONG_USAGE
    from ps_worker.transport.grpc import GrpcTransport  # gRPC takes a while to import: not for --help

    transport = GrpcTransport()
    try:
        report = collect(transport.call, coordinator, timeout_s)
    except ParameterServerError as error:
        print(error, file=sys.stderr)
        return UNREACHABLE
    finally:
        transport.close()
    print(json.dumps(asdict(report), indent=2) if as_json else render(report))
    return 0


def render(report: ClusterReport) -> str:
    """Return the report as lines for people."""
    serving = sum(server.state == "serving" for server in report.servers)
    lines = [f"Cluster of the coordinator at {report.coordinator}: {serving} of {report.servers_expected} servers serve, {_map(report)}."]
    lines += [_job(report), *_past(report)]
    if report.servers:
        lines += ["", *_columns([_SERVER_HEADER, *map(_server_cells, report.servers)], right={2, 3, 4})]
        lines += [f"{server.name}: {server.detail}" for server in report.servers if server.detail]
    if report.tables:
        lines += ["", *_columns([_TABLE_HEADER, *map(_table_cells, report.tables)], right={1, 4})]
    return "\n".join(lines)


_SERVER_HEADER = ("SERVER", "ADDRESS", "INCARNATION", "BUCKETS", "ROWS", "STATE")
_TABLE_HEADER = ("TABLE", "DIM", "OPTIMIZER", "MODE", "ROWS")


def _server_cells(server: ServerReport) -> tuple[str, ...]:
    rows = sum(server.rows.values())
    return (server.name, server.address, str(server.incarnation), f"{server.buckets:,}", f"{rows:,}", server.state)


def _table_cells(table: TableReport) -> tuple[str, ...]:
    return (table.name, f"{table.dim:,}", table.optimizer, table.mode or "the job's", f"{table.rows:,}")


def _map(report: ClusterReport) -> str:
    return f"shard map {report.map_version}" if report.map_version else "no shard map yet"


def _job(report: ClusterReport) -> str:
    if report.mode is None:
        return "No job runs."
    ranks = ", ".join(str(rank) for rank in sorted(report.ranks)) or "none"
    return f"Job: mode {report.mode}, world size {report.world_size}, ranks taking part: {ranks}."


def _past(report: ClusterReport) -> list[str]:
    """Return what there is to say of what was lost and of what is kept."""
    lines = []
    if report.lost:
        lines.append(f"Not heard of for longer than their lease: rank {', '.join(map(str, sorted(report.lost)))}.")
    if report.timeline:
        lines.append(f"It went back to a checkpoint, or to its start, and is on timeline {report.timeline}.")
    if report.checkpoint:
        lines.append(f"Last complete checkpoint: {report.checkpoint}.")
    if report.notice:
        lines.append(report.notice)
    return lines


def _columns(rows: Sequence[Sequence[str]], right: set[int]) -> list[str]:
    """Return the rows as aligned lines; `right`: the columns that hold numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = (
        [cell.rjust(width) if index in right else cell.ljust(width) for index, (cell, width) in enumerate(zip(row, widths, strict=True))]
        for row in rows
    )
    return ["  ".join(cells).rstrip() for cells in aligned]
