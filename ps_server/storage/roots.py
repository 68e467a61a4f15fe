"""Which store a root means: the string that a user gives for where checkpoints lie."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ps_proto.errors import InvalidRequest
from ps_server.storage.folder import Folder
from ps_server.storage.store import Store

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")


def open_store(root: str, options: Mapping[str, str] | None = None) -> Store:
    """Return the store at a root: a folder, file:///folder, or a URL of an object store. Nothing is read or written yet.

    `options` are the object store's; what is no root raises InvalidRequest.
    """
    scheme, separator, _ = root.partition("://")
    if not separator:
        if not root:
            raise InvalidRequest("the root of checkpoints", "empty", "a folder or a URL")
        return Folder(Path(root))
    if scheme == "file":
        url = urlsplit(root)
        if url.netloc not in ("", "localhost") or not url.path:
            raise InvalidRequest("the root of checkpoints", repr(root), "file:/// and an absolute path")
        return Folder(Path(unquote(url.path)))
    if scheme not in SCHEMES:
        raise InvalidRequest("the root of checkpoints", repr(root), f"a folder, file:///folder, or a URL of {', '.join(SCHEMES)}")
    from ps_server.storage.objects import Objects  # here: only who has such a root needs obstore

    return Objects(root, options or {})


def split_root(text: str) -> tuple[str, int | None]:
    """Return the root and the number of the checkpoint that a user means: ROOT#12, or ROOT for the newest.

    >>> split_root("s3://bucket/run#12"), split_root("/checkpoints/#1/a")
    (('s3://bucket/run', 12), ('/checkpoints/#1/a', None))
    """
    match = re.fullmatch(r"(.+)#([0-9]+)", text, re.DOTALL)
    return (match[1], int(match[2])) if match else (text, None)


def parse_options(options: Iterable[str]) -> dict[str, str]:
    """Return an object store's options by name, from texts as "aws_region=eu-west-1"; ValueError where one is none."""
    values = {}
    for option in options:
        name, separator, value = option.partition("=")
        if not separator or not name.strip():
            raise ValueError(f"{option!r} is no option: give name=value, as in aws_region=eu-west-1")
        values[name.strip()] = value.strip()
    return values
