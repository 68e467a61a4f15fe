"""What `rowstead` can do: the entry points of the group `rowstead.commands`, of this package or any other that is installed."""

import ast
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from importlib.util import find_spec
from pathlib import Path

GROUP = "rowstead.commands"
CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Verb:
    """A verb of `rowstead`: `import_path` is `module:function`, `summary` the first paragraph of that function's docstring."""

    name: str
    import_path: str
    summary: str


def find_verbs() -> list[Verb]:
    """Return the verbs, by name; imports none of them."""
    found = {entry.name: entry for entry in [*_of_this_checkout(), *entry_points(group=GROUP)]}
    return [Verb(name, entry.value, _summary(entry)) for name, entry in sorted(found.items())]


def _of_this_checkout() -> Iterable[EntryPoint]:
    """Return our own verbs where this is a checkout: if it is installed, that lists the verbs of the day when it was."""
    project = CHECKOUT / "pyproject.toml"
    if not project.is_file():
        return ()
    declared = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["entry-points"][GROUP]
    return EntryPoints(EntryPoint(name, value, GROUP) for name, value in declared.items())


def _summary(entry: EntryPoint) -> str:
    """Read what a verb does from its source: to import it for that would make `rowstead --help` as slow as the slowest verb."""
    source = _source(entry.module)
    if source is not None:
        for statement in ast.parse(source.read_bytes()).body:
            if isinstance(statement, ast.FunctionDef) and statement.name == entry.attr:
                return (ast.get_docstring(statement) or "").partition("\n\n")[0].replace("\n", " ")
    return f"From {entry.value}."


def _source(module: str) -> Path | None:
    package, *rest = module.split(".")
    spec = find_spec(package)  # finds a top-level package without importing it
    folders = spec.submodule_search_locations if spec is not None else None
    candidates = (Path(folder, *rest) for folder in folders or ())
    return next((path for stem in candidates for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()), None)
