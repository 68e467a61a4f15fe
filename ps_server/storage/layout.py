"""Which file lies where below a root.

    checkpoint-0000000012/
      shard-0/names.safetensors            buckets I32[k], ranks I64[r], names U64[r, k]: what was applied last, by rank and bucket (R2)
      shard-0/resume.safetensors           rank-<r> U8[n]: the resume state of rank r
      shard-0/table-0-part-0.safetensors   ids U64[n], each once, in no order; records U32[n, words] as they lie in the slab
      shard-0/part.json                    what is in these; the last file of the part
      shard-1/…
      manifest.json                        what is in the parts; the last file of all: with it the checkpoint is complete

A number is never used twice, also where its checkpoint failed; it has ten digits, with zeros before it, or up to eighteen. Nothing
but files of these names is ever removed: people keep others there.
"""

import re

_PART = r"shard-[0-9]+/(?:part\.json|names\.safetensors|resume\.safetensors|table-[0-9]+-part-[0-9]+\.safetensors)"
_NUMBER = r"(?:[0-9]{10}|[1-9][0-9]{10,17})"
_OURS = re.compile(rf"checkpoint-(?P<number>{_NUMBER})/(?:manifest\.json|{_PART})(?P<leftover>\.tmp-[0-9a-f]{{8}})?")

NUMBER_MAX = 10**18 - 1
PART_FILE = rf"^checkpoint-{_NUMBER}/{_PART}$"  # what a manifest or a part may name


def folder_of(number: int) -> str:
    """Return the folder of a checkpoint."""
    return f"checkpoint-{number:010d}"


def manifest_of(number: int) -> str:
    """Return the path of a checkpoint's manifest."""
    return f"{folder_of(number)}/manifest.json"


def part_of(number: int, shard: int) -> str:
    """Return the path of the file that says what is in a server's part."""
    return f"{folder_of(number)}/shard-{shard}/part.json"


def names_of(number: int, shard: int) -> str:
    """Return the path of a part's names of pushes."""
    return f"{folder_of(number)}/shard-{shard}/names.safetensors"


def resume_of(number: int, shard: int) -> str:
    """Return the path of a part's resume states."""
    return f"{folder_of(number)}/shard-{shard}/resume.safetensors"


def rows_of(number: int, shard: int, table: int, part: int) -> str:
    """Return the path of a file with rows: the `part`-th of the `table`-th table of a server's part."""
    return f"{folder_of(number)}/shard-{shard}/table-{table}-part-{part}.safetensors"


def number_of(path: str) -> int | None:
    """Return the checkpoint that a file belongs to, whole or left behind by a put that did not finish; None for a file that is not ours."""
    match = _OURS.fullmatch(path)
    return int(match["number"]) if match else None


def is_leftover(path: str) -> bool:
    """Return whether a put that did not finish left this file of ours behind."""
    match = _OURS.fullmatch(path)
    return match is not None and match["leftover"] is not None
