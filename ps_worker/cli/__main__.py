"""`python -m ps_worker.cli` is `rowstead`, also in a checkout that is not installed."""

from ps_worker.cli import main

if __name__ == "__main__":
    main()
