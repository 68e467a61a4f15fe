"""How the coordinator is set."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from ps_server.coordinator.core_settings import Restore
from ps_server.coordinator.schedule import Schedule
from ps_server.edge.settings import ProcessSettings
from ps_server.storage.roots import SCHEMES


def _everywhere(root: str) -> str:
    """Return a root as every process understands it: a folder with all above it. ValueError for what is no root."""
    scheme, separator, _ = root.partition("://")
    if separator and scheme not in ("file", *SCHEMES):
        raise ValueError(f"should be a folder, file:///folder, or a URL of {', '.join(SCHEMES)}")
    return root if separator else str(Path(root).absolute())


def _restore(text: str) -> str:
    """Return a root, or a root#number, as every process understands it."""
    root, number = _split(text)
    return _everywhere(root) if number is None else f"{_everywhere(root)}#{number}"


def _split(text: str) -> tuple[str, int | None]:
    root, separator, number = text.rpartition("#")
    return (root, int(number)) if separator and root and number.isdecimal() else (text, None)


Root = Annotated[str, AfterValidator(_everywhere)]


class CoordinatorSettings(ProcessSettings):
    """What the coordinator can be told."""

    variables = "ROWSTEAD_COORDINATOR_"

    servers: int = Field(ge=1, le=256, description="How many servers to wait for before the rows are shared out among them.")
    lease_s: float = Field(10.0, ge=0.1, le=86_400, description="Seconds after which a worker that is not heard of counts as lost.")
    state: Path | None = Field(None, description="Folder of the cluster's state, from which a coordinator that is started again goes on.")
    checkpoints: Root | None = Field(
        None, min_length=1, description="Folder or URL for checkpoints, which all servers see; they go back to the last one if one dies."
    )
    checkpoint_every_steps: int | None = Field(None, ge=1, description="Take a checkpoint at each multiple of so many steps.")
    checkpoint_every_s: float | None = Field(None, gt=0, description="Take a checkpoint after so many seconds of a job.")
    checkpoint_keep: int = Field(3, ge=1, description="How many checkpoints stay, beside those that they need.")
    checkpoint_full_every: int = Field(
        10, ge=1, description="Of so many checkpoints in a row, one has all rows; the others have those that changed since."
    )

    restore: Annotated[str, AfterValidator(_restore)] | None = Field(
        None, min_length=1, description="Begin with the last checkpoint of this folder or URL, or with that of its number: FOLDER#12."
    )

    @model_validator(mode="after")
    def _has_a_root(self) -> Self:
        every = [name for name in ("checkpoint_every_steps", "checkpoint_every_s") if getattr(self, name) is not None]
        if every and self.checkpoints is None:
            raise ValueError(f"checkpoints is missing: {every[0]} says when to take them, so say where they go.")
        return self

    def schedule(self) -> Schedule:
        """Return what these settings say about checkpoints."""
        return Schedule(
            self.checkpoints or "",
            self.checkpoint_every_steps or 0,
            self.checkpoint_every_s or 0.0,
            self.checkpoint_keep,
            self.checkpoint_full_every,
        )

    def restored(self) -> Restore | None:
        """Return what a new cluster is to begin with."""
        return Restore(*_split(self.restore)) if self.restore is not None else None
