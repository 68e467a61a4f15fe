"""Plugins: modules whose import registers a user's own optimizers and initializers (values/registering.py).

Each process of a cluster imports the same ones at its start, a worker when it connects. They are named in three ways:

    installed   the entry points of the group `rowstead.plugins`, of any distribution: each names a module
    told        the setting `plugins` of servers and coordinator
    variable    ROWSTEAD_PLUGINS, modules with commas between them, for every process that inherits it
"""

import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points

from ps_proto.errors import InvalidRequest, PluginFailed

GROUP = "rowstead.plugins"
VARIABLE = "ROWSTEAD_PLUGINS"

_AROUND = {"importlib", "ps_proto", "ps_server", "sharding"}  # what imports a plugin, and what it calls to register its classes
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def load_plugins(environment: Mapping[str, str], told: Sequence[str] = ()) -> None:
    """Import every plugin; one that is imported already costs nothing. PluginFailed names the first that cannot be imported."""
    for module, origin in _named(environment, told):
        try:
            import_module(module)
        except (Exception, SystemExit) as error:  # a module may be a script that was not meant to be imported
            raise PluginFailed(module, origin, f"{type(error).__name__}: {error}{_place(error)}") from error


def join_names(field: str, modules: Sequence[str]) -> str:
    """Return modules as a text with commas between them; InvalidRequest for `field` where they are no list of module names."""
    if not isinstance(modules, list | tuple) or not all([_MODULE.fullmatch(str(module)) for module in modules]):
        raise InvalidRequest(field, repr(modules), "a list of the names of modules, such as ['my_optimizers']")
    return ",".join(map(str, modules))


def split_names(names: str) -> tuple[str, ...]:
    """Return the modules of a text with commas between them.

    >>> split_names("my_optimizers, my_initializers")
    ('my_optimizers', 'my_initializers')
    """
    return tuple([name.strip() for name in names.split(",") if name.strip()])


def _named(environment: Mapping[str, str], told: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each plugin's module and where it is named."""
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        distribution = entry.dist.name if entry.dist is not None else "an unnamed distribution"
        yield entry.module, f"the entry point {entry.name!r} of {distribution}"
    for module in told:
        yield module, "the setting plugins"
    for module in split_names(environment.get(VARIABLE, "")):
        yield module, VARIABLE


def _place(error: BaseException) -> str:
    """Return where in the plugin it failed, or in what that imports, if it came so far."""
    places = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _AROUND
    ]
    return f" ({places[-1][0]}, line {places[-1][1]})" if places else ""
