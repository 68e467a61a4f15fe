"""A process that trains as a rank of a job whose accelerator is a sleep.

    python -m benchmarks.emulated.worker ADDRESS RANK WORLD_SIZE MODE SAMPLES SEED

MODE is "async", "sync" or a staleness bound. Each line of its input is an Order as JSON; the answer is a Taken as JSON. At the end of the
input it leaves the job. As with `ps.prefetch` and `overlap_pushes=True`, while a step's accelerator works the pull of the next one travels
where the mode allows it, and so does the last push; in synchronous mode neither can.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

import ps_worker as ps
from benchmarks.categories import DIM
from benchmarks.emulated.batches import id_batches
from benchmarks.emulated.delays import Stragglers, delays
from ps_proto.requests import Ids, Rows
from ps_worker.driver import Handle

TABLE = "categories"
ADAGRAD = ps.Adagrad(lr=0.01)


@dataclass(frozen=True)
class Order:
    """Take so many steps, the first of them being number `first` of the job."""

    first: int
    steps: int
    accelerator_s: float
    stragglers: Stragglers
    seed: int


@dataclass(frozen=True)
class Taken:
    """Seconds of each step.

    step_s      all of it.     accelerator_s  of it, asleep.
    blocked_s   of it, waiting for the rows: for the mode, and for what is left of the pull's own time.
    sending_s   of it, until the step before was acknowledged and this one was queued or, in synchronous mode, acknowledged.
    """

    step_s: list[float]
    accelerator_s: list[float]
    blocked_s: list[float]
    sending_s: list[float]


def mode_of(name: str) -> ps.Mode:
    """Return the mode that is called so on the command line."""
    return {"async": ps.Async(), "sync": ps.Sync()}.get(name) or ps.BoundedStaleness(int(name))


class Loop:
    """The training loop of a rank."""

    def __init__(self, client: ps.Client, batches: Sequence[Ids]) -> None:
        self._client = client
        self._batches = batches
        self._gradients: Rows = np.ones((max([batch.size for batch in batches]), DIM), np.float32)
        self._last: list[Handle[None]] = []

    def take(self, first: int, accelerator_s: Sequence[float]) -> Taken:
        """Take a step for each of these times."""
        times: list[tuple[float, float, float, float]] = []
        ahead = self._ask(first, 0)
        begin_s = time.perf_counter()
        for number, asleep_s in enumerate(accelerator_s, first):
            ahead.result()
            pulled_s = time.perf_counter()
            if len(times) + 1 < len(accelerator_s):
                ahead = self._ask(number + 1, 1)
            time.sleep(asleep_s)
            slept_s = time.perf_counter()
            self._push(number)
            end_s = time.perf_counter()
            times.append((end_s - begin_s, slept_s - pulled_s, pulled_s - begin_s, end_s - slept_s))
            begin_s = end_s
        self._land()
        self._client.flush()
        return Taken(*[list(column) for column in zip(*times, strict=True)])

    def _ask(self, number: int, steps_ahead: int) -> Handle[Rows]:
        return self._client.pull_async(TABLE, self._batches[number % len(self._batches)], turn=self._client.turn + steps_ahead)

    def _push(self, number: int) -> None:
        ids = self._batches[number % len(self._batches)]
        if self._client.has_synchronous_tables:
            self._client.push(TABLE, ids, self._gradients[: ids.size])
            self._client.end_step()
        else:
            self._land()
            self._last = [self._client.push_async(TABLE, ids, self._gradients[: ids.size]), self._client.end_step_async()]

    def _land(self) -> None:
        """Wait until the last step is pushed: one at a time is under way."""
        for handle in self._last:
            handle.result()
        self._last = []


def main(arguments: Sequence[str]) -> None:
    address, rank, world_size, mode, samples, seed = arguments
    batches = id_batches(int(samples), int(seed), int(rank))
    with ps.connect(address, rank=int(rank), world_size=int(world_size), mode=mode_of(mode)) as client:
        client.create_table(ps.TableSpec(TABLE, dim=DIM, optimizer=ADAGRAD))
        loop = Loop(client, batches)
        print("ready", flush=True)
        for line in sys.stdin:
            order = Order(**json.loads(line))
            taken = loop.take(
                order.first, delays(order.stragglers, order.accelerator_s, client.rank or 0, order.steps, order.seed).tolist()
            )
            print(json.dumps(asdict(taken)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
