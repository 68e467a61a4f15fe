"""`rowstead`: the command line of users and operators.

verbs.py finds what `rowstead` can do, by entry points, so that the verbs of the servers' side are here without being imported; status.py is
the verb that looks at a cluster, checkpoint.py the one that saves it; script_tokens.py tells the flags of `launch` and `worker` from those
of the script that they run.
"""

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from ps_proto.release import installed_release
from ps_worker.cli.script_tokens import mark_script
from ps_worker.cli.verbs import find_verbs

WRONG_USAGE = 2  # the exit code
SCRIPT_VERBS = ("launch", "worker")


def build_app() -> App:
    """Return the command line with every verb that is installed; a verb's module is imported once it is asked for."""
    app = App(name="rowstead", help="A parameter server for PyTorch: run it, and look at it.", version=installed_release)
    for verb in find_verbs():
        app.command(verb.import_path, name=verb.name, help=verb.summary)
    return app


def main() -> None:
    """Run `rowstead` with this process's arguments and exit with the verb's code, or 2 where the arguments make no sense."""
    verb, rest = sys.argv[1:2], sys.argv[2:]
    _run(build_app(), [*verb, *(mark_script(rest) if verb and verb[0] in SCRIPT_VERBS else rest)])


def worker_main() -> None:
    """Run `ps-worker` in the same way."""
    from ps_worker.launch.command import worker

    app = App(name="ps-worker", help=worker.__doc__, version=installed_release)
    app.default(worker)
    _run(app, mark_script(sys.argv[1:]))


def _run(app: App, tokens: Sequence[str]) -> None:
    try:
        app(tokens, exit_on_error=False)
    except CycloptsError:
        sys.exit(WRONG_USAGE)  # cyclopts has printed what is wrong
