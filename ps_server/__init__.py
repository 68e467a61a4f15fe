"""The servers' side: tables, the shards that hold them, the coordinator, and the processes around both.

Read in this order: events.py (what goes into a core and what comes out), tasks.py (what it lets be done aside), shard/ (the core of a
server), coordinator/core.py (the core of the coordinator), edge/ (event loop, gRPC, settings and the running process).
"""
