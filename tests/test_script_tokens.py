"""What of a command line is ours and what is the script's."""

import pytest

from ps_worker.cli.script_tokens import mark_script


@pytest.mark.parametrize(
    ("tokens", "marked"),
    [
        ("train.py", "-- train.py"),
        ("train.py --workers 3 -h", "-- train.py --workers 3 -h"),
        ("--servers 2 --workers=3 train.py --servers 9", "--servers 2 --workers=3 -- train.py --servers 9"),
        ("--servers 2 -- train.py -- x", "--servers 2 -- train.py -- x"),
        ("--help", "--help"),
        ("-h train.py", "-h -- train.py"),
        ("--servers", "--servers"),
        ("", ""),
    ],
)
def test_all_after_the_script_is_the_scripts(tokens: str, marked: str) -> None:
    assert mark_script(tokens.split()) == marked.split()
