"""Lanes that are cut, from a seed: before a request, in the middle of one, or before its answer. The server is a real one."""

import random
import threading
from collections import Counter
from typing import Any

import pytest

from ps_worker.transport import lane as lane_module
from ps_worker.transport.lane import Lane, LaneBroken

FATES = ("request lost", "request cut short", "answer lost")


class CutLanes:
    """Cuts this share of the calls of every lane of this process; `faults` counts what it did. All arrays go through an arena."""

    def __init__(self, seed: int, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.faults: Counter[str] = Counter()
        self._share = share
        self._rng, self._lock = random.Random(seed), threading.Lock()
        self._send, self._read_reply = Lane._send, Lane._read_reply
        self._answers_lost: set[Lane] = set()
        monkeypatch.setattr(Lane, "_send", lambda lane, pieces: self._send_or_cut(lane, pieces))
        monkeypatch.setattr(Lane, "_read_reply", lambda lane, *about: self._read_or_cut(lane, *about))
        monkeypatch.setattr(lane_module, "ARENA_BYTES_MIN", 1)

    def _send_or_cut(self, lane: Lane, pieces: list[Any]) -> None:
        with self._lock:
            fate = self._rng.choice(FATES) if self._rng.random() < self._share else ""
            share = self._rng.random()
        self.faults[fate] += 1
        match fate:
            case "request lost":
                lane.interrupt()
            case "request cut short":
                data = b"".join(pieces)
                lane._socket.sendall(data[: int(share * len(data))])
                lane.interrupt()
            case "answer lost":
                self._answers_lost.add(lane)
                self._send(lane, pieces)
            case _:
                self._send(lane, pieces)

    def _read_or_cut(self, lane: Lane, *about: Any) -> Any:
        reply = self._read_reply(lane, *about)
        if lane in self._answers_lost:
            self._answers_lost.discard(lane)
            raise LaneBroken("cut by the test")
        return reply
