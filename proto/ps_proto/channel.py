"""gRPC's own settings, which both ends of a channel have to agree on."""

from ps_proto.methods import MESSAGE_BYTES_MAX

PING_EVERY_MS = 20_000  # a wait of minutes must not hang on a connection whose other end has vanished
PING_ANSWER_MS = 10_000
METADATA_BYTES_MAX = 32 << 10  # an error travels there; see status.py

_BOTH: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", PING_EVERY_MS),
    ("grpc.keepalive_timeout_ms", PING_ANSWER_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
]
# Without this, reading a streamed reply costs a thread and 150 µs a call.
_READ_STREAMS_IN_THE_CALLER = ("SingleThreadedUnaryStream", 1)  # grpc.experimental.ChannelOptions has no other name for it

CLIENT_OPTIONS: list[tuple[str, int]] = [
    *_BOTH,
    _READ_STREAMS_IN_THE_CALLER,
    ("grpc.enable_http_proxy", 0),  # http_proxy is for the internet; a cluster talks to itself
    ("grpc.enable_retries", 0),  # retries are ours: under the same name, within a budget
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel inherits the backoff of an older one to the same address
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # also how long one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 2_000),
]
SERVER_OPTIONS: list[tuple[str, int]] = [
    *_BOTH,
    ("grpc.so_reuseport", 0),  # else a second process may listen on our port and take half of our requests
    ("grpc.http2.min_recv_ping_interval_without_data_ms", PING_EVERY_MS // 2),  # else gRPC takes our clients' pings for an attack
]
