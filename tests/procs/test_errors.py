"""Errors with real processes: each mistake is a typed exception with a way out, nothing of it is applied, and the server lives on."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

import ps_worker as ps
from procs.started import started
from ps_proto import common_pb2, coordinator_pb2
from ps_proto import parameter_server_pb2 as pb
from ps_proto.errors import MapBehind, ParameterServerError
from ps_proto.methods import COORDINATOR, METHODS, Method
from ps_proto.requests import (
    OBSERVER,
    Assign,
    CreateTable,
    Fence,
    Finish,
    Finished,
    GetCluster,
    GetStats,
    Hyperparameters,
    JoinJob,
    OpenExport,
    Pull,
    Push,
    RegisterServer,
    TableIds,
    TableRows,
)
from ps_proto.status import from_call
from ps_worker.transport.grpc import GrpcTransport
from sharding.hashing import buckets_of, table_salt

TIMEOUT_S = 20.0
NOBODY = "127.0.0.1:9"  # the discard port: nobody listens there
ROWS_MAX = 500
REQUEST_BYTES_MAX = 16_384
USER = ps.TableSpec("user", dim=4, optimizer=ps.SGD(lr=1.0))
ITEM = ps.TableSpec("item", dim=2, optimizer=ps.Adagrad(lr=0.5), initializer=ps.Uniform(-1.0, 1.0), seed=3)
DENSE = ps.TableSpec("dense", dim=2, initializer=ps.Assigned())
IDS = np.array([7, 0, 2**64 - 1], np.uint64)


@dataclass(frozen=True)
class Cluster:
    """A cluster of one server, which owns every id."""

    local: ps.LocalCluster
    server: str  # its address
    map_version: int
    logs: Path

    @property
    def address(self) -> str:
        return self.local.address

    def fence_of(self, client: ps.Client) -> Fence:
        """Return what rides in the client's requests."""
        return Fence(self.map_version, OBSERVER if client.rank is None else client.rank, client.incarnation, client.clock)

    def state(self) -> dict[str, Any]:
        """Return all that a request could have changed: every row, and what is staged or parked."""
        with ps.connect(self.address) as observer:
            exported = {spec.name: [array.tobytes() for array in observer.export(spec.name)] for spec in (USER, ITEM, DENSE)}
            server = observer.stats()["server-0"].server
        return exported | {name: server[name] for name in ("staged_rows", "parked", "exports_open", "step")}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    logs = tmp_path_factory.mktemp("logs")
    with ps.local_cluster(servers=1, rows_max=ROWS_MAX, max_request_bytes=REQUEST_BYTES_MAX, log_dir=logs) as local:
        transport = GrpcTransport()
        shard_map = transport.call(local.address, GetCluster(wait_s=TIMEOUT_S), 2 * TIMEOUT_S).shard_map
        transport.close()
        pids = local.pids
        yield Cluster(local, shard_map.servers[0].address, shard_map.version, logs)
        assert local.pids == pids
        assert all(psutil.pid_exists(pid) for pid in pids.values()), "every process lived through every test"
    for log in logs.glob("*.log"):
        assert "Traceback" not in log.read_text(), log.name


@pytest.fixture
def transport() -> Iterator[GrpcTransport]:
    it = GrpcTransport()
    yield it
    it.close()


@pytest.fixture(params=[ps.Async(), ps.Sync()], ids=["async", "sync"])
def client(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[ps.Client]:
    """The only worker of a job, with rows in both tables."""
    with ps.connect(cluster.address, rank=0, world_size=1, mode=request.param) as it:
        for spec in (USER, ITEM, DENSE):
            it.create_table(spec)
        push_well(it)
        yield it


def push_well(client: ps.Client) -> None:
    """Push 1 to some rows of both tables, and see that it arrived exactly once."""
    before = client.pull({"user": IDS, "item": IDS})
    client.push({"user": (IDS, np.ones((3, 4), np.float32)), "item": (IDS, np.ones((3, 2), np.float32))})
    client.end_step()
    client.flush()
    after = client.pull({"user": IDS, "item": IDS})
    np.testing.assert_array_equal(after["user"], before["user"] - 1)
    assert (after["item"] < before["item"]).all()


@contextmanager
def refused(cluster: Cluster, client: ps.Client, error: type[ParameterServerError], *says: str) -> Iterator[None]:
    """Expect the block to raise `error`, whose sentence says all of `says`, to change nothing, and to do no harm to what follows."""
    before = cluster.state()
    with pytest.raises(error) as caught:
        yield
    assert type(caught.value) is error
    sentence = str(caught.value)
    assert sentence.endswith(".")
    for part in says:
        assert part in sentence
    assert cluster.state() == before
    push_well(client)


# --- what the server refuses: requests made by hand, past the client's own checks -----------------------------------------------


def rows(spec: ps.TableSpec, number: float = 1.0, count: int = 3, dim: int | None = None) -> TableRows:
    return TableRows(spec.name, np.arange(count, dtype=np.uint64), np.full((count, dim or spec.dim), number, np.float32))


def push(*tables: TableRows, seq: int = 1, hyperparameters: tuple[Hyperparameters, ...] = ()) -> Callable[[Fence], object]:
    return lambda fence: Push(fence, seq, tables, hyperparameters)


def assign(*tables: TableRows) -> Callable[[Fence], object]:
    return lambda fence: Assign(fence, 1, tables)


def push_of(**changed: Any) -> Callable[[Fence], object]:
    """Return a good push under a changed fence."""
    return lambda fence: Push(replace(fence, **{name: getattr(fence, name) + by for name, by in changed.items()}), 1, (rows(USER),))


NOBODYS = ps.TableSpec("nobody's", dim=4)
SERVER_REFUSES: dict[str, tuple[Callable[[Fence], object], type[ParameterServerError], tuple[str, ...]]] = {
    "wrong dim": (push(rows(USER, dim=5)), ps.InvalidRequest, ("rows of table 'user' is float32[3, 5]", "must be float32[3, 4]")),
    "wrong dim in the second table": (push(rows(USER), rows(ITEM, dim=3)), ps.InvalidRequest, ("rows of table 'item'",)),
    "nan": (push(rows(USER, np.nan)), ps.InvalidRequest, ("rows of table 'user'", "finite everywhere")),
    "inf in the second table": (push(rows(USER), rows(ITEM, np.inf)), ps.InvalidRequest, ("rows of table 'item'", "finite everywhere")),
    "assigned nan": (assign(rows(USER), rows(ITEM, np.nan)), ps.InvalidRequest, ("rows of table 'item'",)),
    "assigned dim": (assign(rows(USER, dim=1)), ps.InvalidRequest, ("must be float32[3, 4]",)),
    "unknown table": (push(rows(USER), rows(NOBODYS)), ps.UnknownTable, ('"nobody\'s"', "client.create_table(TableSpec(")),
    "pull of an unknown table": (
        lambda fence: Pull(fence, (TableIds("user", IDS), TableIds("nobody's", IDS))),
        ps.UnknownTable,
        ("client.create_table",),
    ),
    "export of an unknown table": (lambda fence: OpenExport(fence, "nobody's"), ps.UnknownTable, ("client.create_table",)),
    "no room": (push(rows(ITEM), rows(USER, count=ROWS_MAX + 1)), ps.TableFull, ("'user'", "no room beyond 500 rows", "Add servers")),
    "oversized": (
        push(rows(USER), rows(ITEM, count=2_000)),
        ps.RequestTooLarge,
        ("announces 32,072 bytes", "server-0 takes at most 16,384", "Send fewer ids at a time"),
    ),
    "without a value": (push(rows(USER), rows(DENSE)), ps.InvalidRequest, ("ids of table 'dense'", "assigned by rank 0 before")),
    "the same table twice": (push(rows(USER), rows(USER)), ps.InvalidRequest, ("each table once",)),
    "a learning rate that is none": (
        push(rows(USER), hyperparameters=(Hyperparameters("user", ps.SGD().parameters() | {"lr": np.nan}),)),
        ps.InvalidRequest,
        ("SGD.lr", "a finite number"),
    ),
    "another optimizer's numbers": (push(rows(USER), hyperparameters=(Hyperparameters("user", {"eps": 1.0}),)), ps.InvalidRequest, ("lr",)),
    "no seq": (push(rows(USER), seq=0), ps.InvalidRequest, ("seq is 0", "from 1")),
    "stale incarnation": (push_of(incarnation=-1), ps.StaleIncarnation, ("Rank 0 has been taken over", "connect again")),
    "unheard of incarnation": (push_of(incarnation=1), ps.Recovering, ("server-0 cannot answer now", "incarnation")),
    "a rank beyond the job": (
        lambda fence: Push(replace(fence, rank=1, incarnation=0), 1, (rows(USER),)),
        ps.InvalidRequest,
        ("rank is 1",),
    ),
    "an observer's push": (
        lambda fence: Push(replace(fence, rank=OBSERVER), 1, (rows(USER),)),
        ps.InvalidRequest,
        ("an observer writes nothing",),
    ),
    "a clock that skips steps": (push_of(clock=2), ps.InvalidRequest, ("clock is", "must be at most")),
    "a finished step that skips some": (
        lambda fence: Finish(fence, Finished(fence.clock + 5)),
        ps.InvalidRequest,
        ("finished clock is", "must be at most"),
    ),
    "a stale map": (push_of(map_version=-1), ps.NotOwner, ("Fetch the map, split again, resend",)),
    "a map from the future": (push_of(map_version=1), MapBehind, ("server-0 holds shard map",)),
    "a timeline from the future": (push_of(timeline=1), ps.Recovering, ("server-0 cannot answer now",)),
}


@pytest.mark.parametrize("case", SERVER_REFUSES)
def test_the_server_refuses_and_lives_on(cluster: Cluster, client: ps.Client, transport: GrpcTransport, case: str) -> None:
    make, error, says = SERVER_REFUSES[case]
    with refused(cluster, client, error, *says):
        transport.call(cluster.server, make(cluster.fence_of(client)), TIMEOUT_S, "server-0")


COORDINATOR_REFUSES: dict[str, tuple[object, type[ParameterServerError], tuple[str, ...]]] = {
    "another dim": (
        CreateTable(replace(USER, dim=5)),
        ps.TableMismatch,
        ("'user' exists with dim 4", "dim 5", "Use the same spec everywhere"),
    ),
    "another initializer": (CreateTable(replace(ITEM, initializer=ps.Zeros())), ps.TableMismatch, ("initializer Uniform",)),
    "another optimizer": (CreateTable(replace(ITEM, optimizer=ps.SGD())), ps.TableMismatch, ("optimizer adagrad", "optimizer sgd")),
    "another mode": (CreateTable(replace(ITEM, mode=ps.BoundedStaleness(1))), ps.TableMismatch, ("mode None",)),
    "another world_size": (JoinJob(1, 3, None, 1), ps.JobMismatch, ("has world_size 1", "asks for 3", "Give every worker the same")),
    "another job's mode": (JoinJob(0, 1, ps.BoundedStaleness(7), 1), ps.JobMismatch, ("has mode", "Give every worker the same")),
    "a rank beyond world_size": (JoinJob(1, 1, None, 1), ps.InvalidRequest, ("rank is 1", "less than world_size")),
    "no world": (JoinJob(0, 0, None, 1), ps.InvalidRequest, ("world_size is 0",)),
    "a server too many": (RegisterServer("server-9", NOBODY), ps.InvalidRequest, ("server-0",)),
}


@pytest.mark.parametrize("case", COORDINATOR_REFUSES)
def test_the_coordinator_refuses_and_lives_on(cluster: Cluster, client: ps.Client, transport: GrpcTransport, case: str) -> None:
    body, error, says = COORDINATOR_REFUSES[case]
    with refused(cluster, client, error, *says):
        transport.call(cluster.address, body, TIMEOUT_S, "the coordinator")


# --- malformed bytes ------------------------------------------------------------------------------------------------------------

GARBAGE = b"\xff\xff\xff"


def raw_error(address: str, method: Method, messages: list[bytes]) -> ParameterServerError:
    """Send bytes as they are; return the error that comes back, whose class, status code and sentence say the same."""
    with grpc.insecure_channel(address) as channel:
        ask: Any = channel.stream_stream(method.path)  # a single message is the same on the wire as a stream of one
        call = ask(iter(messages), timeout=TIMEOUT_S)
        with pytest.raises(grpc.RpcError):
            list(call)
        error = from_call(call, peer="server-0", address=address, after_s=0.0)
        assert call.code().name == error.code
        assert call.details() == str(error)
        return error


@pytest.mark.parametrize("client", [ps.Async()], ids=["async"], indirect=True)
@pytest.mark.parametrize("request_class", METHODS, ids=lambda request_class: request_class.__name__)
def test_garbage_to_any_rpc_is_an_invalid_request(cluster: Cluster, client: ps.Client, request_class: type) -> None:
    method = METHODS[request_class]
    address = cluster.address if method.service == COORDINATOR else cluster.server
    with refused(cluster, client, ps.InvalidRequest, "3 bytes that do not parse", "must be a rowstead.v1."):
        raise raw_error(address, method, [GARBAGE])


def _push_part(rows_bytes: int, ids_count: int = 2, table: int = 0, clock: int = 1) -> bytes:
    shape = pb.TableShape(table="user", rows=2, dim=4)
    header = pb.PushHeader(fence=common_pb2.Fence(map_version=1, rank=0, incarnation=1, clock=clock), seq=1, tables=[shape])
    return pb.PushPart(header=header, slices=[pb.Slice(table=table, ids=bytes(8 * ids_count), rows=bytes(rows_bytes))]).SerializeToString()


MALFORMED: dict[str, tuple[type, list[bytes], str]] = {
    "rows of another dtype": (Push, [_push_part(2 * 4 * 8)], "16 bytes of rows for each"),  # float64: twice the bytes
    "rows that end early": (Push, [_push_part(2 * 4 * 4 - 1)], "16 bytes of rows for each"),
    "fewer rows than announced": (Push, [_push_part(1 * 4 * 4, ids_count=1)], "2 rows, as announced"),
    "more rows than announced": (Push, [_push_part(3 * 4 * 4, ids_count=3)], "2 rows, as announced"),
    "a table that is not announced": (Push, [_push_part(2 * 4 * 4, table=1)], "header's 1 tables"),
    "two headers": (Push, [_push_part(2 * 4 * 4)] * 2, "in the first part only"),
    "garbage after a good part": (Push, [_push_part(2 * 4 * 4), GARBAGE], "do not parse"),
    "a call that ends before its header": (Push, [], "header is missing"),
    "no fence": (GetStats, [b""], "GetStats.fence is missing"),
    "a clock below 0": (Push, [_push_part(2 * 4 * 4, clock=-2)], "clock"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_request_is_an_invalid_request(cluster: Cluster, client: ps.Client, case: str) -> None:
    kind, messages, says = MALFORMED[case]
    with refused(cluster, client, ps.InvalidRequest, says):
        raise raw_error(cluster.server, METHODS[kind], messages)


def test_a_table_of_another_dtype_is_refused(cluster: Cluster, client: ps.Client) -> None:
    spec = common_pb2.TableSpec(
        name="doubles", dim=4, dtype="float64", optimizer=common_pb2.Setting(kind="sgd"), initializer=common_pb2.Setting(kind="zeros")
    )
    with refused(cluster, client, ps.InvalidRequest, "TableSpec.dtype is 'float64', but must be one of ('float32', 'bfloat16')"):
        raise raw_error(cluster.address, METHODS[CreateTable], [coordinator_pb2.CreateTable(spec=spec).SerializeToString()])


# --- what the client refuses, and what it raises of what the server refused -----------------------------------------------------

CLIENT_REFUSES: dict[str, tuple[Callable[[ps.Client], object], type[ParameterServerError], tuple[str, ...]]] = {
    "wrong dim": (lambda it: it.push("user", IDS, np.ones((3, 5), np.float32)), ps.InvalidRequest, ("float32[3, 5]", "float32[3, 4]")),
    "wrong dtype": (lambda it: it.push("user", IDS, np.ones((3, 4))), ps.InvalidRequest, ("float64[3, 4]", "must be float32[3, 4]")),
    "ids of a wrong dtype": (lambda it: it.pull("user", np.array([0.5])), ps.InvalidRequest, ("float64[1]", "uint64[n] or int64[n]")),
    "nan in the second table": (
        lambda it: it.push({"user": (IDS, np.ones((3, 4), np.float32)), "item": (IDS, np.full((3, 2), np.nan, np.float32))}),
        ps.InvalidRequest,
        ("rows of table 'item'", "finite everywhere"),
    ),
    "unknown table": (
        lambda it: it.push({"user": (IDS, np.ones((3, 4), np.float32)), "nobody's": (IDS, np.ones((3, 4), np.float32))}),
        ps.UnknownTable,
        ("client.create_table",),
    ),
    "differing spec": (lambda it: it.create_table(replace(USER, seed=1)), ps.TableMismatch, ("seed 0", "seed 1")),
    "oversized": (
        lambda it: it.push({"item": (IDS, np.ones((3, 2), np.float32)), "user": (np.arange(1_000), np.ones((1_000, 4), np.float32))}),
        ps.RequestTooLarge,
        ("server-0", "Send fewer ids at a time"),
    ),
    "no room": (
        lambda it: it.push({"item": (IDS, np.ones((3, 2), np.float32)), "user": (np.arange(501), np.ones((501, 4), np.float32))}),
        ps.TableFull,
        ("'user'", "Add servers"),
    ),
}


@pytest.mark.parametrize("case", CLIENT_REFUSES)
def test_the_client_raises_the_same_classes_and_can_go_on(cluster: Cluster, client: ps.Client, case: str) -> None:
    work, error, says = CLIENT_REFUSES[case]
    with refused(cluster, client, error, *says):
        work(client)


def test_a_worker_that_was_replaced_is_told_and_its_successor_goes_on(cluster: Cluster) -> None:
    def be_replaced() -> None:
        with connected(cluster) as first, connected(cluster) as second:
            assert second.incarnation == first.incarnation + 1
            for work in (lambda: first.pull("user", IDS), first.barrier):
                with pytest.raises(ps.StaleIncarnation, match="Stop this process, or connect again") as caught:
                    work()
                assert (caught.value.rank, caught.value.have, caught.value.got) == (0, second.incarnation, first.incarnation)
            with refused(cluster, second, ps.StaleIncarnation, "Rank 0 has been taken over"):
                first.push("user", IDS, np.ones((3, 4), np.float32))

    with pytest.raises(ps.StaleIncarnation, match="connect again to become the newest"):
        be_replaced()  # the first one closes last, and cannot


def connected(cluster: Cluster) -> ps.Client:
    client = ps.connect(cluster.address, rank=0, world_size=1, mode=ps.Async())
    client.create_table(USER)
    client.create_table(ITEM)
    return client


# --- who does not answer, and who does not come ---------------------------------------------------------------------------------


def test_a_server_that_was_killed_is_named_within_the_budget() -> None:
    budget_s = 1.0
    with ps.local_cluster(servers=2, max_restarts=0) as local:
        transport = GrpcTransport()
        shard_map = transport.call(local.address, GetCluster(), TIMEOUT_S).shard_map
        transport.close()
        owners = shard_map.owners[buckets_of(table_salt("user"), np.arange(100, dtype=np.uint64))]
        lost, kept = (np.flatnonzero(owners == shard_map.index_of(name)).astype(np.uint64) for name in ("server-1", "server-0"))
        lost_address = shard_map.servers[shard_map.index_of("server-1")].address

        def train() -> None:
            with ps.connect(local.address, rank=0, world_size=1, mode=ps.Async(), rpc_timeout_s=2.0, retry_timeout_s=budget_s) as client:
                client.create_table(USER)
                os.kill(local.pids["server-1"], signal.SIGKILL)
                psutil.wait_procs([psutil.Process(local.pids["server-1"])], timeout=0)
                asked_s = time.monotonic()
                with pytest.raises(ps.Unreachable) as caught:
                    client.pull("user", lost)
                assert budget_s <= caught.value.after_s <= time.monotonic() - asked_s < budget_s + 8.0
                assert (caught.value.peer, caught.value.address) == ("server-1", lost_address)
                assert "Check that it runs" in str(caught.value)
                client.push("user", kept, np.ones((kept.size, 4), np.float32))  # the other one lives on
                assert (client.pull("user", kept) == -1).all()
                with pytest.raises(ps.Unreachable, match=f"server-1 at {lost_address}"):
                    client.push("user", np.concatenate([lost, kept]), np.ones((100, 4), np.float32))
                client.end_step()

        with pytest.raises(ps.UnfinishedPush, match=r"Push 2 of step 0 was never acknowledged everywhere.*client\.retry_push"):
            train()


@contextmanager
def lonely_rank(cluster: Cluster, mode: ps.Mode) -> Iterator[ps.Client]:
    """Run rank 0 of a job of two whose rank 1 does not come; in the end it does come, so that the job is over."""
    client = ps.connect(cluster.address, rank=0, world_size=2, mode=mode, wait_timeout_s=0.3)
    try:
        client.create_table(USER)
        yield client
    finally:
        ps.connect(cluster.address, rank=1, world_size=2).close()
        client.close()


@pytest.mark.parametrize(("mode", "steps"), [(ps.Sync(), 1), (ps.BoundedStaleness(2), 3)], ids=["sync", "bounded"])
def test_a_pull_that_waits_in_vain_names_the_rank(cluster: Cluster, mode: ps.Mode, steps: int) -> None:
    with lonely_rank(cluster, mode) as client:
        first = client.clock
        for _ in range(steps):
            client.pull("user", IDS)
            client.end_step()
        asked_s = time.monotonic()
        with pytest.raises(ps.StalenessTimeout, match=r"for rank 1.*Nothing was read\. Check that the worker of rank 1 runs") as caught:
            client.pull("user", IDS)
        assert (caught.value.rank, caught.value.clock, caught.value.min_clock) == (1, first + steps, first)
        assert 0.3 <= caught.value.after_s <= time.monotonic() - asked_s < 10.0
        assert cluster.state()["parked"] == 0


def test_a_barrier_that_waits_in_vain_names_the_ranks(cluster: Cluster) -> None:
    with (
        lonely_rank(cluster, ps.Async()) as client,
        pytest.raises(ps.BarrierTimeout, match=r"for rank 1\. Check that those workers run") as caught,
    ):
        client.barrier()
    assert caught.value.missing_ranks == "1"


def test_unset_rows_name_rank_0(cluster: Cluster) -> None:
    with lonely_rank(cluster, ps.Async()) as client:
        client.create_table(DENSE)
        with pytest.raises(ps.RowsUnset, match=r"3 rows of table 'dense' have no value: rank 0 has not assigned them") as caught:
            client.pull("dense", IDS)
        assert (caught.value.table, caught.value.missing) == ("dense", 3)


@pytest.mark.parametrize("registered", [0, 1])
def test_servers_that_are_missing_are_counted(tmp_path: Path, transport: GrpcTransport, registered: int) -> None:
    with started(tmp_path, "coordinator", "coordinator", "--servers=2") as coordinator:
        for number in range(registered):
            transport.call(coordinator.address, RegisterServer(f"server-{number}", NOBODY), TIMEOUT_S)
        with pytest.raises(ps.Recovering, match=f"{registered} of 2 servers have registered"):
            ps.connect(coordinator.address, wait_timeout_s=0.2, retry_timeout_s=0.5)


def test_nobody_at_the_coordinators_address_is_unreachable() -> None:
    with pytest.raises(ps.Unreachable, match=f"the coordinator at {NOBODY} did not answer .*Check that it runs") as caught:
        ps.connect(NOBODY, rank=0, world_size=1, mode=ps.Sync(), rpc_timeout_s=1.0, retry_timeout_s=0.5)
    assert (caught.value.peer, caught.value.address) == ("the coordinator", NOBODY)


def test_a_servers_address_in_place_of_the_coordinators_is_said_to_be_wrong(cluster: Cluster) -> None:
    with pytest.raises(ps.InvalidRequest, match="check the address"):
        ps.connect(cluster.server)
