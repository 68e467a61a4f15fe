"""Train DLRM by two ways at once: the embeddings on a parameter server, the MLPs by torch's own optimizer and all-reduce (DDP).

    rowstead launch --servers 2 --workers 2 --max-restarts 0 examples/hybrid_ddp.py    a made-up log, so the best reachable AUC is known
    rowstead launch --servers 2 --workers 2 --max-restarts 0 examples/hybrid_ddp.py --train day_0.gz --test day_1.gz --mode async
    ROWSTEAD_COORDINATOR=host:port torchrun --nproc-per-node 2 examples/hybrid_ddp.py    with a cluster that runs already
    python examples/hybrid_ddp.py                                                        alone, with a small cluster of its own

You will see a bar, then log loss and AUC on held-out rows after each epoch, and how many rows the servers hold. Model, data and settings
are those of train_dlrm.py, so that the scores compare; what differs is `train` and who has the dense parameters: each rank has all of
them, and DDP averages their gradients in backward(), over NCCL where there is CUDA and over Gloo elsewhere.

`--mode` says how the rows are trained; the dense parameters are synchronous in either. Every rank must call backward() equally often, or
the others wait in it: so a batch without rows is left out, and ps.prefetch(uneven="stop") ends all ranks after the same number of steps.
"""

import argparse
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ps_worker as ps
from click_batches import Batch, ClickData, measure
from dlrm import DLRM
from measuring import standstill
from progress import Tell, progress
from train_dlrm import DENSE, FAILED, INTERRUPTED, MADE_UP_ROWS, SPARSE, TABLE, WRONG_USAGE, at_least, build, traffic


def begin_all_reduce(session: ps.Session) -> torch.device:
    """Let the ranks of the session all-reduce among themselves; return where this one computes."""
    rank, world_size = session.rank, session.world_size
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    # Alone nobody has set MASTER_ADDR and MASTER_PORT, where ranks meet; port 0 is any free one.
    where = "tcp://127.0.0.1:0" if world_size == 1 else "env://"
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", init_method=where, rank=rank, world_size=world_size)
    return device


def train(
    model: DistributedDataParallel,
    rows: ps.optim.ServerOptimizer,
    dense: torch.optim.Optimizer,
    batches: Iterable[Batch],
    world_size: int,
    tell: Tell,
) -> None:
    """Take one step for each batch of this rank."""
    criterion = nn.BCEWithLogitsLoss()
    done, loss_sum = 0, 0.0
    for batch in batches:
        loss = criterion(model(batch.counts, batch.sparse), batch.labels)
        loss.backward()  # here DDP averages the dense gradients over all ranks
        rows.step()  # pushes the gradients of the rows and ends the step
        dense.step()  # the same on every rank, so that they stay copies of each other
        rows.zero_grad()
        dense.zero_grad()
        done += len(batch)
        loss_sum += loss.item() * len(batch)
        tell(done * world_size, loss_sum / done)


def checksum(client: ps.Client, model: DLRM) -> str:
    """Return a hash of all weights: in synchronous mode the same however many servers there are."""
    hashes = [hashlib.sha256() for _ in range(3)]
    for ids, rows in client.export_iter(TABLE):
        hashes[0].update(ids.tobytes())
        hashes[1].update(rows.tobytes())
    for parameter in model.parameters():
        hashes[2].update(parameter.detach().cpu().numpy().tobytes())
    return hashlib.sha256(b"".join([one.digest() for one in hashes])).hexdigest()


def run(chosen: argparse.Namespace, data: ClickData) -> None:
    """Take part in the job as one of its ranks; rank 0 prints.

    Raises the cluster's errors, OSError or MalformedLog where the data is at fault, ValueError for a batch that cannot be shared out, and
    RuntimeError where another rank is gone in the middle of an all-reduce.
    """
    is_sync = chosen.mode == "sync"
    with ps.init(mode=ps.Sync() if is_sync else ps.Async()) as session:
        if chosen.batch % session.world_size:
            raise ValueError(f"--batch is {chosen.batch}, but {session.world_size} workers share it: it must be a multiple of that.")
        device = begin_all_reduce(session)
        model, bags = build(chosen.seed)
        wrapped = DistributedDataParallel(model.to(device))
        rows = ps.optim.ServerOptimizer(wrapped, dense=None, sparse=SPARSE)
        dense = torch.optim.Adam(wrapped.parameters(), lr=DENSE.lr)
        for epoch in range(1, chosen.epochs + 1):
            begin_s = time.perf_counter()
            own = (batch for batch in data.batches(chosen.batch, session.rank, session.world_size) if len(batch) > 0)
            # Rows are asked for ahead in synchronous mode only, where that changes no bit (see train_dlrm.py).
            batches = ps.prefetch(own, ids=lambda batch: {bags: batch.sparse} if is_sync else {}, device=device, uneven="stop")
            with progress(f"epoch {epoch}", data.train_rows, is_shown=session.rank == 0) as tell:
                train(wrapped, rows, dense, batches, session.world_size, tell)
            with standstill(session) as measures:
                if measures:
                    samples_per_s = data.train_rows / (time.perf_counter() - begin_s)
                    log_loss, auc = measure(model, data)  # not `wrapped`: its forward would wait for the other ranks
                    held = sum(server.rows_held for server in traffic(session.client).values())
                    print(f"epoch {epoch}: log loss {log_loss:.4f}, AUC {auc:.4f}, {samples_per_s:,.0f} samples/s, {held:,} rows held")
        if chosen.save:
            ps.save(wrapped, chosen.save)
        if session.rank == 0:
            print(f"\nDLRM, rows {chosen.mode}, dense by DDP over {dist.get_backend()}, workers {session.world_size}")
            if data.best:
                print(f"  best reachable  log loss {data.best.log_loss:.4f}, AUC {data.best.auc:.4f}")
            if chosen.checksum:
                print(f"  checksum        {checksum(session.client, model)}")
            if chosen.save:
                print(f"  saved in        {chosen.save}")
    del wrapped  # before its group: the last to go waits in torch for a thread that may wait for the interpreter
    dist.destroy_process_group()


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train DLRM, its embeddings on a parameter server, its MLPs under DDP.")
    parser.add_argument("--train", type=Path, help="log to train on, in Criteo's format, plain or .gz (default: a made-up one)")
    parser.add_argument("--test", type=Path, help="log to measure on (default: the last tenth of the rows to train on)")
    parser.add_argument("--mode", choices=["sync", "async"], default="sync", help="of the rows (default sync)")
    parser.add_argument("--batch", type=at_least(1), default=512, help="rows of a step, of all workers together (default 512)")
    parser.add_argument("--epochs", type=at_least(1), default=1, help="passes over the rows to train on (default 1)")
    parser.add_argument("--rows", type=at_least(1), default=MADE_UP_ROWS, help=f"rows of the made-up log (default {MADE_UP_ROWS:,})")
    parser.add_argument("--seed", type=at_least(0), default=0, help="seed of the initial weights and of the made-up log (default 0)")
    parser.add_argument("--checksum", action="store_true", help="print a hash of all weights: the same with any number of servers")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="keep the trained model there")
    chosen = parser.parse_args(arguments)
    if chosen.test and not chosen.train:
        parser.error("--test needs --train, as the made-up log has its own held-out rows")
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
