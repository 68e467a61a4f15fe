"""`python -m ps_server` is `ps-server`."""

from ps_server.edge.command import main

if __name__ == "__main__":
    main()
