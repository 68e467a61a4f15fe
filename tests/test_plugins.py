"""Plugins are found where they are named, and one that cannot be imported is named with the cause."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ps_proto.errors import InvalidRequest, PluginFailed
from ps_proto.plugins import join_names, load_plugins, split_names
from ps_proto.values import OPTIMIZERS
from registered import taken_back

MODULE = """
from dataclasses import dataclass
from ps_proto.values import Optimizer, register_optimizer

@register_optimizer
@dataclass(frozen=True)
class Mine(Optimizer):
    kind = "KIND"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that modules are found in."""
    monkeypatch.syspath_prepend(str(tmp_path))
    with taken_back(tmp_path):
        yield tmp_path


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / f"{name}.py").write_text(MODULE.replace("KIND", f"kind_of_{name}"))


def install(folder: Path, entries: str) -> None:
    """Put what pip leaves of a distribution into the folder."""
    info = folder / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[rowstead.plugins]\n{entries}\n")


def test_all_that_are_named_are_imported(folder: Path) -> None:
    write(folder, "plugin_installed", "plugin_told", "plugin_a", "plugin_b", "plugin_not_named")
    install(folder, "mine = plugin_installed")
    load_plugins({"ROWSTEAD_PLUGINS": "plugin_a, plugin_b,"}, ["plugin_told"])
    load_plugins({"ROWSTEAD_PLUGINS": "plugin_a"}, ["plugin_told"])  # again: nothing happens twice
    found = {kind for kind in OPTIMIZERS if kind.startswith("kind_of_")}
    assert found == {"kind_of_plugin_installed", "kind_of_plugin_told", "kind_of_plugin_a", "kind_of_plugin_b"}


def test_without_plugins_nothing_is_imported() -> None:
    before = set(sys.modules)
    load_plugins({})
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    "text", ["1 / 0\n", "raise SystemExit(3)\n", "import no_such_module\n", "def\n", "import sys\nraise OSError('no')\n"]
)
def test_one_that_fails_is_named_with_the_cause_and_the_line(folder: Path, text: str) -> None:
    (folder / "plugin_wrong.py").write_text(text)
    with pytest.raises(PluginFailed) as caught:
        load_plugins({}, ["plugin_wrong"])
    assert (caught.value.plugin, caught.value.origin) == ("plugin_wrong", "the setting plugins")
    assert str(folder / "plugin_wrong.py") in caught.value.cause or "plugin_wrong.py, line 1" in caught.value.cause
    assert type(caught.value.__cause__).__name__ in caught.value.cause
    assert isinstance(caught.value, ImportError)


def test_a_class_that_is_refused_is_found_by_the_plugins_own_line(folder: Path) -> None:
    (folder / "plugin_taken.py").write_text(MODULE.replace("KIND", "adam"))
    with pytest.raises(PluginFailed) as caught:
        load_plugins({}, ["plugin_taken"])
    assert caught.value.cause.endswith(f"({folder / 'plugin_taken.py'}, line 5)")


def test_one_that_fails_after_registering_says_the_cause_again_and_may_be_mended(folder: Path) -> None:
    (folder / "plugin_half.py").write_text(MODULE.replace("KIND", "half") + "1 / 0\n")
    for _ in range(2):
        with pytest.raises(PluginFailed, match="ZeroDivisionError"):
            load_plugins({}, ["plugin_half"])
    (folder / "plugin_half.py").write_text(MODULE.replace("KIND", "half") + "# mended: of another length, so no stale bytecode is found\n")
    load_plugins({}, ["plugin_half"])
    assert OPTIMIZERS["half"] is sys.modules["plugin_half"].Mine


def test_one_that_is_not_there_is_named_with_where_it_is_named(folder: Path) -> None:
    install(folder, "mine = no_such_module")
    with pytest.raises(PluginFailed) as caught:
        load_plugins({})
    assert str(caught.value) == (
        "Plugin 'no_such_module', which the entry point 'mine' of mine names, cannot be imported: ModuleNotFoundError: No module named "
        "'no_such_module'. Mend it, or see that this process finds it, installed or on PYTHONPATH, or name it no more."
    )
    (folder / "mine-1.0.dist-info" / "entry_points.txt").unlink()
    with pytest.raises(PluginFailed, match=r"'\.relative', which ROWSTEAD_PLUGINS names, cannot be imported: TypeError"):
        load_plugins({"ROWSTEAD_PLUGINS": ".relative"})


def test_names_are_joined_and_split_again() -> None:
    assert split_names(join_names("plugins", ["one", "two.three"])) == ("one", "two.three")
    assert split_names(join_names("plugins", ())) == ()
    for wrong in ("one", ["one,two"], ["one two"], [""], [3.5], None):
        with pytest.raises(InvalidRequest, match=r"plugins is .* but must be a list of the names of modules"):
            join_names("plugins", wrong)  # type: ignore[arg-type]
