"""Where launched workers find each other for torch.distributed."""

import socket
from datetime import timedelta

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but torch does not say so to mypy

from ps_worker.launch.rendezvous import Rendezvous


def test_workers_are_told_a_port_of_the_loopback() -> None:
    with Rendezvous() as rendezvous:
        assert rendezvous.variables({"HOME": "/home", "MASTER_PORT": ""}) == {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(rendezvous.port),
            "GLOO_SOCKET_IFNAME": "lo",
        }


def test_what_the_user_set_stays() -> None:
    with Rendezvous() as rendezvous:
        assert rendezvous.variables({"MASTER_PORT": "29500"})["MASTER_PORT"] == "29500"
        assert rendezvous.variables({"MASTER_ADDR": "host", "MASTER_PORT": "1"}) == {"MASTER_ADDR": "host", "MASTER_PORT": "1"}
        assert "GLOO_SOCKET_IFNAME" not in rendezvous.variables({"GLOO_SOCKET_IFNAME": "eth0"})


def test_torch_listens_on_the_port_while_it_is_held_and_nobody_else_takes_it() -> None:
    with Rendezvous() as rendezvous, Rendezvous() as other:
        assert rendezvous.port != other.port
        with socket.socket() as taker, pytest.raises(OSError, match="in use"):
            taker.bind(("127.0.0.1", rendezvous.port))
        store = TCPStore("127.0.0.1", rendezvous.port, 1, is_master=True, timeout=timedelta(seconds=10))
        store.set("key", "value")
        assert store.get("key") == b"value"


def test_the_port_is_free_again_afterwards() -> None:
    with Rendezvous() as rendezvous:
        port = rendezvous.port
    with socket.socket() as taker:
        taker.bind(("127.0.0.1", port))
