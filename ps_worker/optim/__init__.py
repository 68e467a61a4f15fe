"""Training on the servers with torch's optimizer interface: `ps.optim.ServerOptimizer`, and `ps.clip_grad_norm_`.

server_optimizer.py  the torch optimizer; assignment.py which parameters and tables have which settings
dense.py             dense parameters as a table; fetching.py how a model has the step's values when it is called
gradients.py         what a step pushes; clipping.py its norm
"""

from ps_worker.optim.server_optimizer import ServerOptimizer

__all__ = ["ServerOptimizer"]
