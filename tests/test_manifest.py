"""manifest.json and part.json: they come back as they were, and what is wrong with one is said by its field."""

import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from dict_store import DictStore
from made_checkpoints import ROOT, make_checkpoint, map_of, run_on, task_of, write_part
from ps_proto.entries import SpecEntry
from ps_proto.errors import CorruptFile, InvalidRequest
from ps_proto.orders import JobState
from ps_proto.values import Adam, BoundedStaleness, ClippedByValue, Normal, TableSpec
from ps_server.storage.arrays_file import checksum
from ps_server.storage.entries import FileEntry
from ps_server.storage.layout import manifest_of, part_of
from ps_server.storage.manifest import Manifest, pack_owners, parse_manifest, unpack_owners
from ps_server.storage.part import parse_part
from ps_server.storage.publishing import publish
from ps_server.storage.reading import read_file, read_manifest, read_part
from sharding.hashing import NUM_BUCKETS


@pytest.fixture(scope="module")
def store() -> DictStore:
    """Checkpoint 7 is full, 8 and 9 stand on it, 9 under another map."""
    store = DictStore()
    make_checkpoint(store, 7)
    make_checkpoint(store, 8, base=7)
    flipped = map_of(version=5)
    flipped = type(flipped)(5, flipped.servers, flipped.owners[::-1])
    parts = [write_part(store, 9, shard, is_full=False, map_version=5) for shard in range(2)]
    run_on(store, publish(task_of(9, parts, base=8, shard_map=flipped)))
    return store


def fields_of(store: DictStore, path: str) -> Any:
    return json.loads(store.files[path])


def sealed(fields: dict[str, Any]) -> bytes:
    """Return a manifest of these fields, with the checksum that they must have."""
    rest = {name: value for name, value in fields.items() if name != "checksum"}
    return json.dumps({**rest, "checksum": checksum(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode())}).encode()


def test_a_manifest_comes_back(store: DictStore) -> None:
    manifest = run_on(store, read_manifest(ROOT, 9))
    assert parse_manifest(manifest.encode(), "it") == manifest
    assert [layer.number for layer in manifest.layers] == [7, 8, 9]


def test_each_layer_has_the_owners_of_its_own_map(store: DictStore) -> None:
    owners = run_on(store, read_manifest(ROOT, 9)).layer_owners()
    old = map_of().owners
    assert [each.tolist() for each in owners] == [old.tolist(), old.tolist(), old[::-1].tolist()]
    assert [layer.owners is None for layer in run_on(store, read_manifest(ROOT, 9)).layers] == [True, False, True]


def test_a_manifest_of_another_number_is_refused(store: DictStore) -> None:
    copied = DictStore()
    copied.files[manifest_of(12)] = store.files[manifest_of(9)]
    with pytest.raises(CorruptFile, match=r"^/checkpoints/checkpoint-0000000012/manifest.json .*: it is the manifest of checkpoint 9\."):
        run_on(copied, read_manifest(ROOT, 12))


def test_a_manifest_that_is_cut_anywhere_is_refused(store: DictStore) -> None:
    whole = store.files[manifest_of(7)]
    end = whole.rindex(b"}")
    for length in [*range(0, end, 101), *range(end - 60, end + 1)]:
        with pytest.raises(CorruptFile, match="it is not as it was written"):  # the line's end alone may be cut
            parse_manifest(whole[:length], "it")


def test_a_manifest_with_any_byte_altered_is_refused_or_says_the_same(store: DictStore) -> None:
    whole = store.files[manifest_of(7)]
    manifest = parse_manifest(whole, "it")
    for at in range(0, len(whole), 37):
        altered = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        with suppress(CorruptFile, InvalidRequest):
            assert parse_manifest(altered, "it") == manifest  # a space that became another one


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format", "rowstead model"),
        ("version", 0),
        ("cluster", "c0ffee"),
        ("number", 8),
        ("number", "9"),
        ("base", None),
        ("base", 7),
        ("timeline", -1),
        ("map_version", 4),
        ("servers", []),
        ("servers", [{"name": "server-0", "incarnation": 5, "weight": 1.0}]),
        ("servers", [{"name": "server-0", "incarnation": 5, "weight": 1.0}] * 2),
        ("owners", "AAAA"),
        ("owners", "no base64"),
        ("owners", pack_owners(np.full(NUM_BUCKETS, 2, np.int32))),
        ("step", 8.5),
        ("job", {}),
        ("ranks", [{"rank": 0, "clock": 7, "has_left": False, "shard": 2}]),
        ("ranks", [{"rank": 0, "clock": -2, "has_left": False, "shard": None}]),
        ("ranks", [{"rank": 0, "clock": 7, "has_left": False, "shard": None}] * 2),
        ("layers", []),
        ("rows", -1),
        ("more", 1),
    ],
)
def test_a_manifest_with_a_wrong_field_is_refused(store: DictStore, name: str, value: object) -> None:
    fields = fields_of(store, manifest_of(9))
    with pytest.raises(CorruptFile, match="it is not as it was written"):
        parse_manifest(sealed(fields | {name: value}), "it")


def test_a_manifest_without_a_field_is_refused(store: DictStore) -> None:
    fields = fields_of(store, manifest_of(9))
    for missing in set(fields) - {"format", "version", "checksum"}:  # which it has by default, and which `sealed` adds
        with pytest.raises(CorruptFile, match=f": {missing}: Field required"):
            parse_manifest(sealed({name: value for name, value in fields.items() if name != missing}), "it")


def test_a_manifest_without_its_layers_in_order_is_refused(store: DictStore) -> None:
    fields = fields_of(store, manifest_of(9))
    seven, eight, nine = fields["layers"]
    for layers in ([eight, seven, nine], [seven, seven, nine], [seven, nine, eight], [seven, nine]):
        with pytest.raises(CorruptFile, match="layer"):
            parse_manifest(sealed(fields | {"layers": layers}), "it")


def test_a_file_outside_of_parts_is_never_named(store: DictStore) -> None:
    fields = fields_of(store, manifest_of(7))
    for file in ("../secret", "/etc/passwd", "checkpoint-0000000007/manifest.json"):
        fields["layers"][0]["parts"][0]["file"] = file
        with pytest.raises(CorruptFile, match=r"layers\.0\.parts\.0\.file: String should match pattern"):
            parse_manifest(sealed(fields), "it")


@pytest.mark.parametrize("data", [b"", b"[]", b"7", b"\xff", b"[" * 100_000, b'{"a": NaN}'])
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptFile, match=r"^/x/manifest.json is not as it was written: "):
        parse_manifest(data, "/x/manifest.json")


def test_a_newer_format_is_named(store: DictStore) -> None:
    for parse, path in ((parse_manifest, manifest_of(7)), (parse_part, part_of(7, 0))):
        newer = json.dumps(fields_of(store, path) | {"version": 2, "unheard": "of"}).encode()
        with pytest.raises(InvalidRequest, match="version of it is 2, but must be at most 1: a newer Rowstead wrote it"):
            parse(newer, "it")


def test_a_part_comes_back(store: DictStore) -> None:
    entry = run_on(store, read_manifest(ROOT, 8)).layers[0].parts[1]
    part = run_on(store, read_part(ROOT, entry))
    assert (part.server, part.number, part.is_full, part.rows) == ("server-1", 7, True, 3)
    assert parse_part(part.encode(), "it") == part
    assert all([run_on(store, read_file(ROOT, file)) for file in part.files()])


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("number",), 8),
        (("clocks",), {"zero": 7}),
        (("clocks",), {"0": 7.5}),
        (("tables", 0, "rows"), 4),
        (("tables", 0, "record_words"), 0),
        (("tables", 0, "columns", 0, "dtype"), "float64"),
        (("tables", 0, "parts", 0, "checksum"), "xyz"),
        (("tables", 0, "parts", 0, "size_bytes"), -1),
        (("names", "file"), "checkpoint-0000000007/shard-0/resume.safetensors"),
        (("names",), None),
    ],
)
def test_a_part_with_a_wrong_field_is_refused(store: DictStore, where: tuple[Any, ...], value: object) -> None:
    fields = fields_of(store, part_of(7, 0))
    entry = fields
    for step in where[:-1]:
        entry = entry[step]
    entry[where[-1]] = value
    with pytest.raises(CorruptFile, match=r"^/x/part.json is not as it was written: "):
        parse_part(json.dumps(fields).encode(), "/x/part.json")


def test_a_file_is_checked_by_its_size_and_its_bytes() -> None:
    entry = FileEntry.of(part_of(7, 0), [b"hel", memoryview(b"lo")])
    entry.check(memoryview(b"hello"), "/root")
    for data, reason in ((b"hell", "it has 4 bytes, not 5"), (b"hallo", "its checksum differs")):
        with pytest.raises(CorruptFile, match=rf"^/root/{entry.file} is not as it was written: {reason}\."):
            entry.check(memoryview(data), "/root")
    with pytest.raises(CorruptFile, match="it is missing"):
        run_on(DictStore(), read_file(ROOT, entry))


def test_specs_come_back() -> None:
    specs = [
        TableSpec("plain", 1),
        TableSpec(
            "all \N{SNOWMAN}",
            17,
            optimizer=ClippedByValue(Adam(lr=0.1, betas=(0.5, 0.25)), clip_value=2.0),
            initializer=Normal(0.5, 0.25),
            seed=2**63,
            mode=BoundedStaleness(3),
            dtype="bfloat16",
            max_norm=0.5,
            wire="int8",
        ),
    ]
    for spec in specs:
        assert SpecEntry.model_validate_json(SpecEntry.of_spec(spec).model_dump_json()).spec() == spec


def test_owners_come_back() -> None:
    owners = np.random.default_rng(1).integers(0, NUM_BUCKETS, NUM_BUCKETS, np.int32)
    assert unpack_owners(pack_owners(owners)).tolist() == owners.tolist()


def test_a_checkpoint_without_a_job_has_no_ranks() -> None:
    store = DictStore()
    run_on(store, publish(task_of(7, [write_part(store, 7, shard) for shard in range(2)], job=None)))
    manifest: Manifest = run_on(store, read_manifest(ROOT, 7))
    assert (manifest.job, manifest.ranks, manifest.is_synchronous) == (None, (), False)


def test_a_bounded_job_comes_back() -> None:
    store = DictStore()
    job = JobState(3, 2, BoundedStaleness(4), 0, 0, ())
    run_on(store, publish(task_of(7, [write_part(store, 7, shard, step=8 + shard) for shard in range(2)], job=job)))
    manifest = run_on(store, read_manifest(ROOT, 7))
    assert (manifest.step, manifest.is_synchronous) == (8, False)
