"""Checkpoints of processes by hand: brought back on another number of servers, and gone back to when a server is killed."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import ps_worker as ps
from polling import poll_until
from procs.started import Started, rowstead, started

STEPS = 12
IDS = np.arange(0, 4000, 7)
TABLES = (
    ps.TableSpec("user", dim=4, optimizer=ps.Adagrad(lr=0.1), initializer=ps.Uniform(-0.1, 0.1), seed=3),
    ps.TableSpec("item", dim=2, optimizer=ps.Adam(lr=0.01), seed=4),
)


class ByHand:
    """A coordinator, and its servers by their numbers."""

    def __init__(self, folder: Path, servers: int, *flags: str) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self.coordinator = self._stack.enter_context(
            started(folder, "coordinator", "coordinator", f"--servers={servers}", "--lease-s=1", *flags)
        )
        self.servers = {number: self.start(number) for number in range(servers)}

    @property
    def address(self) -> str:
        return self.coordinator.address

    def start(self, number: int, name: str = "") -> Started:
        flags = ("server", f"--coordinator={self.address}", f"--name=server-{number}")
        return self._stack.enter_context(started(self._folder, name or f"server-{number}", *flags))

    def end(self) -> None:
        self._stack.close()


@contextmanager
def by_hand(folder: Path, servers: int, *flags: str) -> Iterator[ByHand]:
    folder.mkdir()
    cluster = ByHand(folder, servers, *flags)
    try:
        yield cluster
    finally:
        cluster.end()


def train(client: ps.Client, last: int) -> None:
    """Go on to the end of step `last`, from where the client is: what a step pushes depends on nothing but its number."""
    while client.clock <= last:
        numbers = np.random.default_rng(client.clock)
        ids = {table.name: numbers.choice(IDS, 200) for table in TABLES}
        rows = client.pull(ids)
        grads = {
            table.name: (ids[table.name], rows[table.name] * np.float32(0.1) + numbers.normal(size=(200, table.dim)).astype(np.float32))
            for table in TABLES
        }
        client.push(grads)
        client.end_step(resume=f"after step {client.clock}".encode())


def connected(cluster: ByHand) -> ps.Client:
    return ps.connect(cluster.address, rank=0, world_size=1, mode=ps.Sync(), resume=True)


def rows_of(client: ps.Client) -> dict[str, tuple[NDArray[np.uint64], NDArray[np.float32]]]:
    client.flush()
    return {table.name: client.export(table.name) for table in TABLES}


def begin(client: ps.Client) -> None:
    for table in TABLES:
        client.create_table(table)


def same(
    one: dict[str, tuple[NDArray[np.uint64], NDArray[np.float32]]], other: dict[str, tuple[NDArray[np.uint64], NDArray[np.float32]]]
) -> bool:
    """Return whether the bits are."""
    return all(np.array_equal(one[name][0], other[name][0]) and one[name][1].tobytes() == other[name][1].tobytes() for name in one)


def test_what_was_saved_goes_on_on_another_number_of_servers_and_after_a_server_was_killed(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    flags = (f"--checkpoints={root}", "--checkpoint-every-steps=5")
    with by_hand(tmp_path / "first", 1, *flags) as cluster, connected(cluster) as client:
        cluster.coordinator.wait_for_log(f"All servers can write checkpoints to {root}.")
        assert list(root.iterdir()) == []
        begin(client)
        train(client, 5)
        taken = client.checkpoint()
        assert (taken.step, taken.path) == (6, str(root))
        train(client, STEPS - 1)
        undisturbed = rows_of(client)

    before = len(list(root.glob("*/manifest.json")))
    refused = rowstead("coordinator", "--servers=1", f"--restore={root}#99")
    assert refused.returncode == 1
    assert f"There is no complete checkpoint at {root}#99" in refused.stderr

    (tmp_path / "file").write_text("")
    refused = rowstead("coordinator", "--servers=1", f"--checkpoints={tmp_path / 'file' / 'root'}")
    assert refused.returncode == 1
    assert f"{tmp_path / 'file' / 'root'} cannot be read or written: Not a directory. Check that" in refused.stderr

    with by_hand(tmp_path / "second", 2, f"--restore={root}#{taken.number}", f"--checkpoints={root}") as cluster:
        client = connected(cluster)
        assert (client.clock, client.is_resumed, client.resume) == (6, True, b"after step 5")
        train(client, STEPS - 3)
        cluster.servers[1].end()
        again = cluster.start(1, "again")
        with pytest.raises(ps.RolledBack) as told:
            train(client, STEPS - 1)
        assert told.value.clock == 6
        client.disconnect()
        with connected(cluster) as client:
            assert (client.clock, client.resume) == (6, b"after step 5")
            train(client, STEPS - 1)
            assert same(rows_of(client), undisturbed)
        assert "serving" in again.log
        assert f"that is checkpoint {taken.number} of {root}, of step 6." in cluster.coordinator.log
        poll_until(lambda: len(list(root.glob("*/manifest.json"))) > before)
