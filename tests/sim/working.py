"""A core's task in virtual time: its program takes one operation after another, and anything may happen between two of them."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ps_proto.errors import ParameterServerError
from ps_server.storage.folder import Folder
from ps_server.storage.program import Ask, Program, StoreOperation, perform
from ps_server.storage.store import NotThere
from sim.disk import Died
from sim.one_by_one import one_by_one

if TYPE_CHECKING:
    from sim.nodes import CoreNode


class Working:
    """One task of a node: `end` is called with its outcome, unless the node dies before."""

    def __init__(self, node: "CoreNode", program: Program[Any], end: Callable[[object], None]) -> None:
        self._node = node
        self._program = one_by_one(program)
        self._end = end
        self._folders: dict[str, Folder] = {}

    def go_on(self, answer: object = None) -> None:
        """Give the program what its last operation brought, and let it do the next one after a while."""
        if self._node.is_dead:
            return
        try:
            operation = self._program.throw(answer) if isinstance(answer, ParameterServerError | NotThere) else self._program.send(answer)
        except StopIteration as end:
            self._end(end.value)
        except ParameterServerError as error:
            self._end(error)
        else:
            sim = self._node.sim
            sim.time.at(sim.time.now_s + sim.rng.uniform(0.0, sim.disk.slow_s), self._do, operation)

    def _do(self, operation: StoreOperation | Ask) -> None:
        if self._node.is_dead:
            return
        if isinstance(operation, Ask):
            self._node.ask(operation.body, self.go_on)
            return
        try:
            outcome = perform(operation, self._folder(operation.root))
        except (ParameterServerError, NotThere) as error:
            self.go_on(error)
        except Died:
            self._node.die()
        else:
            self.go_on(outcome)

    def _folder(self, root: str) -> Folder:
        rng = self._node.sim.rng
        if root not in self._folders:
            self._folders[root] = Folder(Path(root), self._node.mount, new_token=lambda: f"{rng.getrandbits(32):08x}")
        return self._folders[root]
