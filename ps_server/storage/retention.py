"""Remove old checkpoints, and what failed ones left behind, in an order that a crash may cut anywhere.

A checkpoint stays as long as one of those to keep needs its files, with its manifest: so it stays usable, and more may lie there than
are kept. Its manifest goes first, so that nobody finds a checkpoint of which files are missing, and then its files. A removal that was cut
leaves files without a manifest, which the next one takes.
"""

from collections.abc import Mapping, Sequence

from ps_proto.errors import CorruptFile, InvalidRequest
from ps_server.storage.layout import is_leftover, manifest_of, number_of
from ps_server.storage.lineage import is_of
from ps_server.storage.program import Delete, List, Program
from ps_server.storage.reading import read_manifest


def retire(root: str, keep: int, lineage: Sequence[tuple[int, int, int]] = ()) -> Program[int]:
    """Keep the last `keep` complete checkpoints below a root and what they need; return how many others were removed.

    Only those of the lineage are counted, as FindCheckpoint has it: its cluster could go back to no other. What lies between them stays.
    What is numbered above the last complete one stays: it may be under way. So does all of it where no checkpoint is complete, or where one
    that would be counted was written by a newer version, whose needs nobody here knows.
    """
    assert keep >= 1, keep
    found: Mapping[str, int] = yield List(root, "")
    files = {path: number for path in found if (number := number_of(path)) is not None}
    complete = sorted({number for path, number in files.items() if path == manifest_of(number)}, reverse=True)
    last: int | None = None
    counted = 0
    needed: set[int] = set()
    for number in complete:
        if counted == keep:
            break
        try:
            manifest = yield from read_manifest(root, number)
        except CorruptFile:
            continue  # as good as none: nobody can load it
        except InvalidRequest:
            return 0
        last = number if last is None else last
        needed |= manifest.layer_numbers()
        counted += is_of(lineage, manifest)
    if last is None:
        return 0
    dropped = set(files.values()) - needed - {number for number in files.values() if number > last}
    yield from _delete(root, [manifest_of(number) for number in complete if number in dropped])
    yield from _delete(root, [path for path, number in files.items() if number in dropped or (number <= last and is_leftover(path))])
    return len(dropped.intersection(complete))


def discard(root: str, number: int, folder: Mapping[str, int]) -> Program[None]:
    """Remove all of ours of a checkpoint that has no manifest. `folder`: what lies there, as listed."""
    yield from _delete(root, [path for path in folder if number_of(path) == number])


def _delete(root: str, paths: list[str]) -> Program[None]:
    if paths:
        yield Delete(root, tuple(paths))
