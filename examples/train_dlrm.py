"""Train DLRM, a click model, on a parameter server: 26 embeddings without a vocabulary on the servers, the arithmetic in torch.

    rowstead launch --servers 2 --workers 2 examples/train_dlrm.py                       a made-up log, so the best reachable AUC is known
    rowstead launch --servers 2 --workers 2 examples/train_dlrm.py --train day_0.gz --test day_1.gz --mode bounded --bound 4
    rowstead launch --servers 2 --workers 2 examples/train_dlrm.py --mode async --prefetch --depth 2 --overlap-pushes
    python examples/train_dlrm.py                                                        alone, with a small cluster of its own

You will see a bar, then for each epoch log loss and AUC on held-out rows, samples a second, and for each server the rows that it holds
and the bytes that came and went; at the end a summary, with the staleness that the servers measured. `train` is all that a parameter server
asks of a training loop. Rows are asked for a step ahead in synchronous mode only, where that changes no bit; elsewhere it adds a step of
staleness, which a short log shows (docs/prefetch.md).

All 26 features share one table: their ids carry the feature's number (click_log.py), and one table in a request costs less than 26: on our
2-core machine a step of 256 rows takes 16 ms, with a table for each feature 24 ms. The sizes of the MLPs and the initial values were chosen
on the last tenth of the training rows of a real log, among four sizes and five initializers.
"""

import argparse
import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import ps_worker as ps
from click_batches import FEATURES, Batch, ClickData, measure
from dlrm import DIM, DLRM
from measuring import standstill
from progress import Tell, progress

TABLE, DENSE_TABLE = "category", "dense"
INITIALIZER = ps.Uniform(-0.05, 0.05)
DENSE, SPARSE = ps.Adam(lr=1e-3), ps.Adagrad(lr=0.05)
MADE_UP_ROWS = 200_000
WRONG_USAGE, FAILED, INTERRUPTED = 2, 1, 130


@dataclass(frozen=True)
class Traffic:
    """Of one server: rows of embeddings that it holds, and bytes of ids and rows that came and went so far, of all tables."""

    rows_held: int
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True)
class Staleness:
    """How many steps the worker that pulled was ahead of the slowest one, over all pulls of the first epoch.

    A pull counts as one of the step that it is for, also where `ps.prefetch` sends it before.
    """

    mean: float
    largest: int


@dataclass(frozen=True)
class Score:
    """What an epoch came to, on the held-out rows."""

    log_loss: float
    auc: float
    samples_per_s: float


def build(seed: int, table_dtype: str = "float32", wire: str = "float32") -> tuple[DLRM, ps.nn.EmbeddingBagCollection]:
    """Return the model, and the part of it whose rows live on the servers, in this dtype there, and travel as `wire` says."""
    torch.manual_seed(seed)
    features = dict.fromkeys(FEATURES, TABLE)
    bags = ps.nn.EmbeddingBagCollection(DIM, features, initializer=INITIALIZER, seed=seed, table_dtype=table_dtype, wire=wire)
    return DLRM(bags), bags


def train(
    model: DLRM, optimizer: ps.optim.ServerOptimizer, batches: Iterable[Batch], world_size: int, tell: Tell, slow_s: float = 0.0
) -> None:
    """Take one step for each batch of this rank; `slow_s`: how long it sleeps in each."""
    criterion = nn.BCEWithLogitsLoss()
    rows, loss_sum = 0, 0.0
    for batch in batches:
        if len(batch) > 0:
            loss = criterion(model(batch.counts, batch.sparse), batch.labels)
            loss.backward()
            rows += len(batch)
            loss_sum += loss.item() * len(batch)
        if slow_s:
            time.sleep(slow_s)
        optimizer.step()  # also without rows: where a log has an odd number of them, the others wait for this rank's step
        optimizer.zero_grad()
        tell(rows * world_size, loss_sum / max(rows, 1))


# --- what is printed ------------------------------------------------------------------------------------------------------------


def traffic(client: ps.Client) -> dict[str, Traffic]:
    """Return each server's numbers."""
    return {
        server: Traffic(
            int(stats.tables[TABLE]["rows"]),
            int(sum(table["bytes_in"] for table in stats.tables.values())),
            int(sum(table["bytes_out"] for table in stats.tables.values())),
        )
        for server, stats in sorted(client.stats().items())
    }


def staleness(client: ps.Client) -> Staleness:
    """Return what the servers measured."""
    servers = [stats.server for stats in client.stats().values()]
    pulls = sum(server["pulls"] for server in servers)
    return Staleness(
        sum(server["staleness_sum"] for server in servers) / max(pulls, 1), int(max(server["staleness_max"] for server in servers))
    )


def checksum(client: ps.Client) -> str:
    """Return a hash of every row held: in synchronous mode the same however many servers there are."""
    of_ids, of_rows = hashlib.sha256(), hashlib.sha256()  # apart: where the parts are cut must not matter
    for table in (TABLE, DENSE_TABLE):
        for ids, rows in client.export_iter(table):
            of_ids.update(ids.tobytes())
            of_rows.update(rows.tobytes())
    return hashlib.sha256(of_ids.digest() + of_rows.digest()).hexdigest()


def print_epoch(number: int, score: Score, before: Mapping[str, Traffic], after: Mapping[str, Traffic]) -> None:
    print(f"epoch {number}: log loss {score.log_loss:.4f}, AUC {score.auc:.4f}, {score.samples_per_s:,.0f} samples/s")
    for server, now in after.items():
        moved_in, moved_out = now.bytes_in - before[server].bytes_in, now.bytes_out - before[server].bytes_out
        print(f"  {server}: {now.rows_held:,} rows held, {moved_in / 1e6:,.1f} MB in, {moved_out / 1e6:,.1f} MB out", flush=True)


def print_summary(
    chosen: argparse.Namespace, data: ClickData, session: ps.Session, scores: Sequence[Score], stale: Staleness, seconds: float
) -> None:
    servers = traffic(session.client)
    moved = sum(server.bytes_in + server.bytes_out for server in servers.values())
    mode = f"bounded({chosen.bound})" if chosen.mode == "bounded" else chosen.mode
    print(f"\nDLRM, {mode}, servers {len(servers)}, workers {session.world_size}, batch {chosen.batch}, seed {chosen.seed}")
    print(f"  trained on    {len(scores)} x {data.train_rows:,} rows in {seconds:.1f} s, {moved / 1e6:,.1f} MB moved")
    print(f"  staleness     {stale.mean:.2f} steps in the mean of all pulls, at most {stale.largest}")
    print(f"  rows held     {sum(server.rows_held for server in servers.values()):,}, without a vocabulary")
    print(f"  log loss      {scores[-1].log_loss:.4f}" + (f"   best reachable {data.best.log_loss:.4f}" if data.best else ""))
    print(f"  AUC           {scores[-1].auc:.4f}" + (f"   best reachable {data.best.auc:.4f}" if data.best else ""))
    if data.best:
        print("  (best reachable: what the model that drew the clicks scores itself)")
    if chosen.checksum:
        print(f"  checksum      {checksum(session.client)}")
    if chosen.save:
        print(f"  saved in      {chosen.save}")
    sys.stdout.flush()


# --- the job --------------------------------------------------------------------------------------------------------------------


def run(chosen: argparse.Namespace, data: ClickData) -> None:
    """Take part in the job as one of its ranks; rank 0 prints.

    Raises the cluster's errors, OSError or MalformedLog where the data is at fault, ValueError for a batch that cannot be shared out.
    """
    modes = {"sync": ps.Sync(), "async": ps.Async(), "bounded": ps.BoundedStaleness(chosen.bound)}
    with ps.init(mode=modes[chosen.mode]) as session:
        if chosen.batch % session.world_size:
            raise ValueError(f"--batch is {chosen.batch}, but {session.world_size} workers share it: it must be a multiple of that.")
        model, bags = build(chosen.seed, chosen.table_dtype, chosen.wire)
        optimizer = ps.optim.ServerOptimizer(
            model, dense=DENSE, sparse=SPARSE, dense_name=DENSE_TABLE, overlap_pushes=chosen.overlap_pushes
        )
        with standstill(session):
            before = traffic(session.client)
        slow_s = chosen.slow_ms / 1000 if session.rank == session.world_size - 1 else 0.0
        scores, stale, begin_s = [], Staleness(0.0, 0), time.perf_counter()
        for epoch in range(1, chosen.epochs + 1):
            epoch_begin_s = time.perf_counter()
            batches: Iterable[Batch] = data.batches(chosen.batch, session.rank, session.world_size)
            if chosen.prefetch:
                batches = ps.prefetch(batches, ids=lambda batch: {bags: batch.sparse}, depth=chosen.depth)
            with progress(f"epoch {epoch}", data.train_rows, is_shown=session.rank == 0) as tell:
                train(model, optimizer, batches, session.world_size, tell, slow_s)
            with standstill(session) as measures:
                if measures:
                    samples_per_s = data.train_rows / (time.perf_counter() - epoch_begin_s)
                    after = traffic(session.client)
                    stale = staleness(session.client) if epoch == 1 else stale  # later the pulls that measure the model count as well
                    scores.append(Score(*measure(model, data), samples_per_s))
                    print_epoch(epoch, scores[-1], before, after)
                    before = traffic(session.client)  # what measuring moved counts for no epoch
        seconds = time.perf_counter() - begin_s
        if chosen.save:
            ps.save(model, chosen.save)
        if session.rank == 0:
            print_summary(chosen, data, session, scores, stale, seconds)


def at_least(least: int) -> Callable[[str], int]:
    """Return a reader of whole numbers from `least` on, for argparse."""

    def number(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{value} must be at least {least}")
        return value

    return number


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train DLRM, a click model, on a parameter server.")
    parser.add_argument("--train", type=Path, help="log to train on, in Criteo's format, plain or .gz (default: a made-up one)")
    parser.add_argument("--test", type=Path, help="log to measure on (default: the last tenth of the rows to train on)")
    parser.add_argument("--mode", choices=["sync", "async", "bounded"], default="sync")
    parser.add_argument("--bound", type=at_least(0), default=4, help="staleness bound of --mode bounded (default 4)")
    parser.add_argument("--table-dtype", choices=["float32", "bfloat16"], default="float32", help="how servers keep the embeddings' rows")
    parser.add_argument("--wire", choices=["float32", "bfloat16", "int8"], default="float32", help="how rows and their gradients travel")
    parser.add_argument("--batch", type=at_least(1), default=512, help="rows of a step, of all workers together (default 512)")
    parser.add_argument("--epochs", type=at_least(1), default=1, help="passes over the rows to train on (default 1)")
    parser.add_argument(
        "--prefetch",
        action=argparse.BooleanOptionalAction,
        help="ask for the next batch's rows while this one computes (default: in synchronous mode, where it changes no bit)",
    )
    parser.add_argument("--depth", type=at_least(1), default=1, help="of how many batches rows are asked for ahead (default 1)")
    parser.add_argument("--overlap-pushes", action="store_true", help="let a step's push travel while the next computes (not with sync)")
    parser.add_argument("--slow-ms", type=at_least(0), default=0, help="let the last worker sleep so long in each step (default 0)")
    parser.add_argument("--rows", type=at_least(1), default=MADE_UP_ROWS, help=f"rows of the made-up log (default {MADE_UP_ROWS:,})")
    parser.add_argument("--seed", type=at_least(0), default=0, help="seed of the initial weights and of the made-up log (default 0)")
    parser.add_argument("--checksum", action="store_true", help="print a hash of all weights: the same with any number of servers")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="keep the trained model there")
    chosen = parser.parse_args(arguments)
    if chosen.test and not chosen.train:
        parser.error("--test needs --train, as the made-up log has its own held-out rows")
    if chosen.prefetch is None:
        chosen.prefetch = chosen.mode == "sync"
    if chosen.overlap_pushes and chosen.mode == "sync":
        parser.error("--overlap-pushes is for the other modes: the next synchronous step waits for this one's pushes")
    return chosen


def main(arguments: Sequence[str]) -> int:
    """Run the example; return 0, 2 where the arguments or the data are at fault, 1 where training failed, 130 after Ctrl-C."""
    chosen = parse_arguments(arguments)
    try:
        if chosen.train:
            run(chosen, ClickData.of(chosen.train, chosen.test))
        else:
            with tempfile.TemporaryDirectory() as folder:
                run(chosen, ClickData.made_up(Path(folder), chosen.rows, chosen.seed))
    except ps.ParameterServerError as error:
        print(error, file=sys.stderr)
        return FAILED
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return WRONG_USAGE
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
