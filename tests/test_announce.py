"""The address of a process reaches whoever started it: by a file or a pipe."""

import os
from pathlib import Path

import pytest

from ps_server.edge.announce import CannotAnnounce, announce


def test_a_file_appears_whole_and_alone(tmp_path: Path) -> None:
    announce(str(tmp_path / "address"), "127.0.0.1:4711")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("address", "127.0.0.1:4711\n")]


def test_a_number_is_a_file_descriptor_which_is_closed_afterwards() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as pipe:
        announce(str(writer), "127.0.0.1:4711")
        assert pipe.read() == "127.0.0.1:4711\n"  # to its end: the writer is closed


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotAnnounce, match=r"announce is '.*/none/address', which cannot be written to: no such file or directory\."):
        announce(str(tmp_path / "none" / "address"), "127.0.0.1:4711")


@pytest.mark.parametrize("number", ["1000000", "9" * 30])
def test_a_number_that_is_no_descriptor_is_named(number: str) -> None:
    with pytest.raises(CannotAnnounce, match=f"announce is '{number}', which cannot be written to: bad file descriptor"):
        announce(number, "127.0.0.1:4711")
