"""Addresses as people write them: `host:port`, and `[host]:port` where the host is an IPv6 address."""

import ipaddress


def split_address(address: str) -> tuple[str, int]:
    """Return (host, port); anything but host:port raises ValueError."""
    host, colon, port = address.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if (
        not colon
        or not host
        or (":" in host and not is_bracketed)
        or not port.isascii()
        or not port.isdigit()
        or not 0 < int(port) < 65_536
    ):
        raise ValueError("must be host:port, as 127.0.0.1:7070")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """Return the address of a host and a port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_wildcard(host: str) -> bool:
    """Return whether `host` means every address of this machine, so that nobody can connect to it."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Return whether `host` is for this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
