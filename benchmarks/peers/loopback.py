"""A network of its own, with loopback and nothing else: for programs that listen on every interface and cannot be told not to."""

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

# linux/sched.h, linux/sockios.h, linux/if.h
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFFLAGS = 0x8914
IFF_UP, IFF_RUNNING = 0x1, 0x40


def enter_own_network() -> None:
    """Leave this machine's network for good, with what this process starts; OSError where the system does not let us.

    A user who is not root needs a user namespace for it. Call it before there are threads: they would stay behind.
    """
    user, group = os.geteuid(), os.getegid()
    as_user = user != 0
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET | (CLONE_NEWUSER if as_user else 0)) != 0:
        raise OSError(ctypes.get_errno(), "a network namespace could not be made")
    if as_user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP | IFF_RUNNING))


def may_have_own_network() -> bool:
    """Return whether this system lets a process of ours do so: one tries."""
    return subprocess.run([sys.executable, __file__], stderr=subprocess.DEVNULL, check=False).returncode == 0


if __name__ == "__main__":
    enter_own_network()
