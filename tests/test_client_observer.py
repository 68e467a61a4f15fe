"""Clients without a rank."""

import numpy as np
import pytest

from clients import ITEM, alone, in_thread, ones
from inprocess import Fault, InProcess
from polling import poll_until
from ps_proto.errors import ObserverCannot, Unreachable
from ps_proto.requests import Finish, Pull
from ps_proto.values import SGD, Async, Sync


def test_an_observer_reads_and_takes_no_part() -> None:
    cluster, client = alone(Sync(), 2, ITEM)
    with client, cluster.connect() as observer:
        assert (observer.rank, observer.world_size, observer.mode, observer.incarnation, observer.clock) == (None, 1, Sync(), 0, 0)
        for attempt, action in (
            (lambda: observer.push("item", [1], ones(1, 2)), "push"),
            (lambda: observer.push_async("item", [1], ones(1, 2)), "push"),
            (lambda: observer.assign("item", [1], ones(1, 2)), "assign rows"),
            (lambda: observer.create_table(ITEM), "create a table"),
            (lambda: observer.set_optimizer("item", SGD()), "set an optimizer"),
            (lambda: observer.end_step(), "end a step"),
            (lambda: observer.flush(), "flush"),
            (lambda: observer.barrier(), "wait at a barrier"),
        ):
            with pytest.raises(ObserverCannot, match=f"A client without a rank cannot {action}. Connect with rank="):
                attempt()
        client.push("item", [1], ones(1, 2))
        client.end_step()
        client.flush()
        assert observer.pull("item", [1]).tolist() == [[-1, -1]]
        assert observer.export("item")[0].tolist() == [1]
        assert set(observer.stats()) == {"server-0", "server-1"}


def test_an_observer_that_came_before_the_job_reads_synchronous_tables_at_one_step() -> None:
    cluster = InProcess(2)
    with cluster.connect() as observer:
        assert (observer.mode, observer.world_size) == (None, 0)
        with cluster.connect(0, 1, Sync()) as client:
            client.create_table(ITEM)
            ids = np.arange(20)
            client.push("item", ids, ones(20, 2))
            client.end_step()
            # Server 1 hears of the end of the step late: server 0 has folded it already.
            cluster.faults.append(Fault(Finish, "server-1:0", is_lost=True, count=1_000_000))
            with pytest.raises(Unreachable):
                client.flush()
            steps = [cluster.shards[name].step for name in ("server-0", "server-1")]
            assert steps == [1, 0]
            thread, outcome = in_thread(lambda: observer.pull("item", ids))
            poll_until(lambda: any(isinstance(body, Pull) and body.at_step == 1 for _, body in list(cluster.calls)))
            assert not outcome
            cluster.faults.clear()
            client.flush()
            thread.join()
            assert outcome[0].tolist() == ones(20, 2, -1.0).tolist()
            assert (observer.mode, observer.world_size) == (Sync(), 1)


def test_an_observer_learns_the_mode_of_a_job_that_came_after_it() -> None:
    cluster, first = alone(Async(), 2, ITEM)
    watching = cluster.connect()
    watching.pull("item", [1])
    first.close()
    with cluster.connect(0, 1, Sync()), watching:
        watching.pull("item", [1])
        assert watching.mode == Sync()
