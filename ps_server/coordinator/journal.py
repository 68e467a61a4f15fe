"""What a turn of the coordinator changed of its durable state (R13)."""

from ps_proto.codec import encode
from ps_server.events import Persist


class Journal:
    """Collects what is to be stored until the turn's end; of one key, the last word counts."""

    def __init__(self) -> None:
        self._puts: dict[str, bytes] = {}
        self._deletes: set[str] = set()

    def put(self, key: str, value: object) -> None:
        """Store one of the values of stored.py under its key."""
        self._puts[key] = encode(value).SerializeToString(deterministic=True)
        self._deletes.discard(key)

    def delete(self, key: str) -> None:
        """Store nothing under the key any more."""
        self._puts.pop(key, None)
        self._deletes.add(key)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been collected."""
        return not self._puts and not self._deletes

    def take(self) -> Persist | None:
        """Return what has been collected since it was taken last; None where that is nothing."""
        if self.is_empty:
            return None
        persist = Persist(self._puts, frozenset(self._deletes))
        self._puts, self._deletes = {}, set()
        return persist
