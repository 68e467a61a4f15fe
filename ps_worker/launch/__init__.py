"""`rowstead launch`, a whole job on one machine, and `ps-worker`, one worker of a job on many.

command.py       both verbs, as the command line has them
supervisor.py    starts the cluster and the workers, waits, and ends them all, however it ends itself
launched_worker.py  one of its workers: when it is started again; timeline.py whether the servers went back to a checkpoint
job_end.py       when the job has ended for good; last_checkpoint.py what that waits for
rendezvous.py    where the workers find each other for torch.distributed
stop_signals.py  Ctrl-C and SIGTERM as something that the supervisor asks for
tethered.py      runs a worker's script so that it ends with the supervisor, also when that is killed with -9
piped_log.py     from a process's stdout and stderr to the console; lines.py cuts lines, console.py writes them under a name
stream.py        our stdout or stderr, which may have a reader that does not read
"""
