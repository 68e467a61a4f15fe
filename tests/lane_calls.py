"""Calls whose arrays are large enough for the arena, and how a scripted core answers them."""

from collections.abc import Callable

import numpy as np

from ps_proto.requests import Pull, Pulled, Push, TableIds, TableRows
from ps_server.events import Asked, Effect, Reply
from samples import FENCE
from scripted_core import ScriptedCore

ARENA_BYTES = 32 << 20
MANY = np.arange(3_000, dtype=np.uint64)
MANY_ROWS = np.random.default_rng(5).random((3_000, 33), dtype=np.float32)  # 387 KiB: more than the arena is too good for
PUSH = Push(FENCE, 1, (TableRows("user", MANY, MANY_ROWS), TableRows("item", MANY, MANY_ROWS)))
PULL = Pull(FENCE, (TableIds("user", MANY), TableIds("item", MANY[:1])))


def answer_pulls(core: ScriptedCore, value: Callable[[Asked], float] = lambda asked: 1.0, dim: int = 33) -> None:
    """Answer pulls with rows of `value`, where the core is told to make them."""

    def script(asked: Asked) -> list[Effect]:
        pull = asked.body
        assert isinstance(pull, Pull)
        rows = tuple([asked.make_rows((part.ids.size, dim), np.dtype(np.float32)) for part in pull.tables])
        for part in rows:
            part[...] = value(asked)
        return [Reply(asked.request, Pulled(rows, 4))]

    core.scripts[Pull] = script
