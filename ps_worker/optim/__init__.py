"""Training on the servers with torch's optimizer interface: `ps.optim.ServerOptimizer`; dense.py has the dense parameters as a table."""

from ps_worker.optim.server_optimizer import ServerOptimizer

__all__ = ["ServerOptimizer"]
