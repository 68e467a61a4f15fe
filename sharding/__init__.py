"""Which id lives on which server. Imports nothing else of ours; raises ValueError for misuse.

Read in this order:

    hashing.py      (table name, id) -> 64-bit hash -> one of 16,384 buckets, the unit that is owned and moved
    shard_map.py    `Server`, and `ShardMap`: the owner of each bucket, an immutable value
    ring.py         `Ring`: virtual nodes on [0, 2**64), and for each bucket the order in which it would go to the servers
    rebalance.py    `plan`: the next map from the previous one, with the fewest moves that fair quotas allow
    partition.py    the client's data path: dedup, split by owner, and back in the caller's order
    wire_format.py  how rows lie in a message: float32, bfloat16, int8
    wire_rows.py    from rows to what travels, and back; bfloat16.py rounds
    kernel.py       our numba flags, once
    arrays.py       read-only views and aligned rows: what kernels and torch want of an array
    finite.py       whether a block of gradients is finite
"""
