"""Where the workers of one machine find each other for torch.distributed: MASTER_ADDR and MASTER_PORT.

The port must be free when rank 0's script comes to listen on it, seconds later, and again when it is started again: so it is held.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from ps_worker.held_port import HeldPort

ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"  # Gloo would take the address that the host's name has, which other machines may reach


class Rendezvous:
    """A free port of the loopback, kept for rank 0 for the length of a `with` block."""

    def __init__(self) -> None:
        self._held = HeldPort("127.0.0.1")

    @property
    def port(self) -> int:
        return self._held.port

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment that says this place; what `environment` has set stays, and an empty variable counts as not set."""
        ours = {ADDRESS: "127.0.0.1", PORT: str(self.port)}
        if not any(environment.get(name) for name in (ADDRESS, GLOO_INTERFACE)):
            ours[GLOO_INTERFACE] = "lo"
        return {name: environment.get(name) or value for name, value in ours.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._held.close()
