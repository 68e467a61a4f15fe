"""One command as a program of its own."""

import sys
from collections.abc import Callable

from cyclopts import App, CycloptsError

from ps_proto.release import installed_release
from ps_server.edge.flags import WRONG_USAGE


def run_alone(program: str, command: Callable[..., int]) -> None:
    """Run `command` with this process's arguments and exit with the code that it returns, or 2 where the arguments make no sense."""
    app = App(name=program, help=command.__doc__, version=installed_release)
    app.default(command)
    try:
        app(sys.argv[1:], exit_on_error=False)
    except CycloptsError:
        sys.exit(WRONG_USAGE)  # cyclopts has printed what is wrong
