"""`ps.save`: a model, with all that its training goes on from, into a folder."""

import logging
import os
from collections.abc import Iterator
from typing import Literal

import safetensors.torch
from torch import Tensor, nn

from ps_proto.errors import InvalidRequest
from ps_proto.requests import ColumnLayout
from ps_worker.client import Client
from ps_worker.keeping.agreeing import as_rank_0, mark_saved, was_done
from ps_worker.keeping.folder import Arrays, ModelWriter, to_bytes
from ps_worker.keeping.index import Index, PartEntry, TableEntry
from ps_worker.keeping.parts import ModelParts
from ps_worker.records import Records, layout_of

log = logging.getLogger("rowstead")

PART_BYTES = 64 << 20  # of one file of rows, more or less: what save and load hold in memory at a time


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Save a model into the folder `path`: rows with the optimizer's state, dense parameters, buffers.

    All ranks call it, between two steps; rank 0 writes, its own buffers too, and the others wait, at most wait_timeout_s. A model that is
    in the folder already is replaced once the new one is whole; after a crash one of the two is there. What is not the model's (learning
    rates, schedulers, the data's position) is the script's to keep.

    Raises InvalidRequest for a model without its ServerOptimizer and for a path that is a file; on rank 0 OSError where the disk does not
    take it: then the previous model stands, and the other ranks only log it.
    """
    parts = ModelParts.of(model)
    if was_done(parts.client, "ps.save"):
        return
    untrained = parts.untrained()
    if untrained:
        raise InvalidRequest("model", f"without a ServerOptimizer for {untrained[0]!r}", "as its ServerOptimizer was given it")
    if not as_rank_0(parts.client, lambda: _write(parts, path)):
        log.warning("Rank 0 could not save the model in %s; its error says why.", path)
    elif parts.client.rank == 0:
        mark_saved(parts.client)


def _write(parts: ModelParts, path: str | os.PathLike[str]) -> None:
    parts.refresh()
    with ModelWriter(path) as folder:
        tensors = {name: _plain(tensor) for name, tensor in parts.tensors().items()}
        model = folder.write("model.safetensors", safetensors.torch.save(tensors))
        tables = [_write_table(folder, parts.client, number, name, "embeddings") for number, name in enumerate(parts.tables)]
        tables += [
            _write_table(folder, parts.client, number, name, "dense parameters") for number, name in enumerate(parts.dense, len(tables))
        ]
        folder.commit(Index(clock=parts.client.clock, model=model, tables=tuple(tables)))


def _plain(tensor: Tensor) -> Tensor:
    """Return a copy in memory of its own: the format has no shared ones."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def _write_table(
    folder: ModelWriter, client: Client, number: int, name: str, holds: Literal["embeddings", "dense parameters"]
) -> TableEntry:
    parts: list[PartEntry] = []
    columns: tuple[ColumnLayout, ...] = ()
    for records in _gathered(client.export_records(name)):
        columns = layout_of(records.state)
        entry = folder.write(f"table-{number}-part-{len(parts)}.safetensors", to_bytes(_arrays(records)))
        parts.append(PartEntry(rows=records.ids.size, **entry.model_dump()))
    return TableEntry.of(client.spec(name), holds, columns, tuple(parts))


def _arrays(records: Records) -> Arrays:
    return {"ids": records.ids, "rows": records.rows, **{f"state.{name}": column for name, column in records.state.items()}}


def _gathered(parts: Iterator[Records]) -> Iterator[Records]:
    """Yield the same records in parts of PART_BYTES or somewhat more."""
    held: list[Records] = []
    for records in parts:
        held.append(records)
        if sum([item.nbytes for item in held]) >= PART_BYTES:
            yield Records.joined(held)
            held = []
    if held:
        yield Records.joined(held)
