"""A worker that is killed at the worst moment of a step's end: when exactly one server has heard of it."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import ps_worker as ps


def tear(client: ps.Client, step: int, told: Path) -> None:
    """Let this process be killed once one server has answered a request that says that it finished `step`, and no other was sent one.

    The server's name is then in the file `told`; where that is there already, this process was started again, and nothing is done.
    """
    if not told.exists():
        driver = client._connection.driver
        driver.transport = _Tearing(driver.transport, step, told)


class _Tearing:
    """The transport `within`, all of which goes through but for one step's end."""

    def __init__(self, within: Any, step: int, told: Path) -> None:
        self._within = within
        self._step = step
        self._told = told
        self._first = threading.Lock()  # whoever has it is the only one to say that the step has ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._within, name)

    def call(self, address: str, body: Any, timeout_s: float, peer: str = "") -> Any:
        finished = getattr(body, "finished", None)
        if finished is None or finished.clock != self._step:
            return self._within.call(address, body, timeout_s, peer)
        self._first.acquire()  # for ever, but for the first
        reply = self._within.call(address, body, timeout_s, peer)
        unfinished = self._told.with_suffix(".part")
        unfinished.write_text(peer)
        unfinished.replace(self._told)
        os.kill(os.getpid(), signal.SIGKILL)
        return reply
