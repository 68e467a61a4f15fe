"""Where checkpoints lie, as a user says it and as every process of the cluster finds it."""

import os

from ps_proto.errors import InvalidRequest


def absolute_root(path: str | os.PathLike[str] | None) -> str:
    """Return a folder as an absolute path and a URL as it is; "", which stands for the cluster's own root, for None.

    Servers write there, perhaps in other working directories than this process. Raises InvalidRequest for what is neither.
    """
    if path is None:
        return ""
    given = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(given, str) or not given:
        raise InvalidRequest("path", repr(path), "a folder or a URL such as s3://bucket/prefix, or None for the cluster's own")
    return given if "://" in given else os.path.abspath(given)
