"""A root is looked at before there are checkpoints."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dict_shard import run_for, shards_of
from dict_store import DictStore
from made_checkpoints import map_of
from ps_proto.errors import CheckpointFailed, StorageFailed
from ps_proto.orders import PartWritten
from ps_server.storage.folder import Folder
from ps_server.storage.probing import check_parts, probe
from ps_server.storage.program import run
from ps_server.storage.saving import save_part
from ps_server.storage.store import Data, Store
from ps_server.tasks import CheckParts, ProbeRoot, SavePart

ROOT = "/checkpoints"


def probed(store: Store, root: str = ROOT) -> None:
    def refuse(body: object) -> object:
        raise AssertionError(f"nothing should be asked, but {body} was")

    run(probe(ProbeRoot(root, "0a1b2c3d")), {root: store}.__getitem__, refuse)


class Forgets(DictStore):
    """Takes everything and keeps nothing, or not what it was given."""

    def __init__(self, kept: dict[str, bytes]) -> None:
        super().__init__()
        self.kept = kept

    def put(self, path: str, data: Data) -> None:
        self.files = dict(self.kept)


class MayNot(DictStore):
    """Refuses one method."""

    def __init__(self, method: str) -> None:
        super().__init__()
        setattr(self, method, self.refuse)

    def refuse(self, *given: object) -> None:
        raise StorageFailed(f"{ROOT}/probe", "Access Denied")


def test_nothing_stays_of_it() -> None:
    store = DictStore()
    store.files = {"notes.txt": b"mine"}
    probed(store)
    assert store.files == {"notes.txt": b"mine"}


def test_of_a_folder_that_was_not_there_only_itself_stays(tmp_path: Path) -> None:
    root = tmp_path / "not" / "there yet"
    probed(Folder(root))
    assert list(root.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    root = str(tmp_path / "file" / "root")
    with pytest.raises(StorageFailed, match=f"^{root} cannot be read or written: Not a directory. Check"):
        probed(Folder(Path(root)), root)


@pytest.mark.parametrize("method", ["put", "list", "get", "delete"])
def test_each_thing_that_checkpoints_need_is_tried(method: str) -> None:
    store = MayNot(method)
    with pytest.raises(StorageFailed, match=r"^/checkpoints cannot be read or written: Access Denied\. Check"):
        probed(store)
    assert len(store.files) == (method == "delete")  # the one thing that is left is that which may not be removed


@pytest.mark.parametrize("kept", [{}, {"probe-0a1b2c3d/probe": b"else's"}, {"probe-0a1b2c3d/other": b"0a1b2c3d"}])
def test_a_store_that_does_not_keep_what_it_takes_is_found_out(kept: dict[str, bytes]) -> None:
    with pytest.raises(StorageFailed, match="what was written a moment ago is not there"):
        probed(Forgets(kept))


def test_a_store_that_lists_what_is_gone_is_found_out() -> None:
    class Ghost(Forgets):
        def list(self, prefix: str) -> dict[str, int]:
            return {"probe-0a1b2c3d/probe": 8}

        def delete(self, paths: Sequence[str]) -> None:
            pass

    with pytest.raises(StorageFailed, match="what was written a moment ago is not there"):
        probed(Ghost({}))


def test_the_parts_that_servers_wrote_are_looked_for() -> None:
    store = DictStore()
    shards = shards_of(map_of(2))
    for shard in shards:
        shard.save(full=True)
    parts = tuple([run_for(shard, save_part(SavePart(ROOT, 0, shard.shard, shard.server)), store) for shard in shards])

    def look(parts: tuple[PartWritten, ...]) -> None:
        run(check_parts(CheckParts(ROOT, 0, parts)), {ROOT: store}.__getitem__, lambda body: None)

    look(parts)
    with pytest.raises(CheckpointFailed, match="server-1 failed, it says of its part: "):
        look((parts[0], replace(parts[1], size_bytes=-1)))
    for damage in (None, b"else's"):
        store.files.pop(parts[1].file, None)
        store.files |= {parts[1].file: damage} if damage is not None else {}
        with pytest.raises(CheckpointFailed, match="server-1 failed, what it wrote is not where the coordinator looks for it") as told:
            look(parts)
        assert "all must see the same folder" in str(told.value)
