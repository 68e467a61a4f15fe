"""The cluster that the cases share: one server unless asked for more, and the big table."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property

import numpy as np
import numpy.typing as npt

import ps_worker as ps
from benchmarks.case import WrongAnswer
from benchmarks.sizes import Sizes
from ps_server.shard.slab import Slab

TRANSPORTS = ("arena", "unix", "tcp", "grpc")
TABLE, DIM = "embeddings", 64
ADAGRAD = ps.Adagrad(lr=0.05)
FILL_ROWS = 100_000

Ids = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.float32]


class Bed:
    """A running cluster, a client for each transport that is asked for, and the table `TABLE`, filled when it is first needed.

    ids   uint64[n], 62 bits, each once.     rows  float32[n, 64], what the table has for them: whoever pushes keeps it so.
    slab  the same rows with Adagrad's state beside them, in this process: what a server has, without the server.
    """

    def __init__(self, address: str, sizes: Sizes, rng: np.random.Generator, stack: ExitStack) -> None:
        self.sizes = sizes
        self.rng = rng
        self._address = address
        self._stack = stack
        self._clients: dict[str, ps.Client] = {}

    def client(self, transport: str) -> ps.Client:
        """Return the client that uses this transport; the others are idle meanwhile."""
        if transport not in self._clients:
            client = ps.connect(
                self._address, rank=TRANSPORTS.index(transport), world_size=len(TRANSPORTS), mode=ps.Async(), transport=transport
            )
            self._clients[transport] = self._stack.enter_context(client)
        return self._clients[transport]

    def table(self, transport: str) -> ps.Client:
        """Return that client, once the big table is there and filled."""
        client = self.client(transport)
        if "ids" not in self.__dict__:
            client.create_table(ps.TableSpec(TABLE, dim=DIM, optimizer=ADAGRAD))
            for begin in range(0, self.ids.size, FILL_ROWS):
                client.assign(TABLE, self.ids[begin : begin + FILL_ROWS], self.rows[begin : begin + FILL_ROWS])
        return client

    @cached_property
    def ids(self) -> Ids:
        wanted = self.sizes.table_rows
        ids = np.unique(self.rng.integers(0, 2**62, wanted + wanted // 100 + 100, dtype=np.uint64))
        return self.rng.permutation(ids)[:wanted]

    @cached_property
    def rows(self) -> Rows:
        return self.rng.standard_normal((self.ids.size, DIM), dtype=np.float32)

    @cached_property
    def slab(self) -> Slab:
        slab = Slab(2 * DIM, self.ids.size)
        slab.records[:, :DIM] = self.rows
        slab.records[:, DIM:] = 0.0
        return slab


@contextmanager
def bed(sizes: Sizes, seed: int, servers: int = 1) -> Iterator[Bed]:
    """Run the cluster for the length of the block."""
    with ExitStack() as stack:
        cluster = stack.enter_context(ps.local_cluster(servers=servers, log_level="warning"))
        yield Bed(cluster.address, sizes, np.random.default_rng(seed), stack)


def check_rows(got: Rows, want: Rows) -> None:
    """Raise WrongAnswer unless two float32[n, dim] have the same bits."""
    if got.dtype != want.dtype or got.shape != want.shape:
        raise WrongAnswer(f"{got.dtype}{list(got.shape)} came back, but {want.dtype}{list(want.shape)} was due")
    differ = (got.view(np.uint32) != want.view(np.uint32)).any(axis=1)
    if differ.any():
        raise WrongAnswer(f"{int(differ.sum())} of {len(want)} rows have other bits than they must, the first at {int(differ.argmax())}")
