"""host:port as people write it, read in one way by servers, workers and operators."""

import pytest

from ps_proto.address import check_address, split_address
from ps_proto.errors import InvalidRequest


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:7070", "127.0.0.1", 7070),
        ("ps-0.example:1", "ps-0.example", 1),
        ("[::1]:65535", "::1", 65_535),
        ("[::ffff:10.0.0.1]:80", "::ffff:10.0.0.1", 80),
    ],
)
def test_an_address_is_a_host_and_a_port(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)
    assert check_address("coordinator", address) == address


@pytest.mark.parametrize(
    "address",
    [
        "",
        "localhost",
        ":80",
        "localhost:",
        "localhost:0",
        "localhost:65536",
        "localhost:http",
        "localhost:+80",
        "localhost:\u0668",
        "a b:80",
        "localhost:80 ",
        "::1:80",
        "[]:80",
        "[::1:80",
        "::1]:80",
        "[localhost]:80",
        "[1:2]:80",
        "http://host:80",
        "host/path:http",
        "host:" + "9" * 9_000,
    ],
)
def test_anything_else_is_refused_in_a_sentence(address: str) -> None:
    with pytest.raises(ValueError, match="must be host:port, as"):
        split_address(address)
    with pytest.raises(InvalidRequest) as refusal:
        check_address("coordinator", address)
    assert str(refusal.value) == f"coordinator is {address!r}, but must be host:port, as 127.0.0.1:7070. Nothing was applied."


@pytest.mark.parametrize("address", [None, 7070, b"localhost:80"])
def test_what_is_no_text_is_no_address(address: object) -> None:
    with pytest.raises(InvalidRequest):
        check_address("coordinator", address)
