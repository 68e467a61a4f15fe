"""What plugins register, taken back at the end of a test."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ps_proto.values import DECORATED, INITIALIZERS, OPTIMIZERS
from ps_server.shard import initializers, optimizers

KINDS: tuple[dict[str, Any], ...] = (
    DECORATED,
    INITIALIZERS,
    OPTIMIZERS,
    optimizers.OPTIMIZERS,
    optimizers.DECORATORS,
    initializers.INITIALIZERS,
)


@contextmanager
def taken_back(folder: Path | None = None) -> Iterator[None]:
    """Leave the known kinds as they were before the block, and no module of `folder` imported."""
    before = [dict(kinds) for kinds in KINDS]
    try:
        yield
    finally:
        for kinds, kept in zip(KINDS, before, strict=True):
            kinds.clear()
            kinds.update(kept)
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if folder is not None and file is not None and Path(file).is_relative_to(folder):
                del sys.modules[name]
