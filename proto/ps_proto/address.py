"""Addresses as people write them: `host:port`, and `[host]:port` where the host is an IPv6 address."""

import ipaddress
import re

from ps_proto.errors import InvalidRequest

WANTED = "host:port, as 127.0.0.1:7070"

_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:/\[\]]+)):(?P<port>[0-9]{1,5})")


def split_address(address: str) -> tuple[str, int]:
    """Return (host, port); anything but host:port raises ValueError.

    >>> split_address("[::1]:7070")
    ('::1', 7070)
    """
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found["port"]) < 65_536:
        raise ValueError(f"must be {WANTED}")
    if found["ipv6"] is not None:
        try:
            ipaddress.IPv6Address(found["ipv6"])
        except ValueError:
            raise ValueError(f"must be {WANTED}") from None
    return found["ipv6"] or found["name"], int(found["port"])


def check_address(field: str, address: object) -> str:
    """Return the address as it is; InvalidRequest, which names `field`, where it is no host:port."""
    try:
        if isinstance(address, str):
            split_address(address)
            return address
    except ValueError:
        pass
    raise InvalidRequest(field, repr(address), WANTED)
