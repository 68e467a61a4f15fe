"""W7, how a cost grows with the work: `make bench-scaling`, or `python -m benchmarks.scaling --help`.

sizes.py    how far each curve goes, in full and with --quick
ids.py      ids of a pull, 10^2 to 10^6, beside np.take
rows.py     rows held, 10^4 to 3·10^7: a pull, a push, the memory of a row
servers.py  servers, 1 to 8: one worker's pull
workers.py  workers, 1 to 16, whose accelerator is a sleep; and without it, where the server is full
"""
