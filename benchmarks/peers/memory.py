"""The allocators that a peer runs with. To touch memory for the first time is dear, and most peers take a fresh buffer for each message."""

import ctypes.util
from collections.abc import Mapping
from typing import Final

_GLIBC: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),  # nothing smaller goes back to the system with its free()
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(256 << 20),
}
_JEMALLOC_KEEPS: Final = "dirty_decay_ms:-1,muzzy_decay_ms:-1"


def allocators() -> dict[str, Mapping[str, str]]:
    """Return the environment of a peer's processes for each allocator that is here; "jemalloc" where the system has the library."""
    found = ctypes.util.find_library("jemalloc")
    jemalloc = {} if found is None else {"jemalloc": {"LD_PRELOAD": found, "MALLOC_CONF": _JEMALLOC_KEEPS}}
    return {"shipped": {}, "glibc": _GLIBC, **jemalloc}
