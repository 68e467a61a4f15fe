"""The coordinator: who is in the cluster, which server owns what, which tables and which job there are.

core.py decides (a pure state machine), settings.py says how the process is set, command.py and process.py run it.
"""
