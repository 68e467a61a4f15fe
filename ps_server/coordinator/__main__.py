"""`python -m ps_server.coordinator` is `rowstead coordinator`."""

from ps_server.coordinator.command import main

if __name__ == "__main__":
    main()
