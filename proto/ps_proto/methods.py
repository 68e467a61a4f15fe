"""Every rpc as data: its service, its request and its reply, and how either becomes messages and bytes.

An rpc is called as its request's class. Edges and transports go through METHODS and know no request by name, so a new one is a class in
requests.py or orders.py, a message and an rpc in a .proto file, and a line here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from ps_proto.codec import decode, encode, message_type, parse
from ps_proto.errors import InvalidRequest
from ps_proto.orders import (
    AdmitRank,
    AskCheckpoint,
    AskProcess,
    AskRestore,
    BeginCheckpoint,
    CancelCheckpoint,
    CheckpointState,
    FenceRank,
    InstallMap,
    InstallTable,
    ProcessNamed,
    RankFenced,
    ResolveRank,
    RestoreState,
    RollBack,
    StartJob,
)
from ps_proto.parts import ASSEMBLERS, PART_SIZE_BYTES, STREAMED, cut
from ps_proto.requests import (
    Assign,
    Barrier,
    BarrierPassed,
    CheckpointTaken,
    ClearTable,
    CloseExport,
    Cluster,
    CreateTable,
    Done,
    ExportOpened,
    ExportPart,
    Finish,
    GetCluster,
    GetStats,
    JobJoined,
    JoinJob,
    LaneOffered,
    LeaseRenewed,
    LeaveJob,
    OpenExport,
    OpenLane,
    Pull,
    Pulled,
    Push,
    ReadExport,
    RegisterServer,
    RenewLease,
    ServerRegistered,
    Stats,
    StepDecided,
    TableCreated,
    TakeCheckpoint,
)

PARAMETER_SERVER = "rowstead.v1.ParameterServer"
COORDINATOR = "rowstead.v1.Coordinator"

# Room for a part and its header, for a map of many servers and for the specs of many tables; whoever sends more is no peer of ours.
MESSAGE_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class Method:
    """One rpc."""

    service: str
    request: type
    reply: type

    @property
    def name(self) -> str:
        return self.request.__name__

    @property
    def path(self) -> str:
        """Return the path of its HTTP/2 requests."""
        return f"/{self.service}/{self.name}"

    @property
    def streams_request(self) -> bool:
        return self.request in STREAMED

    @property
    def streams_reply(self) -> bool:
        return self.reply in STREAMED


_SERVICES: dict[str, dict[type, type]] = {
    PARAMETER_SERVER: {
        Pull: Pulled,
        Push: Done,
        Assign: Done,
        ClearTable: Done,
        Finish: Done,
        OpenExport: ExportOpened,
        ReadExport: ExportPart,
        CloseExport: Done,
        GetStats: Stats,
        AskProcess: ProcessNamed,
        OpenLane: LaneOffered,
        InstallMap: Done,
        InstallTable: Done,
        StartJob: Done,
        FenceRank: RankFenced,
        ResolveRank: Done,
        AdmitRank: Done,
        BeginCheckpoint: CheckpointState,
        AskCheckpoint: CheckpointState,
        CancelCheckpoint: Done,
        RollBack: Done,
        AskRestore: RestoreState,
        StepDecided: Done,
    },
    COORDINATOR: {
        RegisterServer: ServerRegistered,
        JoinJob: JobJoined,
        LeaveJob: Done,
        RenewLease: LeaseRenewed,
        CreateTable: TableCreated,
        GetCluster: Cluster,
        Barrier: BarrierPassed,
        TakeCheckpoint: CheckpointTaken,
    },
}
METHODS: dict[type, Method] = {
    request: Method(service, request, reply) for service, rpcs in _SERVICES.items() for request, reply in rpcs.items()
}


def to_bytes(value: Any, part_size_bytes: int = PART_SIZE_BYTES) -> Iterator[bytes]:
    """Yield the messages of a request or reply, one or (for those that carry rows) one a part. A field that fits no message raises
    InvalidRequest, before the first one."""
    messages: Iterator[Message] = cut(value, part_size_bytes) if isinstance(value, STREAMED) else iter((encode(value),))
    for message in messages:
        yield message.SerializeToString()


class Reader:
    """Makes a value of class `kind` from its messages as bytes, given in order.

    What does not parse or fit raises InvalidRequest; more than `bytes_max` array bytes raise RequestTooLarge, before any room is made.
    """

    def __init__(self, kind: type, peer: str, bytes_max: int) -> None:
        self._kind = kind
        self._assembler = ASSEMBLERS[kind](peer, bytes_max) if kind in ASSEMBLERS else None
        self._message: Message | None = None

    def take(self, data: bytes) -> None:
        """Take the next message."""
        if self._assembler is not None:
            self._assembler.take(parse(self._assembler.part, data))
        elif self._message is None:
            self._message = parse(message_type(self._kind.__name__), data)
        else:
            raise InvalidRequest("the request", "several messages", f"one {self._kind.__name__}")

    def value(self) -> Any:
        """Return the value, once all messages are in."""
        if self._assembler is not None:
            return self._assembler.value()
        if self._message is None:
            raise InvalidRequest("the request", "no message", f"one {self._kind.__name__}")
        return decode(self._kind, self._message)
