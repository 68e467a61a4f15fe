"""A coordinator that is killed, with workers that train on, and comes back with its state."""

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from procs.started import rowstead, started
from ps_proto.values import SGD, Sync, TableSpec
from ps_worker.client import Client
from ps_worker.connecting import connect

IDS = np.arange(4)
LEASE = "--lease-s=3"  # long enough to find a coordinator that is back


def step(*clients: Client) -> None:
    """Let all do a step at once, and read what the rows are after it."""

    def one(client: Client) -> None:
        client.push("rows", IDS, -np.ones((4, 1), np.float32))
        client.end_step()
        assert client.pull("rows", IDS).tolist() == [[client.clock]] * 4

    at_once(*[partial(one, client) for client in clients])


def join_for_a_step(address: str) -> int:
    """Join the running job, do a step, leave it; return under which rank."""
    with connect(address, join="spare") as client:
        step(client)
        assert client.rank is not None
        return client.rank


def vanish(client: Client) -> None:
    """End it as a process does that is killed: it says nothing more."""
    client.disconnect()


def at_once(*calls: Callable[[], object]) -> None:
    """Do each in a thread of its own; raise what one raises."""
    with ThreadPoolExecutor() as pool:
        for outcome in [pool.submit(call) for call in calls]:
            outcome.result(timeout=60.0)


def test_a_killed_coordinator_comes_back_and_finds_everyone(tmp_path: Path) -> None:
    state = f"--state={tmp_path / 'state'}"
    with started(tmp_path, "coordinator", "coordinator", "--servers=1", state, LEASE) as coordinator:
        address = coordinator.address
        with (
            started(tmp_path, "server-0", "server", f"--coordinator={address}", "--name=server-0"),
            connect(address, rank=0, world_size=2, mode=Sync(), on_lost_worker="continue") as zero,
        ):
            one = connect(address, rank=1, world_size=2)
            zero.create_table(TableSpec("rows", dim=1, optimizer=SGD(lr=1.0)))
            step(zero, one)

            second = rowstead("coordinator", "--servers=1", state)
            assert second.returncode == 1
            assert "coordinator.sqlite3 cannot be read or written: another coordinator is using it" in second.stderr

            coordinator.process.send_signal(signal.SIGKILL)
            coordinator.process.wait()
            step(zero, one)  # training goes on meanwhile

            with started(tmp_path, "again", "coordinator", "--servers=1", state, LEASE, f"--port={address.rpartition(':')[2]}") as again:
                at_once(zero.barrier, one.barrier)
                vanish(one)
                one = connect(address, rank=1, world_size=2, resume=True)
                assert (one.clock, one.is_resumed) == (2, True)
                zero.create_table(TableSpec("more", dim=1))

                vanish(one)
                step(zero)  # once the lease of the other one has run out
                again.wait_for_log("Rank 1 has not been heard of for 3.0 s and is removed from its job: from step 2 on")

                with ThreadPoolExecutor() as pool:
                    joining = pool.submit(join_for_a_step, address)
                    while not joining.done():
                        step(zero)
                assert joining.result() == 2
                again.wait_for_log("Rank 2 joins the job: from step")
                zero.close()
