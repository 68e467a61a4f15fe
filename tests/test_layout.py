"""Names of files: which are ours, and of which checkpoint."""

import re

import pytest

from ps_server.storage.layout import NUMBER_MAX, PART_FILE, is_leftover, manifest_of, names_of, number_of, part_of, resume_of, rows_of
from ps_server.storage.manifest import PartEntry

OURS = [manifest_of(12), part_of(12, 0), names_of(12, 3), resume_of(12, 40), rows_of(12, 3, 0, 17)]


@pytest.mark.parametrize("path", OURS)
def test_our_files_are_known_by_their_names(path: str) -> None:
    assert number_of(path) == 12
    assert not is_leftover(path)
    assert number_of(f"{path}.tmp-1f2e3d4c") == 12
    assert is_leftover(f"{path}.tmp-1f2e3d4c")


def test_a_part_names_files_of_parts_alone() -> None:
    assert [bool(re.fullmatch(PART_FILE, path)) for path in OURS] == [False, True, True, True, True]


@pytest.mark.parametrize(
    "path",
    [
        "manifest.json",
        "checkpoint-12/manifest.json",
        "checkpoint-0000000012",
        "checkpoint-0000000012/manifest.json.bak",
        "checkpoint-0000000012/manifest.json.tmp-1f2e3d4",
        "checkpoint-0000000012/manifest.json\n",
        "checkpoint-0000000012/notes.txt",
        "checkpoint-0000000012/shard-0/table-0.safetensors",
        "checkpoint-0000000012/shard-x/part.json",
        "checkpoint-0000000012/shard-0/../part.json",
        "old/checkpoint-0000000012/manifest.json",
        "../checkpoint-0000000012/shard-0/part.json",
    ],
)
def test_other_peoples_files_are_not_ours(path: str) -> None:
    assert number_of(path) is None
    assert not is_leftover(path)
    assert not re.fullmatch(PART_FILE, path)


@pytest.mark.parametrize("number", [0, 10**10 - 1, 10**10, NUMBER_MAX])
def test_a_number_of_more_than_ten_digits_is_one_too(number: int) -> None:
    for path in (manifest_of(number), part_of(number, 3)):
        assert number_of(path) == number
    assert re.fullmatch(PART_FILE, part_of(number, 3))
    assert PartEntry(server="server-3", file=part_of(number, 3), size_bytes=1, checksum="0" * 32)


def test_a_number_has_one_name_and_an_end() -> None:
    for path in (f"checkpoint-{12:011d}/manifest.json", manifest_of(NUMBER_MAX + 1)):
        assert number_of(path) is None
