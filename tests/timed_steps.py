"""Steps of a client in this process whose calls take a time that a test knows."""

import numpy as np

from inprocess import InProcess
from ps_proto.requests import Finish, GetStats, Pull, Push
from ps_worker.client import Client
from ticking import Ticking

TOOK_S: dict[type, float] = {Pull: 0.25, Push: 0.5, Finish: 0.125, GetStats: 64.0}
IDS = np.arange(10)


def timed(cluster: InProcess) -> Ticking:
    """Let each call take its time."""
    clock = Ticking()
    cluster.before = lambda address, body: clock.pass_s(TOOK_S.get(type(body), 0.0))
    return clock


def step(client: Client, clock: Ticking) -> None:
    rows = client.pull("user", IDS)
    clock.pass_s(1.0)
    client.push("user", IDS, rows)
    client.end_step()
