"""A store in memory: the slow twin of folders and object stores, and the fast one for tests of what lies in them."""

from collections.abc import Sequence

from ps_proto.errors import StorageFailed
from ps_server.storage.store import Data, NotThere, Store, buffers_of


class DictStore(Store):
    """Objects in `files`. `puts_left`: how many more puts it takes before it is full."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.puts_left: int | None = None

    def put(self, path: str, data: Data) -> None:
        if self.puts_left is not None:
            if not self.puts_left:
                raise StorageFailed(path, "No space left on device")
            self.puts_left -= 1
        self.files[path] = b"".join(buffers_of(data))

    def get(self, path: str) -> memoryview:
        if path not in self.files:
            raise NotThere(path)
        return memoryview(self.files[path])

    def list(self, prefix: str) -> dict[str, int]:
        return {path: len(data) for path, data in self.files.items() if not prefix or path.startswith(f"{prefix}/")}

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.files.pop(path, None)
