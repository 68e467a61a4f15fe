"""`ps-server`, which is also `rowstead server` and `python -m ps_server`."""

from ps_server.edge.command_line import run_alone
from ps_server.edge.early_stop import exit_at_once_on_signals
from ps_server.edge.flags import with_flags
from ps_server.edge.log import quiet_grpc
from ps_server.edge.settings import ServerSettings


@with_flags(ServerSettings)
def server(settings: ServerSettings) -> int:
    """Run a server: it holds a share of the rows and serves them until SIGTERM or Ctrl-C."""
    exit_at_once_on_signals()
    quiet_grpc()
    from ps_server.edge.process import run_server  # gRPC and numba take a second to import: not for --help, not for a wrong flag

    return run_server(settings)


def main() -> None:
    """Run `ps-server`."""
    run_alone("ps-server", server)
