"""Checkpoints: what is written of a cluster, where, and in which order, so that a crash between any two writes loses nothing.

Read in this order: store.py (objects by path) with folder.py over disk.py and objects.py, the two kinds there are; roots.py (which of them
a root means); program.py (work on a store as a value); layout.py and manifest.py (which files, and what is in them), arrays_file.py (how
arrays lie in one); then the programs, listed in programs.py: saving.py, publishing.py, finding.py, loading.py, retention.py. Without a
cluster: exporting.py, of the rows that live_rows.py finds, which is `rowstead export` (export_command.py).
"""
