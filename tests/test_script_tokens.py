"""What of a command line is ours and what is the script's."""

import inspect
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import pytest

from ps_worker.cli.script_tokens import ALONE, mark_script
from ps_worker.launch.command import launch, worker


@pytest.mark.parametrize(
    ("tokens", "marked"),
    [
        ("train.py", "-- train.py"),
        ("train.py --workers 3 -h", "-- train.py --workers 3 -h"),
        ("--servers 2 --workers=3 train.py --servers 9", "--servers 2 --workers=3 -- train.py --servers 9"),
        ("--servers 2 -- train.py -- x", "--servers 2 -- train.py -- x"),
        ("--help", "--help"),
        ("-h train.py", "-h -- train.py"),
        ("--profile train.py --rows 9", "--profile -- train.py --rows 9"),
        ("--servers", "--servers"),
        ("", ""),
    ],
)
def test_all_after_the_script_is_the_scripts(tokens: str, marked: str) -> None:
    assert mark_script(tokens.split()) == marked.split()


@pytest.mark.parametrize("verb", [launch, worker])
def test_every_flag_of_ours_without_a_value_is_known(verb: Callable[..., Any]) -> None:
    hints = get_type_hints(verb, include_extras=True)
    switches = {name for name in inspect.signature(verb).parameters if bool in (hints[name], *get_args(hints[name])[:1])}
    assert {f"--{name.replace('_', '-')}" for name in switches} <= set(ALONE)
