"""What a core made durable, as the tests' worlds keep it."""

from ps_server.events import Persist


def store(stored: dict[str, bytes], persist: Persist) -> None:
    """Carry a Persist out on `stored`."""
    stored.update(persist.puts)
    for key in persist.deletes:
        stored.pop(key, None)
