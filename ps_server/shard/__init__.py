"""The core of a server: its share of every table, as a state machine without a world.

Read in this order: shard.py (who takes which turn), reading.py, writing.py, finishing.py and orders.py (what each request does), steps.py
(who finished what, and the folds), membership.py (whom it listens to), gate.py, clocks.py and parking.py (who may go on, who waits),
staging.py and window.py (a push is applied whole, and once). The rows are table.py's, found through catalog.py: index.py (id -> slot),
slab.py (the memory they lie in), initializers/, optimizers/, records.py, snapshot.py; exports.py keeps snapshots open for readers,
read_rows.py what ranks read of tables whose optimizer looks at that, row_sums.py is the one reduction over a row. touched.py knows what a
save has to have, slot_snapshot.py is what it reads.
counters.py counts. rehearsal.py and warm_up.py compile the kernels before the first request. registering.py is the way in for a user's
own optimizers and initializers.
"""
