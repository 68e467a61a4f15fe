"""What a worker says to the cluster and when, without a world: the rules R1 to R5, R10, R14 and R15 from the worker's side.

    worker.py      Worker: every operation that a client, an export or the simulator asks for
    view.py        what the worker knows: who it is, the job, the newest map, the tables; it asks nobody
    peers.py       asks the coordinator and the servers, under the newest map
    membership.py  looking, joining, barriers: what the coordinator alone answers
    barrier_count.py  which barriers it has asked for, also where it was started again
    tables.py      the tables' specs, and the hyperparameters that this worker wants of them
    steps.py       names, and which step is finished and who has heard it
    lateness.py    being late in a job with backup workers
    reading.py     pulls and exports, all of one step where it matters
    key_lists.py   the ids of the last pulls, by which a push may name its own
    merged.py      the rows of a push: one for each id, repeats summed, finite, laid where they are sent from
    named.py       a push under its name, the same on every attempt; writing.py sends it until all have acknowledged

Each operation is a generator of effects (`ps_worker/asking.py`). `client.py` drives them over a transport, the simulator in one thread.
A name is given when an operation is created, so that operations may wait in a queue.

    clock t:   pull(t) ... push(t, seq 1) ... push(t, seq 2) ... end_step()      the step is finished once all of it is acknowledged
    clock t+1: pull(t+1) tells every server `finished t` and waits until it may read
"""

from ps_worker.protocol.barrier_count import BarriersAsked
from ps_worker.protocol.peers import COORDINATOR
from ps_worker.protocol.worker import Worker

__all__ = ["COORDINATOR", "BarriersAsked", "Worker"]
