"""`python -m ps_worker` is `ps-worker`."""

from ps_worker.cli import worker_main

if __name__ == "__main__":
    worker_main()
