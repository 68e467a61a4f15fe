"""W8, does bounded staleness pay: `make bench-staleness`, or `python -m benchmarks.staleness --help`.

sizes.py    how many workers and steps, in full and with --quick
modes.py    the modes, from synchronous over bounds to asynchronous, and what OSDI'14 saw
accuracy.py  the AUC of each mode, from a file of benchmarks.accuracy_staleness
finding.py  what is found of a mode with some stragglers: printed, and written as JSON
"""
