"""The client process of a peer: `python -m benchmarks.peers.client PEER FD QUICK SEED`. It does what the other end of the socket FD says.

It says {"values": []} once the table is filled. Then a line {"order": "prepare" | "run" | "check", "case": "W1"} is done and answered with
{"values": [...]} (milliseconds or microseconds, as the figures of the case are), or with {"wrong": "..."}. {"order": "end"} ends it, and
is answered once the server is gone; the end of the connection ends it too. Whatever else goes wrong does, with a traceback in the log.
"""

import importlib
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.case import WrongAnswer
from benchmarks.peers.loopback import enter_own_network
from benchmarks.peers.roster import PEERS
from benchmarks.peers.work import Mirror, Work, peer_sizes, works


class Orders:
    """The orders that come through the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._lines = connection.makefile("rw", encoding="utf-8")

    def say(self, **said: object) -> None:
        self._lines.write(json.dumps(said) + "\n")
        self._lines.flush()

    def obey(self, work: Mapping[str, Work]) -> None:
        """Do as told until the end is ordered."""
        self.say(values=[])
        while (order := self._next())["order"] != "end":
            try:
                self.say(values=getattr(work[order["case"]], order["order"])() or ())
            except WrongAnswer as wrong:
                self.say(wrong=str(wrong))

    def _next(self) -> Any:
        line = self._lines.readline()
        return json.loads(line) if line else sys.exit("Whoever gave the orders is gone.")


def main(arguments: Sequence[str]) -> None:
    name, descriptor, quick, seed = arguments
    (peer,) = [peer for peer in PEERS if peer.name == name]
    os.set_inheritable(int(descriptor), False)
    if peer.listens_everywhere:
        enter_own_network()
    module = importlib.import_module(f"benchmarks.peers.{peer.module}")
    with socket.socket(fileno=int(descriptor)) as connection:
        orders = Orders(connection)
        with module.opened(*peer.options) as store:
            sizes = peer_sizes(bool(int(quick)))
            mirror = Mirror(sizes, np.random.default_rng(int(seed)))
            mirror.fill(store)
            orders.obey(works(store, mirror, sizes, peer.notes))
        orders.say(values=[])


if __name__ == "__main__":
    main(sys.argv[1:])
