"""Read the files of a checkpoint, checked: what a manifest or a part names is as it was written, or CorruptFile says why not."""

from ps_proto.errors import CorruptFile
from ps_server.storage.entries import FileEntry
from ps_server.storage.layout import manifest_of
from ps_server.storage.manifest import Manifest, parse_manifest
from ps_server.storage.part import Part, parse_part
from ps_server.storage.program import Get, Program
from ps_server.storage.store import NotThere


def read_file(root: str, entry: FileEntry) -> Program[memoryview]:
    """Return the bytes of a file of a part."""
    data = yield from _get(root, entry.file)
    entry.check(data, root)
    return data


def read_part(root: str, entry: FileEntry) -> Program[Part]:
    """Return what a part.json says."""
    data = yield from read_file(root, entry)
    return parse_part(bytes(data), f"{root}/{entry.file}")


def read_manifest(root: str, number: int) -> Program[Manifest]:
    """Return the manifest of a checkpoint; it is the one of this number."""
    path = manifest_of(number)
    manifest = parse_manifest(bytes((yield from _get(root, path))), f"{root}/{path}")
    if manifest.number != number:
        raise CorruptFile(f"{root}/{path}", f"it is the manifest of checkpoint {manifest.number}")
    return manifest


def _get(root: str, path: str) -> Program[memoryview]:
    try:
        data: memoryview = yield Get(root, path)
    except NotThere:
        raise CorruptFile(f"{root}/{path}", "it is missing") from None
    return data
