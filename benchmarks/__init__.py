"""What moving rows costs beside the machine's own limits: `make bench`, or `python -m benchmarks --help`.

    case.py       what a case is: the floor, ours, the check;  Figure, Goal, WrongAnswer
    harness.py    rounds of floor and ours in turn, and what comes of them
    report.py     the printed table and the JSON file
    machine.py    what the numbers are of: machine, versions, commit, day
    memory.py, cpu_time.py    what processes hold and use;  told.py  a process that does what each line says
    sizes.py      how much work a case is, in full and with --quick
    bed.py        the cluster that the cases share: one server, a client for each transport, the big table
    socket_peer.py  the other process of the floors that go through a socket

    pulling.py    W1  100,000 random ids from 4 M rows of 64, through `client.pull`
    pushing.py    W2  the same push, with Adagrad, until it is acknowledged as applied
    dense.py      W3  64 MiB of dense parameters, pulled and pushed
    latency.py    W4  a pull of 16 ids
    training.py   W5  samples of a DLRM beside plain torch;  click_model.py has the model, categories.py its ids, trainer.py the processes
    growth.py     W6  memory while a table grows to 10 M rows
    start_up.py   how soon a server serves, with and without a cache of compiled kernels

scaling/      W7  how costs grow with ids, rows, servers and workers: `make bench-scaling`;  curve.py  what is measured at several sizes
staleness/    W8  what bounded staleness saves, with and without stragglers: `make bench-staleness`
plots/        SVG files of both: `make bench-plots`
emulated/     the workers of both, whose accelerator is a sleep
peers/        other people's parameter stores beside ours, on W1 to W4: `make bench-peers`

plan_beside.py          what planning the next batch in another thread gains, by size
read_ahead.py           how many pushes the rows of a step lack, with prefetch of some depth
accuracy_staleness.py   what that costs in AUC, and each bound

accuracy_ctr.py and simulated_run.py are scripts of their own, while the three above are started with -m. NOTES.md says what each step of a
pull and a push costs.
"""
