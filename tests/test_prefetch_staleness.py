"""How many pushes a row that was read ahead may lack, as docs/prefetch.md says it: each case at its worst."""

import threading
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

import ps_worker as ps
from inprocess import InProcess
from polling import poll_until
from ps_proto.requests import Pull, Push
from ps_proto.values import SGD, Async, BoundedStaleness, Mode, Zeros

STEPS, WAIT_S = 10, 20.0


class HeldPushes:
    """Lets through as many pushes as it was told to, and holds the next."""

    def __init__(self, cluster: InProcess) -> None:
        self._may_pass = threading.Semaphore(0)
        cluster.before = self._before

    def _before(self, address: str, body: object) -> None:
        if isinstance(body, Push):
            assert self._may_pass.acquire(timeout=WAIT_S)

    def let_pass(self) -> None:
        self._may_pass.release()


def trained(client: ps.Client, overlap_pushes: bool) -> tuple[ps.nn.Embedding, ps.optim.ServerOptimizer]:
    """Return an embedding of which each row loses 1 with each push, and its optimizer."""
    module = ps.nn.Embedding(None, 1, name="count", initializer=Zeros())
    return module, ps.optim.ServerOptimizer(module, sparse=SGD(lr=1.0), overlap_pushes=overlap_pushes, client=client)


def ahead(module: ps.nn.Embedding, ids: list[int], depth: int) -> Iterable[Tensor]:
    """Return STEPS batches of the ids, read ahead; `depth` 0: not at all."""
    given = [torch.tensor(ids) for _ in range(STEPS)]
    return ps.prefetch(given, lambda batch: {module: batch}, depth=depth) if depth else given


@pytest.mark.parametrize(
    ("mode", "depth", "overlaps", "most"),
    [
        (Async(), 0, False, 0),
        (Async(), 0, True, 1),
        (Async(), 1, False, 1),
        (Async(), 1, True, 2),
        (Async(), 4, False, 4),
        (Async(), 4, True, 5),
        (BoundedStaleness(1), 1, True, 1),
        (BoundedStaleness(2), 0, True, 1),
        (BoundedStaleness(2), 1, False, 1),
        (BoundedStaleness(2), 1, True, 2),
        (BoundedStaleness(2), 4, False, 2),
        (BoundedStaleness(2), 4, True, 2),
    ],
    ids=str,
)
def test_rows_lack_at_most_so_many_of_the_workers_own_pushes(mode: Mode, depth: int, overlaps: bool, most: int) -> None:
    """Every pull that may begin has begun before a step is taken; a push that overlaps arrives when the next step waits for it."""
    cluster = InProcess(1)
    with cluster.connect(0, 1, mode) as client:
        module, optimizer = trained(client, overlaps)
        pushes = HeldPushes(cluster)
        begin, read = len(cluster.calls), []
        reach = min(depth, mode.bound) if isinstance(mode, BoundedStaleness) else depth
        for number, ids in enumerate(ahead(module, [7], depth)):
            due = min(number + reach + 1, STEPS)
            if depth:
                poll_until(lambda due=due: sum([isinstance(body, Pull) for _, body in cluster.calls[begin:]]) == due)  # type: ignore[misc]
            row = module(ids)
            read.append(float(row.detach()))
            row.sum().backward()
            if number or not overlaps:
                pushes.let_pass()
            optimizer.step()
            optimizer.zero_grad()
        if overlaps:
            pushes.let_pass()
        client.flush()
        assert read == [-float(max(0, number - most)) for number in range(STEPS)]


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_with_a_bound_of_0_rows_lack_nothing_even_where_pushes_overlap(depth: int) -> None:
    cluster = InProcess(1)
    with cluster.connect(0, 1, BoundedStaleness(0)) as client:
        module, optimizer = trained(client, overlap_pushes=True)
        read = []
        for ids in ahead(module, [7], depth):
            row = module(ids)
            read.append(float(row.detach()))
            row.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert read == [-float(number) for number in range(STEPS)]


@pytest.mark.parametrize("bound", [0, 1, 3])
@pytest.mark.parametrize("depth", [1, 5])
def test_a_bound_holds_for_what_is_read_ahead(bound: int, depth: int) -> None:
    """Rank 1 takes a step only when rank 0 can read no further without it."""
    cluster = InProcess(1)
    with cluster.connect(0, 2, BoundedStaleness(bound)) as client, cluster.connect(1, 2, BoundedStaleness(bound)) as other:
        module, optimizer = trained(client, overlap_pushes=False)
        read = []
        for number, ids in enumerate(ahead(module, [7, 8], depth)):
            if number > bound:
                other.push("count", [8], [[1.0]])
                other.end_step()
            rows = module(ids)
            read.append(float(rows[1].detach()))
            rows[0].sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert read == [-float(max(0, number - bound)) for number in range(STEPS)]
        other.close()
