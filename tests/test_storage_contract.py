"""What every store promises: one class of tests for folders on two kinds of disk, an S3 server and the dictionary of other tests."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dict_shard import ITEM, USER, joined, run_for, shards_of
from dict_store import DictStore
from made_checkpoints import ROOT, make_checkpoint, map_of, run_on, task_of, write_part
from object_server import object_server
from ps_proto.errors import InvalidRequest, StorageFailed
from ps_proto.orders import Source
from ps_server.storage.folder import Folder
from ps_server.storage.layout import number_of
from ps_server.storage.objects import PART_BYTES, Objects
from ps_server.storage.program import run
from ps_server.storage.programs import PROGRAMS
from ps_server.storage.roots import open_store
from ps_server.storage.store import NotThere, Store, buffers_of
from ps_server.tasks import AbandonCheckpoint, FindCheckpoint, LoadPart, ProbeRoot, PublishCheckpoint, SavePart
from sim.disk import SimDisk

OPTIONS = {
    "aws_access_key_id": "me",
    "aws_secret_access_key": "secret",
    "aws_region": "us-east-1",
    "allow_http": "true",
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a server with one bucket, named so."""
    with object_server("bucket") as address:
        yield address


@pytest.fixture(scope="module")
def open_objects(address: str) -> Callable[[str], Store]:
    """Open stores on that server by their URL."""
    return lambda url: open_store(url, OPTIONS | {"aws_endpoint_url": address})


@pytest.fixture(params=["folder", "folder in memory", "objects", "dictionary"])
def store(request: pytest.FixtureRequest, tmp_path: Path, open_objects: Callable[[str], Store]) -> Store:
    if request.param == "folder":
        return open_store(str(tmp_path / "not" / "there yet"))
    if request.param == "folder in memory":
        return Folder(Path("/not/there yet"), SimDisk(random.Random(1)).mount("the test"))
    return open_objects(f"s3://bucket/{tmp_path.name}") if request.param == "objects" else DictStore()


class TestStore:
    def test_a_probe_leaves_nothing(self, store: Store) -> None:
        def refuse(body: object) -> object:
            raise AssertionError(body)

        run(PROGRAMS[ProbeRoot](ProbeRoot(ROOT, "0a1b2c3d")), lambda root: store, refuse)
        assert store.list("") == {}

    def test_an_object_comes_back(self, store: Store) -> None:
        store.put("a/b/c.bin", b"hello")
        assert bytes(store.get("a/b/c.bin")) == b"hello"

    def test_a_second_put_replaces_the_first(self, store: Store) -> None:
        store.put("a", b"a long one")
        store.put("a", b"short")
        assert bytes(store.get("a")) == b"short"

    @pytest.mark.parametrize("data", [b"", [], [b"", b""], [b"one", memoryview(b"two")], memoryview(b"one")])
    def test_data_may_come_in_buffers(self, store: Store, data: bytes | list[bytes | memoryview]) -> None:
        store.put("a", data)
        assert bytes(store.get("a")) == b"".join(buffers_of(data))

    def test_a_large_object_comes_back(self, store: Store) -> None:
        numbers = np.random.default_rng(1).integers(0, 256, PART_BYTES + 12_345, np.uint8)
        store.put("a", [piece.data for piece in np.array_split(numbers, 3)])
        assert bytes(store.get("a")) == numbers.tobytes()

    def test_what_is_not_there_is_not_there(self, store: Store) -> None:
        store.put("a/b", b"hello")
        for path in ("b", "a/c", "c/d"):
            with pytest.raises(NotThere, match=f"There is nothing at .*{path}"):
                store.get(path)

    def test_objects_are_listed_by_whole_folders(self, store: Store) -> None:
        assert store.list("") == {}
        for path, size in {"a-1/b": 1, "a-1/c/d": 2, "a-10/b": 3, "e": 4}.items():
            store.put(path, bytes(size))
        assert store.list("") == {"a-1/b": 1, "a-1/c/d": 2, "a-10/b": 3, "e": 4}
        assert store.list("a-1") == {"a-1/b": 1, "a-1/c/d": 2}
        assert store.list("a-1/c") == {"a-1/c/d": 2}
        assert store.list("a") == {}

    def test_objects_are_deleted_and_those_that_are_not_there_are_fine(self, store: Store) -> None:
        for path in ("a/b", "a/c", "d/e/f"):
            store.put(path, b"hello")
        store.delete(["a/b", "a/nothing", "d/e/f", "nothing/at/all"])
        store.delete(["a/b"])
        store.delete([])
        assert store.list("") == {"a/c": 5}

    def test_a_deleted_object_may_be_put_again(self, store: Store) -> None:
        store.put("a/b/c", b"hello")
        store.delete(["a/b/c"])
        store.put("a/b/c", b"again")
        assert bytes(store.get("a/b/c")) == b"again"

    def test_checkpoints_are_completed_found_and_retired(self, store: Store) -> None:
        assert make_checkpoint(store, 1).removed == 0
        assert make_checkpoint(store, 2, base=1, keep=1).removed == 0
        assert make_checkpoint(store, 3, keep=1).removed == 2
        write_part(store, 4, 0)
        found = run_on(store, PROGRAMS[FindCheckpoint](FindCheckpoint((ROOT,))))
        assert found.source == Source(ROOT, 3)
        run_on(store, PROGRAMS[AbandonCheckpoint](AbandonCheckpoint(ROOT, 4)))
        assert {number_of(path) for path in store.list("")} == {3}

    def test_what_one_server_saves_two_load(self, store: Store) -> None:
        (shard,) = shards_of(map_of(1))
        for key in range(20):
            shard.set("user", key, (key, 1, 2, 3))
        shard.save()
        written = run_for(shard, PROGRAMS[SavePart](SavePart(ROOT, 5, 0, "server-0")), store)
        run_on(store, PROGRAMS[PublishCheckpoint](task_of(5, [written], shard_map=map_of(1), tables=(USER, ITEM))))
        loaded = shards_of(map_of(2))
        for half in loaded:
            run_for(half, PROGRAMS[LoadPart](LoadPart(Source(ROOT, 5), half.server, half.shard_map, 0)), store)
        assert joined(loaded)[0] == joined([shard])[0]


def test_two_stores_of_one_bucket_do_not_see_each_other(open_objects: Callable[[str], Store]) -> None:
    ours, theirs = open_objects("s3://bucket/alone"), open_objects("s3://bucket/alone-2")
    ours.put("a", b"hello")
    assert theirs.list("") == {}


def test_a_bucket_that_is_not_there_is_an_error_and_not_an_empty_store(open_objects: Callable[[str], Store]) -> None:
    store = open_objects("s3://another/prefix")
    with pytest.raises(StorageFailed, match=r"^s3://another/prefix/a cannot be read or written: .*not found"):
        store.put("a", b"hello")
    with pytest.raises(StorageFailed, match="404 Not Found"):
        store.list("")


def test_the_environment_says_where_and_who(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "ACCESS_KEY_ID": "me",
        "SECRET_ACCESS_KEY": "secret",
        "REGION": "us-east-1",
        "ENDPOINT_URL": address,
        "ALLOW_HTTP": "true",
    }
    for name, value in environment.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    open_store("s3://bucket/environment").put("a", b"hello")

    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(StorageFailed, match="builder error"):  # no password travels in the clear unless somebody says so
        open_store("s3://bucket/environment").put("a", b"hello")


def test_an_object_store_that_does_not_answer_is_an_error() -> None:
    store = Objects("s3://bucket/prefix/", OPTIONS | {"aws_endpoint_url": "http://127.0.0.1:1"}, retry_s=0.0)
    with pytest.raises(StorageFailed, match=r"^s3://bucket/prefix/a cannot be read or written: [^\n]*$"):
        store.get("a")


@pytest.mark.parametrize("options", [{"nonsense": "1"}, {"timeout": "soon"}])
def test_an_option_that_nobody_knows_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="the store s3://bucket is "):
        open_store("s3://bucket", options)


@pytest.mark.parametrize("root", ["", "ftp://host/folder", "memory:///", "file://host/folder", "file://"])
def test_what_is_no_root_is_refused(root: str) -> None:
    with pytest.raises(InvalidRequest, match="the root of checkpoints is "):
        open_store(root)


@pytest.mark.parametrize(("root", "path"), [("/a b/c", "/a b/c"), ("c", "c"), ("file:///a%20b/c", "/a b/c"), ("file://localhost/c", "/c")])
def test_a_folder_may_be_a_path_or_a_url(root: str, path: str) -> None:
    store = open_store(root)
    assert isinstance(store, Folder)
    assert store.path == Path(path)
