import dataclasses
import math

import numpy as np
import pytest

from ps_proto import common_pb2, coordinator_pb2, parameter_server_pb2
from ps_proto.codec import decode, encode, message_type, parse
from ps_proto.errors import InvalidRequest
from ps_proto.orders import InstallMap
from ps_proto.parts import STREAMED
from ps_proto.requests import Barrier, Done, Fence, Finish, Finished, GetCluster, GetStats, Hyperparameters, JoinJob, OpenExport, Stats
from ps_proto.values import TableSpec
from samples import FENCE, REPLIES, REQUESTS, SHARD_MAP, SPECS, same
from sharding.shard_map import Server, ShardMap

WHOLE = [value for value in REQUESTS + REPLIES if not isinstance(value, STREAMED)]


@pytest.mark.parametrize("value", WHOLE, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_from_its_bytes(value: object) -> None:
    data = encode(value).SerializeToString()
    assert same(decode(type(value), parse(message_type(type(value).__name__), data)), value)


@pytest.mark.parametrize("kind", [*(type(value) for value in WHOLE), Fence, Finished, Hyperparameters, TableSpec, Server, ShardMap])
def test_a_message_has_the_fields_of_its_class(kind: type) -> None:
    names = {field.name for field in dataclasses.fields(kind)}
    assert set(message_type(kind.__name__).DESCRIPTOR.fields_by_name) == names


def test_optional_messages_may_be_absent() -> None:
    finish = Finish(FENCE)
    assert decode(Finish, encode(finish)) == finish
    assert not encode(finish).HasField("finished")


def test_owners_travel_as_16_bits_little_endian() -> None:
    owners = np.zeros(16_384, dtype=np.int32)
    owners[1] = 258
    servers = tuple(Server(f"server-{index}", "here:1") for index in range(259))
    message = encode(ShardMap(1, servers, owners))
    assert isinstance(message, common_pb2.ShardMap)
    assert message.owners[:6] == b"\x00\x00\x02\x01\x00\x00"
    assert len(message.owners) == 32_768


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (Done(2**63), "Done.step"),
        (Done(1.5), "Done.step"),  # type: ignore[arg-type]
        (GetStats(Fence(-1)), "Fence.map_version"),
        (GetStats(Fence(0, rank=-2)), "Fence.rank"),
        (GetStats(Fence(0, rank=2**31)), "Fence.rank"),
        (GetStats(Fence(0, clock=2**31)), "Fence.clock"),
        (GetCluster(math.nan), "GetCluster.wait_s"),
        (GetCluster(math.inf), "GetCluster.wait_s"),
        (GetCluster(-1.0), "GetCluster.wait_s"),
        (Finish(FENCE, Finished(0, resume=b"x" * 65_537)), "Finished.resume"),
        (OpenExport(FENCE, "\ud800"), "OpenExport.table"),
        (GetStats(None), "GetStats.fence"),  # type: ignore[arg-type]
        (Stats({}, {"user": {"rows": "many"}}), "user.numbers"),  # type: ignore[dict-item]
    ],
)
def test_what_fits_no_message_is_refused_by_its_name(value: object, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        encode(value)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("kind", "message", "field"),
    [
        (GetStats, parameter_server_pb2.GetStats(), "GetStats.fence"),
        (InstallMap, parameter_server_pb2.InstallMap(), "InstallMap.shard_map"),
        (Barrier, coordinator_pb2.Barrier(rank=-2), "Barrier.rank"),
        (Barrier, coordinator_pb2.Barrier(wait_s=math.nan), "Barrier.wait_s"),
        (Fence, common_pb2.Fence(clock=-1), "Fence.clock"),
        (Server, common_pb2.Server(name="a", weight=0.0), "Server.weight"),
        (Server, common_pb2.Server(weight=1.0), "Server"),
    ],
)
def test_what_a_peer_got_wrong_is_refused_by_its_name(kind: type, message: common_pb2.Fence, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(kind, message)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "parameters", [{"bound": math.inf}, {"bound": math.nan}, {"bound": 0.5}, {"bound": -1.0}, {}, {"bound": 1.0, "x": 1.0}]
)
def test_a_mode_that_nobody_could_write_is_refused(parameters: dict[str, float]) -> None:
    message = coordinator_pb2.JoinJob(mode=common_pb2.Setting(kind="bounded", parameters=parameters))
    with pytest.raises(InvalidRequest):
        decode(JoinJob, message)


def test_an_optimizer_of_a_newer_version_is_refused_by_its_kind() -> None:
    message = encode(SPECS[0])
    assert isinstance(message, common_pb2.TableSpec)
    message.optimizer.kind = "muon"
    with pytest.raises(InvalidRequest, match=r"optimizer is 'muon', but must be one of \['adagrad', 'adam', .*'sgd'\]"):
        decode(TableSpec, message)


@pytest.mark.parametrize(
    ("owners", "field"),
    [(b"", "ShardMap.owners"), (b"\x00" * 32_767, "ShardMap.owners"), (b"\x02\x00" * 16_384, "ShardMap")],
)
def test_a_malformed_shard_map_is_refused(owners: bytes, field: str) -> None:
    message = encode(SHARD_MAP)
    assert isinstance(message, common_pb2.ShardMap)
    message.owners = owners
    with pytest.raises(InvalidRequest) as caught:
        decode(InstallMap, parameter_server_pb2.InstallMap(shard_map=message))
    assert caught.value.field == field


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="3 bytes that do not parse"):
        parse(parameter_server_pb2.GetStats, b"\xff\xff\xff")
