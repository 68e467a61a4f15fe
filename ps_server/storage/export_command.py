"""`rowstead export`: a checkpoint's tables as files that anybody reads."""

import os
import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from ps_proto.errors import ParameterServerError, PluginFailed
from ps_proto.plugins import load_plugins

FAILED, WRONG_USAGE = 1, 2  # the exit codes


def export(
    checkpoint: Annotated[str, Parameter(help="Where checkpoints lie: a folder or a URL; ROOT#12 is checkpoint 12, ROOT the newest.")],
    *,
    out: Annotated[str, Parameter(help="Folder or URL to write to.")],
    table: Annotated[list[str] | None, Parameter(negative=(), help="A table to write; may be given again. By default all of them.")] = None,
    file_type: Annotated[Literal["safetensors", "parquet"], Parameter("--format", help="Kind of files.")] = "safetensors",
    state: Annotated[bool, Parameter(negative=(), help="Write the optimizer's state too.")] = False,
    checkpoint_option: Annotated[
        list[str] | None,
        Parameter(negative=(), help="Option of an object store, as aws_region=eu-west-1; may be given again."),
    ] = None,
) -> int:
    """Write the tables of a checkpoint as safetensors or Parquet files."""
    from ps_server.storage.exporting import Export, ExportIndex  # numba takes a while to import: not for --help
    from ps_server.storage.exporting import export as program
    from ps_server.storage.parquet_file import check_parquet
    from ps_server.storage.program import run
    from ps_server.storage.roots import open_store, parse_options, split_root

    def refuse(body: object) -> object:
        raise AssertionError(f"there is no core to ask {body}")

    try:
        load_plugins(os.environ)
        store_options = parse_options(checkpoint_option or ())
        if file_type == "parquet":
            check_parquet()
        root, number = split_root(checkpoint)
        wanted = Export(root, number, out, tuple(table or ()), file_type, state)
        index: ExportIndex = run(program(wanted), lambda opened: open_store(opened, store_options), refuse)
    except (PluginFailed, ValueError) as error:
        print(error, file=sys.stderr)
        return WRONG_USAGE
    except ParameterServerError as error:
        print(error, file=sys.stderr)
        return FAILED
    for exported in index.tables:
        print(f"{exported.name}: {exported.rows:,} rows in {len(exported.files)} files")
    print(f"Checkpoint {index.checkpoint} of {index.root} is in {out}.")
    return 0
