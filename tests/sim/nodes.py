"""Who is on the simulated network: a server-side core, and a worker's script. Each may die at any point of what it does."""

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from ps_proto.errors import ParameterServerError, Unreachable
from ps_proto.orders import AskProcess, ProcessNamed
from ps_server.events import Answered, Asked, Core, Effect, Event, Note, Persist, Refuse, Reply, Tell, Ticked, Work, Worked
from ps_worker.asking import Call, Exchange, Pause
from ps_worker.protocol import COORDINATOR, Worker
from sim.disk import Died
from sim.durable import SimStateStore
from sim.network import Message
from sim.working import Working

if TYPE_CHECKING:
    from sim.cluster import Simulation

ORDER_TIMEOUT_S = 1.0
TICK_S_MIN = 1e-6
TASK_S_MAX = 2.0  # disks are slow at times

Script = Generator[Any, Any, Any]


class CoreNode:
    """A server-side core on the network, for one life. `store`: what it makes durable goes there. `notes`: of what it warned the operator.

    `nonce`: names its process. `dies_after`: of so many effects that it has carried out, over all its turns, the last one it ever does.
    """

    def __init__(
        self, sim: "Simulation", name: str, core: Core, address: str = "", store: SimStateStore | None = None, nonce: int = 0
    ) -> None:
        self.sim, self.name, self.core, self.address, self.nonce = sim, name, core, address or name, nonce
        self.store = store or SimStateStore()
        self.mount = sim.disk.mount(name)
        self.notes: list[str] = []
        self.is_dead = False
        self.effects_count = 0
        self.dies_after: int | None = None
        self._asked: dict[int, Callable[[Any], None]] = {}
        self._asked_count = 0
        self._orders: dict[int, int] = {}  # call -> the core's number of an order that is open
        self._tick_s = float("inf")

    def receive(self, message: Message) -> None:
        """Take a question, or the answer to an order."""
        if message.kind == "ask" and isinstance(message.body, AskProcess):  # its edge says that, and asks no core
            self.sim.network.send(message.answered(ProcessNamed(self.nonce)))
        elif message.kind == "ask":
            self.ask(message.body, lambda body: self.sim.network.send(message.answered(body)))
        else:
            self._settle(message.call, message.body)

    def ask(self, body: Any, answer: Callable[[Any], None]) -> None:
        """Ask the core in a turn of its own; `answer` is called with the outcome."""
        self._asked_count += 1
        self._asked[self._asked_count] = answer
        self._turn(Asked(self._asked_count, body))

    def look_at_clock(self) -> None:
        """Take the node's time, which may have jumped, as it is now."""
        self._tick_s = float("inf")
        self._turn(Ticked())

    def die(self) -> None:
        """Be gone: what it does from now on, and what it had not synced, never happened."""
        if not self.is_dead:
            self.is_dead = True
            self.sim.disk.crash(self.mount)
            self.sim.on_death(self)

    # --- turns -----------------------------------------------------------------------------------------------------------------

    def _turn(self, event: Event) -> None:
        if self.is_dead:
            return
        now_s = self.sim.now_s(self.name)
        try:
            for effect in self.core.handle(event, now_s):
                if self.effects_count == self.dies_after:
                    raise Died(f"{self.name} dies after {self.effects_count} effects")
                self.effects_count += 1
                self._carry_out(effect)
        except Died:
            self.die()
            return
        due_s = self.core.deadline_s()
        if due_s is not None and due_s < self._tick_s:
            self._tick_s = due_s
            # A clock that is ahead rounds: what is due later is not ticked now, or time would stand still.
            least_s = self.sim.time.now_s + (TICK_S_MIN if due_s > now_s else 0.0)
            self.sim.time.at(max(due_s - self.sim.offsets_s.get(self.name, 0.0), least_s), self._tick, due_s)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Reply(request, body) | Refuse(request, body):
                self._asked.pop(request)(body)
            case Tell(order, server, address, body):
                call = self.sim.next_call()
                self._orders[call] = order
                self.sim.network.send(Message(self.name, server, "ask", call, body, address))
                self.sim.time.at(self.sim.time.now_s + ORDER_TIMEOUT_S, self._give_up, call, server, address)
            case Work(number, task) if type(task) in self.sim.tasks:
                self.sim.time.at(self.sim.time.now_s + self.sim.rng.uniform(0.0, TASK_S_MAX), self._do, number, task)
            case Work(number, task):
                working = Working(self, self.sim.programs[type(task)](task), lambda outcome: self._turn(Worked(number, outcome)))
                self.sim.time.at(self.sim.time.now_s, working.go_on)
            case Persist(puts, deletes):
                self.store.commit(puts, deletes)
            case Note(sentence, True):
                self.notes.append(sentence)

    def _tick(self, due_s: float) -> None:
        if due_s == self._tick_s:
            self._tick_s = float("inf")
            self._turn(Ticked())

    def _do(self, number: int, task: Any) -> None:
        """Do a task that the test has a doer for, in the instant in which it ends."""
        self._turn(Worked(number, self.sim.tasks[type(task)](self.name, task)))

    def _give_up(self, call: int, server: str, address: str) -> None:
        self._settle(call, Unreachable(server, address, ORDER_TIMEOUT_S, "timed out"))

    def _settle(self, call: int, outcome: Any) -> None:
        """Tell the core what became of an order; an answer that comes twice, late or to another life of this node is nothing."""
        order = self._orders.pop(call, None)
        if order is not None:
            self._turn(Answered(order, outcome))


class WorkerNode:
    """A worker's script on the network."""

    def __init__(self, sim: "Simulation", name: str, script: Callable[[Worker], Script], worker: Worker) -> None:
        self.sim, self.name, self.worker, self.address = sim, name, worker, name
        self.error: ParameterServerError | None = None
        self.result: Any = None
        self.is_done = False
        self.is_dead = False
        self.on_end: Callable[[], None] = lambda: None  # called once it is done
        self._script = script(worker)
        self._outcomes: list[Any] = []
        self._missing = 0
        self._places: dict[int, int] = {}

    def resume(self, outcome: Any = None) -> None:
        """Go on with the script until its next effect."""
        if self.is_dead:
            return
        try:
            effect = self._script.send(outcome)
        except StopIteration as stop:
            self.result = stop.value
        except ParameterServerError as error:
            self.error = error
        else:
            if isinstance(effect, Pause):
                self.sim.time.at(self.sim.time.now_s + effect.seconds, self.resume)
            else:
                assert isinstance(effect, Exchange)
                self._outcomes, self._missing = [None] * len(effect.calls), len(effect.calls)
                for place, call in enumerate(effect.calls):
                    self._make(place, call)
            return
        self.is_done = True
        self.on_end()

    def die(self) -> None:
        """Be gone, in the middle of whatever it does."""
        self.is_dead = True
        self._places.clear()

    def _make(self, place: int, call: Call) -> None:
        number = self.sim.next_call()
        self._places[number] = place
        target = "coordinator" if call.peer == COORDINATOR else call.peer
        self.sim.network.send(Message(self.name, target, "ask", number, call.body, call.address))
        self.sim.time.at(self.sim.time.now_s + call.timeout_s, self._give_up, number, call)

    def receive(self, message: Message) -> None:
        """Take an answer; one that comes a second time, or after its call was given up, is nothing."""
        self._settle(message.call, message.body)

    def _give_up(self, number: int, call: Call) -> None:
        if number in self._places:
            self._settle(number, Unreachable(call.peer, call.address, call.timeout_s, "timed out"))

    def _settle(self, number: int, outcome: Any) -> None:
        place = self._places.pop(number, None)
        if place is None:
            return
        self._outcomes[place] = outcome
        self._missing -= 1
        if self._missing == 0:
            self.resume(self._outcomes)
