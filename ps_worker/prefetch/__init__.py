"""Read ahead: the next batch's rows travel while this one computes. `ps.prefetch(loader, ids=...)`.

loop.py     the loop over the loader, as the user has it
one_pass.py one pass of it: what is read when, and for which step
source.py   the loader's batches, and how another process comes to the same place in them
planning.py what a batch reads, worked out beside the step before it
fetch.py    one batch's rows on their way: one pull for all tables, aimed at a step
ending.py   where a pass ends when ranks have unequally many batches
device.py   a batch moved to a device
"""

from ps_worker.prefetch.loop import Prefetch, prefetch

__all__ = ["Prefetch", "prefetch"]
