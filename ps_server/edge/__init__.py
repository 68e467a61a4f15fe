"""The edge of a server: everything that a core does not know.

settings.py and flags.py (flags, environment, TOML file), command.py (`ps-server`), process.py (what a server does from start to clean
stop, by way of serving.py, which the coordinator shares), bound_port.py, announce.py, parent.py, log.py; loop.py drives a core, servicer.py
is its gRPC side, lane/ its fast lane, sender.py carries its orders to other servers, workbench.py does its tasks; table_warm_up.py
compiles what a new table needs, in a thread of aside.py.
"""
