"""How the coordinator is set."""

from pathlib import Path

from pydantic import Field

from ps_server.edge.settings import CHECKPOINT_OPTIONS, Options, ProcessSettings


class CoordinatorSettings(ProcessSettings):
    """What the coordinator can be told."""

    variables = "ROWSTEAD_COORDINATOR_"
    not_served = frozenset(
        {
            "state",
            "lease_s",
            "checkpoints",
            "checkpoint_every_steps",
            "checkpoint_every_s",
            "checkpoint_keep",
            "checkpoint_full_every",
            "checkpoint_options",
            "restore",
        }
    )

    servers: int = Field(ge=1, le=256, description="How many servers to wait for before the rows are shared out among them.")
    state: Path | None = Field(None, description="Folder to keep the coordinator's state in, so that it can be started again.")
    lease_s: float = Field(10.0, ge=0.1, description="Seconds without a word after which a worker counts as lost.")
    checkpoints: str | None = Field(
        None, min_length=1, description="Where checkpoints are written to: a folder that every process sees, or the URL of an object store."
    )
    checkpoint_every_steps: int | None = Field(None, ge=1, description="Take a checkpoint every so many steps.")
    checkpoint_every_s: float | None = Field(None, gt=0, description="Take a checkpoint every so many seconds.")
    checkpoint_keep: int = Field(3, ge=1, description="How many complete checkpoints to keep.")
    checkpoint_full_every: int = Field(10, ge=1, description="Of so many checkpoints one is full; the others have the rows touched since.")
    checkpoint_options: Options = Field((), description=CHECKPOINT_OPTIONS)
    restore: str | None = Field(
        None, min_length=1, description="Begin with the newest checkpoint under this root, or with that of a number: ROOT#NUMBER."
    )
