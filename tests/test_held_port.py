"""A port that is ours while nobody listens on it."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import grpc
import pytest

from ps_proto.channel import SERVER_OPTIONS
from ps_worker.held_port import HeldPort


def test_grpc_listens_on_it_again_and_again_and_nobody_else_takes_it() -> None:
    with closing(HeldPort("127.0.0.1")) as held, closing(HeldPort("127.0.0.1")) as other:
        assert held.port != other.port
        address = f"127.0.0.1:{held.port}"
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", held.port)):
                pass
            server = grpc.server(ThreadPoolExecutor(1), options=SERVER_OPTIONS)
            assert server.add_insecure_port(address) == held.port
            server.start()
            with socket.create_connection(("127.0.0.1", held.port)):
                pass
            server.stop(None).wait()
        with socket.socket() as taker, pytest.raises(OSError, match="in use"):
            taker.bind(("127.0.0.1", held.port))


def test_a_host_that_is_not_this_machine_is_an_error() -> None:
    with pytest.raises(socket.gaierror):
        HeldPort("no-such-host.invalid")
