"""What of a ServerOptimizer and its model a worker goes on from after a restart: param_groups and buffers. The rest is the servers'."""

import logging
from typing import Any

import torch
from torch import Tensor, nn

from ps_worker.client import Client
from ps_worker.nn.naming import named_buffers
from ps_worker.session import captured_client, current_session

log = logging.getLogger("rowstead")

BUFFERS_BYTES_MAX = 16_384  # of the 64 KiB that travel with each step


class Buffers:
    """The persistent buffers of a model, such as BatchNorm's, as one object with a state."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    @property
    def nbytes(self) -> int:
        """Their size."""
        return sum([buffer.nbytes for _, buffer in named_buffers(self._model)])

    def state_dict(self) -> dict[str, Tensor]:
        return dict(named_buffers(self._model))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set those that are in the state."""
        with torch.no_grad():
            for name, buffer in named_buffers(self._model):
                if name in state:
                    buffer.copy_(state[name])


def register(optimizer: torch.optim.Optimizer, buffers: Buffers, name: str, client: Client) -> None:
    """Let the session of this client, if there is one, keep both under `name`; buffers that are too large it only warns of."""
    if captured_client(client) is None:
        return
    session = current_session()
    session.register_ours(f"optimizer.{name}", optimizer)
    if buffers.nbytes <= BUFFERS_BYTES_MAX:
        session.register_ours(f"buffers.{name}", buffers)
    else:
        log.warning(
            "The model's buffers have %s bytes, more than the %s that travel with each step: a worker that is started again has them as "
            "its script makes them. Give session.register() those that training changes.",
            f"{buffers.nbytes:,}",
            f"{BUFFERS_BYTES_MAX:,}",
        )


def warn_of_dense_weights() -> None:
    """Say of dense weights that are torch's what a worker that is started again has of them, if this is one."""
    client = captured_client(None)
    if client is not None and client.is_resumed:
        log.warning(
            "This worker goes on at step %d, but its dense weights are torch's and do not travel with the steps: they are as its script "
            "makes them, unless session.register() brings them back. To go on from what ps.load brings instead, begin anew on every rank "
            "with ps.init(resume=False).",
            client.clock,
        )
