"""`rowstead launch`, and `rowstead worker`, which is also `ps-worker` and `python -m ps_worker`."""

import os
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ps_proto.errors import InvalidRequest
from ps_proto.plugins import join_names
from ps_worker.place import COORDINATOR, RANK, WORLD_SIZE, find_place
from ps_worker.transport.choice import TRANSPORTS, VARIABLE, find_transport

WRONG_USAGE = 2  # the exit code
SERVERS_MAX = 256
MAX_RESTARTS = 3

Arguments = Annotated[str, Parameter(allow_leading_hyphen=True, help="The script's own arguments: all that stands after it.")]
Transport = Annotated[
    str | None, Parameter(help=f"How rows travel: {', '.join(TRANSPORTS)}; auto: the first of the others that works. [env: {VARIABLE}]")
]
Script = Annotated[str, Parameter(help="Training script that each worker runs.")]


def launch(
    script: Script,
    /,
    *arguments: Arguments,
    servers: Annotated[int, Parameter(help="How many servers hold the rows.")] = 1,
    workers: Annotated[
        int,
        Parameter(
            help="How many processes run the script, each with torchrun's variables: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, and "
            "MASTER_ADDR and MASTER_PORT where you have not set them."
        ),
    ] = 1,
    host: Annotated[str, Parameter(help="Address that coordinator and servers listen on.")] = "127.0.0.1",
    log_dir: Annotated[
        Path | None, Parameter(help="Folder for a file with each process's lines, beside showing them, and the coordinator's state.")
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Parameter(help="The least level that coordinator and servers log.")
    ] = "info",
    plugin: Annotated[
        list[str] | None, Parameter(negative=(), help="Module with optimizers and initializers of your own; may be given again.")
    ] = None,
    transport: Transport = None,
    profile: Annotated[
        bool,
        Parameter(negative=(), help="Let each worker print where its time went when it ends: docs/performance.md. [env: ROWSTEAD_PROFILE]"),
    ] = False,
    max_restarts: Annotated[
        int, Parameter(help="How often each process is started again that fails; 0: the first that does ends the job.")
    ] = MAX_RESTARTS,
    lease_s: Annotated[
        float | None, Parameter(help="Seconds after which a worker that is not heard of counts as lost; 10 unless said.")
    ] = None,
    checkpoints: Annotated[
        str | None,
        Parameter(
            help="Folder or URL for checkpoints, which all servers see: they go back to the last one if one of them dies. One is taken at "
            "the job's end."
        ),
    ] = None,
    checkpoint_every_steps: Annotated[int | None, Parameter(help="Take a checkpoint at each multiple of so many steps.")] = None,
    checkpoint_every_s: Annotated[float | None, Parameter(help="Take a checkpoint after so many seconds.")] = None,
    checkpoint_keep: Annotated[int | None, Parameter(help="How many checkpoints stay, beside those that they need; 3 unless said.")] = None,
    checkpoint_full_every: Annotated[
        int | None, Parameter(help="Of so many checkpoints in a row, one has all rows, the others what changed; 10 unless said.")
    ] = None,
    restore: Annotated[
        str | None,
        Parameter(
            help="Begin with the last checkpoint of this folder or URL, or with that of its number, FOLDER#12: workers resume there."
        ),
    ] = None,
    checkpoint_option: Annotated[
        list[str] | None,
        Parameter(negative=(), help="Option of the object store that checkpoints lie in, as aws_region=eu-west-1; may be given again."),
    ] = None,
) -> int:
    """Run a whole job on this machine: a coordinator, servers, and workers that run a training script.

    Each process's lines are shown under its name. A process that fails is started again, and a worker resumes at its step. When all workers
    have ended well, so does the job, with 0; when one has failed too often, the rest are ended, and the exit code is the failed one's.
    Ctrl-C ends them all, with 130.

    MASTER_PORT is a free port of this machine, so that torch.distributed.init_process_group() needs no argument.
    """
    try:
        _check_count("servers", servers, SERVERS_MAX)
        _check_count("workers", workers, None)
        _check_host(host)
        if max_restarts < 0:
            raise InvalidRequest("max_restarts", str(max_restarts), "a whole number from 0 on")
        _check_script(script)
        _check_log_dir(log_dir)
        plugins = join_names("plugin", plugin or [])
        transport = find_transport(transport, os.environ)
    except InvalidRequest as error:
        print(error, file=sys.stderr)
        return WRONG_USAGE
    from ps_worker.launch.stop_signals import StopSignals

    with StopSignals() as signals:  # first: what follows takes a second to import, and Ctrl-C may come in it
        from ps_worker.launch.console import Console
        from ps_worker.launch.supervisor import Plan, Supervisor

        plan = Plan(
            servers,
            workers,
            (script, *arguments),
            host,
            log_dir,
            log_level,
            plugins,
            transport,
            profile,
            max_restarts,
            _flags(
                lease_s=lease_s,
                checkpoints=checkpoints,
                checkpoint_every_steps=checkpoint_every_steps,
                checkpoint_every_s=checkpoint_every_s,
                checkpoint_keep=checkpoint_keep,
                checkpoint_full_every=checkpoint_full_every,
                restore=restore,
            ),
            checkpoints is not None,
            _flags(checkpoint_options=",".join(checkpoint_option) if checkpoint_option else None),
        )
        return Supervisor(plan, Console(os.environ), signals).run()


def worker(
    script: Script,
    /,
    *arguments: Arguments,
    coordinator: Annotated[str | None, Parameter(help=f"The coordinator's host:port. [env: {COORDINATOR}]")] = None,
    rank: Annotated[int | None, Parameter(help=f"This worker's number, from 0. [env: {RANK}]")] = None,
    world_size: Annotated[int | None, Parameter(help=f"How many workers the job has. [env: {WORLD_SIZE}]")] = None,
    transport: Transport = None,
) -> int:
    """Run a training script as one worker of a job; on several machines, once for each worker.

    Where the script uses torch.distributed, set MASTER_ADDR and MASTER_PORT yourself: a host and a free port of rank 0's machine.
    """
    try:
        place = find_place(coordinator, rank, world_size, os.environ)
        transport = find_transport(transport, os.environ)
        _check_script(script)
    except InvalidRequest as error:
        print(error, file=sys.stderr)
        return WRONG_USAGE
    os.execve(sys.executable, [sys.executable, script, *arguments], {**os.environ, **place.variables(), VARIABLE: transport})


def _flags(**values: object) -> tuple[str, ...]:
    """Return the flags of those that are given. Whether they make sense, the processes say that get them."""
    return tuple([f"--{name.replace('_', '-')}={value}" for name, value in values.items() if value is not None])


def _check_count(name: str, number: int, most: int | None) -> None:
    if number < 1 or (most is not None and number > most):
        raise InvalidRequest(name, str(number), f"a whole number from 1 {f'to {most}' if most is not None else 'on'}")


def _check_host(host: str) -> None:
    try:
        is_wildcard = ip_address(host).is_unspecified
    except ValueError:  # a name
        is_wildcard = False
    if is_wildcard or not host:
        raise InvalidRequest("host", repr(host), "an address of this machine that workers can connect to")


def _check_log_dir(log_dir: Path | None) -> None:
    try:
        if log_dir is not None:
            log_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest("log_dir", f"{str(log_dir)!r} ({error.strerror})", "a folder, or a place where one can be made") from None


def _check_script(script: str) -> None:
    if not Path(script).is_file():
        raise InvalidRequest("script", repr(script), f"a file that exists; seen from {Path.cwd()}, there is none of that name")
