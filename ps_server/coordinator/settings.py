"""How the coordinator is set."""

from pathlib import Path

from pydantic import Field

from ps_server.edge.settings import ProcessSettings


class CoordinatorSettings(ProcessSettings):
    """What the coordinator can be told."""

    variables = "ROWSTEAD_COORDINATOR_"

    servers: int = Field(ge=1, le=256, description="How many servers to wait for before the rows are shared out among them.")
    state: Path | None = Field(None, description="Folder of the cluster's state, from which a coordinator that is started again goes on.")
