"""Every error that crosses a process border, as an exception with fields and a full sentence.

Each class names its gRPC status in `code`; `status.py` is the only place that turns one into the other. The client raises the
class that the server raised. Fields are plain values (str, int, float, None), so that they travel as they are.
`assert` is for our own bugs; what a peer or a user may have caused is one of these.
"""

from dataclasses import dataclass, fields
from typing import ClassVar

Field = str | int | float | None


class ParameterServerError(Exception):
    """Base of all of ours; `code` is the name of a `grpc.StatusCode`."""

    code: ClassVar[str] = "INTERNAL"

    def values(self) -> dict[str, Field]:
        """Return the fields by name, as they travel."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]  # each subclass is a dataclass

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.values())


def _rebuild(error: type[ParameterServerError], values: dict[str, Field]) -> ParameterServerError:
    return error(**values)


# --- the caller's mistake: mend the code, do not retry ------------------------------------------------------------------


@dataclass(eq=False)
class InvalidRequest(ParameterServerError, ValueError):
    """A field with a wrong dim, dtype, length or value; nothing of the request was applied."""

    code = "INVALID_ARGUMENT"
    field: str
    got: str
    want: str

    def __str__(self) -> str:
        return f"{self.field} is {self.got}, but must be {self.want}. Nothing was applied."


@dataclass(eq=False)
class RequestTooLarge(ParameterServerError):
    """A request that announces, or asks for, more bytes than the server handles in one request."""

    code = "RESOURCE_EXHAUSTED"
    server: str
    bytes_announced: int
    bytes_max: int

    def __str__(self) -> str:
        return (
            f"The request asks for or announces {self.bytes_announced:,} bytes, but {self.server} takes at most {self.bytes_max:,} in one. "
            "Send fewer ids at a time, or raise the server's max_request_bytes."
        )


@dataclass(eq=False)
class UnknownTable(ParameterServerError, LookupError):
    """A table that nobody created."""

    code = "NOT_FOUND"
    table: str

    def __str__(self) -> str:
        return f"There is no table named {self.table!r}. Create it first with client.create_table(TableSpec({self.table!r}, dim=...))."


@dataclass(eq=False)
class TableMismatch(ParameterServerError, ValueError):
    """A table that exists with another spec."""

    code = "ALREADY_EXISTS"
    table: str
    field: str
    have: str
    want: str

    def __str__(self) -> str:
        return (
            f"Table {self.table!r} exists with {self.field} {self.have}, but {self.field} {self.want} was asked for. "
            "Use the same spec everywhere, or another table name."
        )


@dataclass(eq=False)
class JobMismatch(ParameterServerError, ValueError):
    """A worker whose world_size or mode differs from what the first one to connect fixed."""

    code = "FAILED_PRECONDITION"
    field: str
    have: str
    want: str

    def __str__(self) -> str:
        return (
            f"The running job has {self.field} {self.have}, but this worker asks for {self.want}. "
            "Give every worker the same, or wait until the job's workers have all closed."
        )


@dataclass(eq=False)
class JobEnded(ParameterServerError):
    """A worker that was started again to go on in a job which has ended meanwhile."""

    code = "FAILED_PRECONDITION"
    job: int
    rank: int

    def __str__(self) -> str:
        return (
            f"Job {self.job} has ended, so there is nothing left in it for rank {self.rank}, whose worker was to go on there. "
            "Where it was lost and on_lost_worker is 'continue', the others went on without it."
        )


@dataclass(eq=False)
class ObserverCannot(ParameterServerError):
    """A client without a rank tried to take part in training."""

    code = "FAILED_PRECONDITION"
    action: str

    def __str__(self) -> str:
        return f"A client without a rank cannot {self.action}. Connect with rank= and world_size= to take part in training."


@dataclass(eq=False)
class ClientClosed(ParameterServerError):
    """A call on a client after close()."""

    code = "FAILED_PRECONDITION"
    action: str

    def __str__(self) -> str:
        return f"This client is closed, so it cannot {self.action}. Connect again."


@dataclass(eq=False)
class PushPartlyTaken(ParameterServerError):
    """A push that some servers have taken and another refused: it keeps its name until that one takes it too."""

    code = "FAILED_PRECONDITION"
    clock: int
    seq: int
    reason: str

    def __str__(self) -> str:
        return (
            f"Push {self.seq} of step {self.clock} was taken by some servers, but another refused its part: {self.reason} "
            "Mend that and call client.retry_push(), which counts once where it was taken, or connect again with this rank."
        )


@dataclass(eq=False)
class UnfinishedPush(ParameterServerError):
    """A push that hit its deadline still has its name; nothing may come between it and its repetition."""

    code = "FAILED_PRECONDITION"
    clock: int
    seq: int

    def __str__(self) -> str:
        return (
            f"Push {self.seq} of step {self.clock} was never acknowledged everywhere, so nothing may follow it. "
            "Call client.retry_push(), or connect again with this rank."
        )


@dataclass(eq=False)
class PluginFailed(ParameterServerError, ImportError):
    """A plugin that cannot be imported."""

    code = "FAILED_PRECONDITION"
    plugin: str
    origin: str
    cause: str

    def __str__(self) -> str:
        return (
            f"Plugin {self.plugin!r}, which {self.origin} names, cannot be imported: {self.cause}. "
            "Mend it, or see that this process finds it, installed or on PYTHONPATH, or name it no more."
        )


# --- fences: this worker, map or timeline is not the newest ---------------------------------------------------------------


@dataclass(eq=False)
class StaleIncarnation(ParameterServerError):
    """A worker that a newer one with the same rank has replaced."""

    code = "FAILED_PRECONDITION"
    rank: int
    have: int
    got: int

    def __str__(self) -> str:
        return (
            f"Rank {self.rank} has been taken over by incarnation {self.have}; this is incarnation {self.got}, whose requests are refused. "
            "Stop this process, or connect again to become the newest."
        )


@dataclass(eq=False)
class StaleTimeline(ParameterServerError):
    """A request from before a rollback."""

    code = "FAILED_PRECONDITION"
    have: int
    got: int

    def __str__(self) -> str:
        return f"The cluster rolled back to timeline {self.have}; this request is of timeline {self.got}. Connect again to resume."


@dataclass(eq=False)
class RolledBack(ParameterServerError):
    """A worker whose rows are gone: the cluster went back, and what the worker did since is withdrawn.

    `clock`: the rank's next step; -1 where that was before the rank joined the job.
    """

    code = "ABORTED"
    rank: int
    clock: int
    timeline: int

    def __str__(self) -> str:
        went_back = f"The cluster lost a server and went back to its last checkpoint (timeline {self.timeline})"
        if self.clock < 0:
            return f"{went_back}, which is of before rank {self.rank} joined. Start this worker again to join anew."
        return f"{went_back}, where rank {self.rank} goes on with step {self.clock}. Start this worker again to resume there."


@dataclass(eq=False)
class StaleOrder(ParameterServerError):
    """An order from a coordinator that has been replaced, or that is another cluster's. `what`: in which number the two differ."""

    code = "FAILED_PRECONDITION"
    server: str
    have: int
    got: int
    what: str = "term"

    def __str__(self) -> str:
        return f"{self.server} follows the coordinator of {self.what} {self.have}; this order is of {self.what} {self.got} and is refused."


@dataclass(eq=False)
class StepPassed(ParameterServerError):
    """A pull or push for a synchronous step that has been folded."""

    code = "FAILED_PRECONDITION"
    server: str
    clock: int
    step: int

    def __str__(self) -> str:
        return (
            f"This request is for step {self.clock}, but {self.server} has gone on to step {self.step}; its older rows are gone. "
            "A worker whose clock lags its own finished steps must connect again."
        )


@dataclass(eq=False)
class NotOwner(ParameterServerError):
    """A server that does not own an id asked of it: the sender's shard map is not the newest."""

    code = "ABORTED"
    server: str
    map_version: int

    def __str__(self) -> str:
        return (
            f"{self.server} does not own all the ids of this request under shard map {self.map_version}. "
            "Fetch the map, split again, resend."
        )


@dataclass(eq=False)
class UnknownKeyList(ParameterServerError):
    """A push that names the ids of a pull which the server does not remember; nothing of it was applied (R19)."""

    code = "ABORTED"
    server: str
    table: str
    pull: int

    def __str__(self) -> str:
        return f"{self.server} does not remember the ids of table {self.table!r} in pull {self.pull}. Send the push again with its ids."


@dataclass(eq=False)
class MapBehind(ParameterServerError):
    """A server that does not hold the sender's shard map yet: hand the map on and ask again."""

    code = "ABORTED"
    server: str
    have: int
    want: int

    def __str__(self) -> str:
        return f"{self.server} holds shard map {self.have} and cannot answer for map {self.want} before it has that map."


# --- not now: the same call again, with backoff ---------------------------------------------------------------------------


@dataclass(eq=False)
class Recovering(ParameterServerError):
    """A server that owns nothing yet, or is stopping."""

    code = "UNAVAILABLE"
    server: str
    reason: str

    def __str__(self) -> str:
        return f"{self.server} cannot answer now: {self.reason}."


@dataclass(eq=False)
class Unreachable(ParameterServerError, ConnectionError):
    """A peer that did not answer; raised to the user only once the retry budget is spent."""

    code = "UNAVAILABLE"
    peer: str
    address: str
    after_s: float
    cause: str

    def __str__(self) -> str:
        return (
            f"{self.peer} at {self.address} did not answer for {self.after_s:.1f} s ({self.cause}). "
            "Check that it runs and that this machine can reach that address."
        )


@dataclass(eq=False)
class Overloaded(ParameterServerError):
    """A server with too much waiting already."""

    code = "RESOURCE_EXHAUSTED"
    server: str
    waiting: int
    limit: int

    def __str__(self) -> str:
        return f"{self.server} has {self.waiting} requests waiting, which is its limit of {self.limit}. Slow down and ask again."


@dataclass(eq=False)
class TableFull(ParameterServerError):
    """A table that has no room for another row."""

    code = "RESOURCE_EXHAUSTED"
    table: str
    rows_max: int

    def __str__(self) -> str:
        return f"Table {self.table!r} has no room beyond {self.rows_max:,} rows on a server, which has taken none of these. Add servers."


# --- what a table's own optimizer did ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class OptimizerFailed(ParameterServerError):
    """A table whose optimizer raised in the middle of an update, on one server. `cause`: where and what; it lasts until that one ends."""

    code = "INTERNAL"
    server: str
    table: str
    optimizer: str
    cause: str

    def __str__(self) -> str:
        return (
            f"Optimizer {self.optimizer!r} of table {self.table!r} raised on {self.server} ({self.cause}). "
            f"It may have left rows half updated, so {self.server} neither reads nor changes that table any more. "
            "Mend the plugin, start the cluster again and load the last saved model."
        )


# --- waited in vain: nothing was read or applied --------------------------------------------------------------------------


@dataclass(eq=False)
class StalenessTimeout(ParameterServerError, TimeoutError):
    """A wait for other ranks that hit its deadline; names the slowest one."""

    code = "DEADLINE_EXCEEDED"
    clock: int
    min_clock: int
    bound: int
    rank: int
    after_s: float

    def __str__(self) -> str:
        because = f"; with a staleness bound of {self.bound} it must have finished {self.clock - self.bound}" if self.bound else ""
        return (
            f"Step {self.clock} waited {self.after_s:.1f} s for rank {self.rank}, which has finished {self.min_clock} steps{because}. "
            "Nothing was read. "
            f"Check that the worker of rank {self.rank} runs, or raise wait_timeout_s."
        )


@dataclass(eq=False)
class RowsUnset(ParameterServerError, TimeoutError):
    """A pull of rows whose start values rank 0 has not assigned."""

    code = "DEADLINE_EXCEEDED"
    table: str
    missing: int
    after_s: float

    def __str__(self) -> str:
        return (
            f"{self.missing} rows of table {self.table!r} have no value: rank 0 has not assigned them within {self.after_s:.1f} s. "
            "Let rank 0 call client.assign(..., only_absent=True), or give the table an initializer."
        )


@dataclass(eq=False)
class BarrierTimeout(ParameterServerError, TimeoutError):
    """A barrier that not every rank reached in time."""

    code = "DEADLINE_EXCEEDED"
    generation: int
    missing_ranks: str
    after_s: float

    def __str__(self) -> str:
        return f"Barrier {self.generation} waited {self.after_s:.1f} s for rank {self.missing_ranks}. Check that those workers run."


# --- what is kept on disk ---------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class NoSavedModel(ParameterServerError, FileNotFoundError):
    """A path at which there is no model that ps.save wrote."""

    code = "NOT_FOUND"
    path: str
    reason: str

    def __str__(self) -> str:
        return f"There is no saved model at {self.path}: {self.reason}. Give the folder that ps.save wrote."


@dataclass(eq=False)
class CorruptFile(ParameterServerError):
    """A file that is not what was written."""

    code = "DATA_LOSS"
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} is not as it was written: {self.reason}. Nothing was loaded; use another copy."


@dataclass(eq=False)
class LoadFailed(ParameterServerError):
    """A model that rank 0 could not load for all."""

    code = "ABORTED"
    path: str

    def __str__(self) -> str:
        return f"Rank 0 could not load {self.path}; its error says why. The tables may hold a part of it: load again before training on."


@dataclass(eq=False)
class CheckpointFailed(ParameterServerError):
    """A checkpoint that was not completed; the one before it stands. `server`: where it failed."""

    code = "ABORTED"
    path: str
    server: str
    reason: str

    def __str__(self) -> str:
        return (
            f"No checkpoint was written to {self.path}: {self.server} failed, {self.reason}. "
            "The one before it stands, and training goes on; mend that and take another."
        )


@dataclass(eq=False)
class NoCheckpoint(ParameterServerError, FileNotFoundError):
    """A path at which there is no complete checkpoint."""

    code = "NOT_FOUND"
    path: str
    reason: str

    def __str__(self) -> str:
        return f"There is no complete checkpoint at {self.path}: {self.reason}. Give the root that checkpoints were written to."


@dataclass(eq=False)
class StorageFailed(ParameterServerError):
    """A folder or an object store that did not do what was asked of it."""

    code = "UNAVAILABLE"
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} cannot be read or written: {self.reason}. Check that it is there, that it has room and who may use it."


# --- the cluster itself ---------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class ClusterFailed(ParameterServerError):
    """A process of a local cluster that did not start, or ended."""

    code = "UNAVAILABLE"
    process: str
    reason: str
    last_lines: str

    def __str__(self) -> str:
        return f"{self.process} {self.reason}. Its last lines:\n{self.last_lines}" if self.last_lines else f"{self.process} {self.reason}."


@dataclass(eq=False)
class InternalError(ParameterServerError):
    """A bug of ours; the traceback is in the peer's log under `incident`."""

    code = "INTERNAL"
    peer: str
    incident: str
    summary: str

    def __str__(self) -> str:
        return f"{self.peer} met a bug ({self.summary}); its log has the traceback under incident {self.incident}. Please report it."


def error_classes() -> dict[str, type[ParameterServerError]]:
    """Return every class that travels, by name."""
    return {error.__name__: error for error in ParameterServerError.__subclasses__()}
