"""Ours and other people's parameter stores in turn, on the same work: `make bench-peers`, or `python -m benchmarks.peers --help`.

    roster.py      which peers there are, what each needs, how to install it
    store.py       what a peer must be able to do;  Store, DenseStore
    torch_rpc.py, ray_actor.py, tensorflow_ps.py, redis_mset.py     one peer each, as a Store

    memory.py      the allocators that a peer runs with: as shipped, and such that keep what was freed
    running.py     a peer's client process, as the process that measures sees it
    client.py      that process from inside: it opens the store, then prepares, works and checks when told
    loopback.py    a network of its own for a peer that listens on every interface
    work.py        W1 to W4 on a Store, with what must come back

    beside.py      a case of the harness: ours, with the peer where the floor is
    table.py       the printed table and the JSON file

Ours are the cases of benchmarks/ as they are. Each peer is one server process and one client process; so are we.
"""
