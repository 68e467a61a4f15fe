"""Which checkpoints a cluster could go back to: not those of another one that lie there, too, nor those of a time that is gone."""

from collections.abc import Sequence

from ps_server.storage.manifest import Manifest


def is_of(lineage: Sequence[tuple[int, int, int]], manifest: Manifest) -> bool:
    """Return whether a checkpoint is of a lineage, which is as FindCheckpoint has it."""
    cluster = int(manifest.cluster, 16)
    own = [(timeline, last) for each, timeline, last in lineage if each == cluster]
    return not lineage or (bool(own) and all([manifest.number <= last for timeline, last in own if manifest.timeline < timeline]))
