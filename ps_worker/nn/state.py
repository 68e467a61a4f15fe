"""What a state_dict says of a module whose weights are rows: a marker in their place, since they are on the servers."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from ps_worker.nn.table import RowTable

MARKER = "_extra_state"  # torch's name for what get_extra_state returns


class RowsElsewhere(nn.Module):
    """Marks its place in a state_dict: `prefix._extra_state` is {"tables": {name: dim}}, and no row is in there.

    So in load_state_dict the rows are missing keys, which say how to bring them back: with strict=True, the default, it raises torch's
    RuntimeError, otherwise it returns them and loads the rest.
    """

    @property
    def tables(self) -> dict[str, RowTable]:
        """The tables by name."""
        raise TypeError(f"{type(self).__name__} says nowhere which tables it reads")

    def get_extra_state(self) -> dict[str, dict[str, int]]:
        return {"tables": {name: table.dim for name, table in self.tables.items()}}

    def set_extra_state(self, state: Any) -> None:
        """Do nothing: `_load_from_state_dict` has compared the marker."""

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        # torch has no public way for a module to name its missing keys; this is the method that its own modules override.
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        marker, have = state_dict.get(prefix + MARKER), self.get_extra_state()
        if marker is not None and marker != have:
            error_msgs.append(f"{prefix.removesuffix('.') or 'The model'} reads {have} (name: dim), but the state_dict is of {marker}.")
        missing_keys += [
            f"{prefix}rows of table {name!r}: they live on the servers, and ps.load(model, path) brings back what ps.save kept"
            for name in have["tables"]
        ]
