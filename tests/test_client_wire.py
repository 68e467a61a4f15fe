"""The public client with tables whose rows travel compressed."""

import numpy as np
import pytest

from clients import BRIEF, alone, each_mode, records_of
from inprocess import Fault, InProcess
from naive.wire_rows import travelled
from ps_proto.errors import InvalidRequest, TableMismatch, Unreachable
from ps_proto.requests import Push
from ps_proto.values import SGD, Async, Mode, Normal, TableSpec
from sharding.wire_format import FORMATS

WIRES = ["float32", "bfloat16", "int8"]
each_wire = pytest.mark.parametrize("wire", WIRES)
each_compressed = pytest.mark.parametrize("wire", WIRES[1:])
IDS = np.array([7, 2**64 - 1, 3, 7, 0, 3, 7, 11], np.uint64)
GRADIENTS = np.random.default_rng(0).standard_normal((IDS.size, 5)).astype(np.float32)


def spec_of(wire: str) -> TableSpec:
    return TableSpec("user", 5, SGD(1.0), Normal(), seed=7, wire=wire)


@each_wire
@each_mode
@pytest.mark.parametrize("servers", [1, 3])
def test_repeats_are_summed_then_compressed_and_every_id_gets_its_row(wire: str, mode: Mode, servers: int) -> None:
    _, client = alone(mode, servers, spec_of(wire))
    start = client.pull("user", IDS)
    assert start.dtype == np.float32
    assert start.shape == (8, 5)
    client.push("user", IDS, GRADIENTS)
    client.end_step()
    client.flush()
    sums: dict[int, np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = {}
    for id, gradient in zip(IDS.tolist(), GRADIENTS, strict=True):
        sums[id] = sums[id] + gradient if id in sums else gradient
    ids, rows = client.export("user")
    plain = alone(mode, servers, spec_of("float32"))[1]
    initial = plain.pull("user", ids)
    want = np.stack([row - travelled(sums[id], wire) for id, row in zip(ids.tolist(), initial, strict=True)])
    assert rows.tobytes() == want.tobytes()
    by_id = {id: travelled(row, wire).tobytes() for id, row in zip(ids.tolist(), want, strict=True)}
    assert [row.tobytes() for row in client.pull("user", IDS)] == [by_id[id] for id in IDS.tolist()]


@each_compressed
def test_a_push_that_is_sent_again_is_as_it_was_whatever_became_of_the_callers_array(wire: str) -> None:
    cluster, client = alone(Async(), 1, spec_of(wire), patience=BRIEF)
    cluster.faults.append(Fault(Push, is_lost=True, count=1_000))
    given = GRADIENTS.copy()
    with pytest.raises(Unreachable):
        client.push("user", IDS, given)
    given[...] = 0.0
    cluster.faults.clear()
    client.retry_push()
    (sent,) = [body for _, body in cluster.calls if isinstance(body, Push)]
    assert sent.tables[0].rows.dtype == FORMATS[wire].dtype
    other = alone(Async(), 1, spec_of(wire))[1]
    other.push("user", IDS, GRADIENTS)
    assert client.export("user")[1].tobytes() == other.export("user")[1].tobytes()


@each_compressed
def test_what_is_not_finite_is_refused_before_it_is_compressed(wire: str) -> None:
    cluster, client = alone(Async(), 2, spec_of(wire))
    given = np.full((2, 5), 3e38, np.float32)
    with pytest.raises(InvalidRequest, match="not finite \\(inf or nan\\) once repeats are summed"):
        client.push("user", [7, 7], given)
    client.push("user", [7], given[:1])
    assert len([body for _, body in cluster.calls if isinstance(body, Push)]) == 1
    assert np.isfinite(client.export("user")[1]).all()


@each_compressed
def test_assignments_exports_and_records_keep_every_bit(wire: str) -> None:
    _, client = alone(Async(), 2, spec_of(wire))
    ids = np.unique(IDS)
    client.assign("user", ids, GRADIENTS[: ids.size])
    assert client.export("user")[1].tobytes() == GRADIENTS[: ids.size].tobytes()
    assert records_of(client, "user").rows.tobytes() == GRADIENTS[: ids.size].tobytes()
    assert client.pull("user", ids).tobytes() == b"".join([travelled(row, wire).tobytes() for row in GRADIENTS[: ids.size]])


@each_compressed
def test_nothing_is_pulled_or_pushed_of_no_ids(wire: str) -> None:
    _, client = alone(Async(), 2, spec_of(wire))
    assert client.pull("user", []).shape == (0, 5)
    client.push("user", [], np.empty((0, 5), np.float32))
    assert client.export("user")[0].size == 0


def test_a_table_of_another_wire_is_another_table() -> None:
    cluster = InProcess(2)
    client = cluster.connect(0, 1, Async())
    client.create_table(spec_of("int8"))
    with pytest.raises(TableMismatch, match="wire") as caught:
        client.create_table(spec_of("bfloat16"))
    assert "int8" in str(caught.value)
    assert "bfloat16" in str(caught.value)
    client.create_table(spec_of("int8"))
    assert client.spec("user").wire == "int8"
