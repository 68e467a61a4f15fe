"""`rowstead coordinator`, which is also `python -m ps_server.coordinator`."""

from ps_server.coordinator.settings import CoordinatorSettings
from ps_server.edge.command_line import run_alone
from ps_server.edge.early_stop import exit_at_once_on_signals
from ps_server.edge.flags import with_flags
from ps_server.edge.log import quiet_grpc


@with_flags(CoordinatorSettings)
def coordinator(settings: CoordinatorSettings) -> int:
    """Run the coordinator: it knows the servers, the tables and the job, and serves until SIGTERM or Ctrl-C."""
    exit_at_once_on_signals()
    quiet_grpc()
    from ps_server.coordinator.process import run_coordinator  # gRPC takes a while to import: not for --help, not for a wrong flag

    return run_coordinator(settings)


def main() -> None:
    """Run `rowstead coordinator`."""
    run_alone("rowstead coordinator", coordinator)
