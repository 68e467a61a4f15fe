"""The core of a server: its share of every table, as a state machine without a world.

Read in this order: shard.py (what a request does), membership.py (whom it listens to), clocks.py and parking.py (who may go on, who waits),
staging.py and window.py (a push is applied whole, and once). The rows are table.py's: index.py (id -> slot), slab.py (the memory they lie
in), initializers.py, optimizers/, records.py, snapshot.py; exports.py keeps snapshots open for readers. counters.py counts. rehearsal.py
and warm_up.py compile the kernels before the first request.
"""
