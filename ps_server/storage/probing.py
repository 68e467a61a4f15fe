"""See whether checkpoints can lie under a root, before there are any: a fault that shows at start is cheaper than one hours later."""

from contextlib import suppress

from ps_proto.errors import CheckpointFailed, CorruptFile, StorageFailed
from ps_server.storage.program import Delete, Get, List, Program, Put
from ps_server.storage.publishing import entry_of
from ps_server.storage.reading import read_part
from ps_server.storage.store import NotThere
from ps_server.tasks import CheckParts, ProbeRoot


def probe(task: ProbeRoot) -> Program[None]:
    """Do once what checkpoints need: make a folder, write, list, read and remove a file. No file stays; a folder that is the root does.

    Raises StorageFailed, which names the root.
    """
    folder = f"probe-{task.token}"
    path = f"{folder}/probe"
    data = task.token.encode()
    try:
        try:
            yield Put(task.root, path, data)
            listed = yield List(task.root, folder)
            if listed != {path: len(data)} or bytes((yield Get(task.root, path))) != data:
                raise StorageFailed(task.root, "what was written a moment ago is not there")
        except (StorageFailed, NotThere):
            with suppress(StorageFailed):
                yield Delete(task.root, (path,))
            raise
        yield Delete(task.root, (path,))
    except NotThere:
        raise StorageFailed(task.root, "what was written a moment ago is not there") from None
    except StorageFailed as error:
        raise StorageFailed(task.root, error.reason) from error


def check_parts(task: CheckParts) -> Program[None]:
    """Read what says of each part what is in it; CheckpointFailed names a server of which it is not there."""
    for shard, part in enumerate(task.parts):
        entry = entry_of(task.root, task.number, shard, part)
        try:
            yield from read_part(task.root, entry)
        except CorruptFile as error:
            why = f"what it wrote is not where the coordinator looks for it ({error.path}: {error.reason})"
            raise CheckpointFailed(task.root, part.server, f"{why}; under this path all must see the same folder or store") from error
