"""The coordinator: who is in the cluster, which server owns what, which tables and which job there are.

core.py decides (a pure state machine) in its rooms: members.py (servers and the map), tables.py, ranks.py (a job's workers, with job.py and
incarnations.py), admissions.py (workers that join a running job), liveness.py (workers that are lost, with leases.py), barriers.py,
checkpoints.py (when, by schedule.py, or who asks) with taking.py (how); plans.py has what takes orders to servers or time, orders.py those
orders, waiting.py who waits for a state. What must be durable goes through journal.py, as the values of stored.py, to a state_store.py such
as sqlite_store.py; numbering.py gives each number once, notices.py tells the operator. settings.py says how the process is set,
core_settings.py how the core is, command.py and process.py run it.
"""
