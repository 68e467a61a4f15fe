"""`ps.load`: a model that `ps.save` wrote, onto whatever servers there are."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn

from ps_proto.errors import CorruptFile, InvalidRequest, LoadFailed, TableMismatch, UnknownTable
from ps_proto.values import TableSpec
from ps_worker.client import Client
from ps_worker.keeping.agreeing import as_rank_0, mark_saved, was_done
from ps_worker.keeping.folder import ModelReader
from ps_worker.keeping.index import PartEntry, TableEntry
from ps_worker.keeping.parts import ModelParts
from ps_worker.records import Records

REQUEST_BYTES = 8 << 20  # of records that are set at a time


def load(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Load what `save` wrote into the folder `path`, onto any number of servers: afterwards the tables hold exactly its rows and state.

    All ranks call it, between two steps, and each must be able to read the folder: rank 0 sends the rows, the others wait, at most
    wait_timeout_s, and every rank sets its own parameters and buffers. It may come before the model's ServerOptimizer is made, which then
    finds the tables as saved, or after: then they lose what they held. The whole folder is checked before anything is changed.

    Raises NoSavedModel, CorruptFile, TableMismatch for a table of another dim, dtype, wire, initializer, seed, max_norm or optimizer kind,
    InvalidRequest where names or shapes differ; on other ranks LoadFailed where rank 0 failed.
    """
    parts = ModelParts.of(model)
    if was_done(parts.client, "ps.load"):
        return
    reader = ModelReader(path)
    specs = _embeddings(reader, parts)
    tensors = _tensors(reader, parts)
    if not parts.is_hybrid:  # whose dense parameters come with the tensors
        specs |= _dense(reader, parts)
    if not as_rank_0(parts.client, lambda: _restore(reader, parts.client, specs)):
        raise LoadFailed(str(reader.path))
    parts.set(tensors)
    if parts.client.rank == 0:
        mark_saved(parts.client)


# --- what must fit ---------------------------------------------------------------------------------------------------------------


def _embeddings(reader: ModelReader, parts: ModelParts) -> dict[str, TableSpec]:
    """Return the specs of the embeddings' tables, by name; raise where the model or the cluster has others."""
    saved = reader.index.holding("embeddings")
    _check_names(f"tables of {reader.path}", list(saved), list(parts.tables))
    specs = {}
    for name, table in saved.items():
        spec = table.spec()
        specs[name] = _fitting(reader, spec, parts.tables[name].spec(spec.optimizer))
        _check_existing(reader, parts.client, specs[name])
    return specs


def _dense(reader: ModelReader, parts: ModelParts) -> dict[str, TableSpec]:
    """Return the specs of the dense tables, by name; raise where the model's optimizer has others."""
    saved = reader.index.holding("dense parameters")
    if parts.dense:
        _check_names(f"dense tables of {reader.path}", list(saved), list(parts.dense))
    specs = {name: table.spec() for name, table in saved.items()}
    for name, spec in specs.items():
        try:
            _check_existing(reader, parts.client, spec)
        except TableMismatch as error:
            if error.field != "seed":  # the hash of the parameters' names and shapes
                raise
            want = f"those that were when {reader.path} was saved: the same ones, in the same order, with a gradient"
            raise InvalidRequest(f"The parameters in table {name!r}", "others", want) from None
    return specs


def _check_existing(reader: ModelReader, client: Client, spec: TableSpec) -> None:
    with suppress(UnknownTable):  # rank 0 creates it
        _fitting(reader, spec, client.spec(spec.name))


def _fitting(reader: ModelReader, saved: TableSpec, wanted: TableSpec) -> TableSpec:
    """Return the saved spec under the wanted mode, which belongs to a job and not to what is in a table."""
    saved = replace(saved, mode=wanted.mode)
    field = wanted.difference(saved)
    if field is not None:
        raise TableMismatch(saved.name, field, f"{saved.described(field)} in {reader.path}", wanted.described(field))
    return saved


def _check_names(what: str, have: list[str], want: list[str]) -> None:
    lacking, beyond = sorted(set(want) - set(have)), sorted(set(have) - set(want))
    if lacking or beyond:
        got = " and ".join([f"{word} {', '.join(map(repr, names))}" for word, names in (("without", lacking), ("with", beyond)) if names])
        raise InvalidRequest(what, got, f"the model's: {', '.join(map(repr, sorted(want))) or 'none'}")


def _tensors(reader: ModelReader, parts: ModelParts) -> dict[str, Tensor]:
    """Return the saved parameters and buffers; raise InvalidRequest where their names and shapes are not the model's."""
    entry = reader.index.model
    try:
        saved = safetensors.torch.load(reader.read(entry))
    except SafetensorError as error:
        raise CorruptFile(str(reader.path / entry.file), str(error)) from None
    have = parts.tensors()
    _check_names(f"parameters and buffers of {reader.path}", list(saved), list(have))
    for name, tensor in have.items():
        if saved[name].shape != tensor.shape:
            raise InvalidRequest(f"shape of {name!r} in {reader.path}", str(list(saved[name].shape)), f"the model's, {list(tensor.shape)}")
    return saved


# --- rows ------------------------------------------------------------------------------------------------------------------------


def _restore(reader: ModelReader, client: Client, specs: dict[str, TableSpec]) -> None:
    """Let the tables of `specs` hold what the folder has, and nothing else."""
    reader.check()
    for name, spec in specs.items():
        try:
            client.spec(name)
        except UnknownTable:
            client.create_table(spec)
    for table in [table for table in reader.index.tables if table.name in specs]:
        client.clear(table.name)
        for part in table.parts:
            for records in _pieces(_records(reader, table, part)):
                client.restore(table.name, records)


def _records(reader: ModelReader, table: TableEntry, part: PartEntry) -> Records:
    arrays = reader.arrays(part)
    try:
        records = Records(arrays["ids"], arrays["rows"], {column.name: arrays[f"state.{column.name}"] for column in table.state})
    except KeyError as error:
        raise CorruptFile(str(reader.path / part.file), f"it has no {error.args[0]}") from None
    shapes = {"ids": (part.rows,), "rows": (part.rows, table.dim)}
    shapes |= {f"state.{column.name}": (part.rows, column.words) for column in table.state}
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise CorruptFile(str(reader.path / part.file), f"{name} is of shape {list(arrays[name].shape)}, not {list(shape)}")
    return records


def _pieces(records: Records) -> Iterator[Records]:
    """Yield the same records in pieces of at most REQUEST_BYTES, but at least a row."""
    rows_max = max(1, REQUEST_BYTES * records.ids.size // max(1, records.nbytes))
    for begin in range(0, records.ids.size, rows_max):
        piece = slice(begin, begin + rows_max)
        yield Records(records.ids[piece], records.rows[piece], {name: column[piece] for name, column in records.state.items()})
