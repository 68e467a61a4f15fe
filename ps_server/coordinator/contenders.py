"""Servers that ask for a name that was given before: who is there is found out before one of them gets it (R12).

The process that has the name must be gone, and the one that asks for it must be there. Its message alone does not say so: one that was
delivered late may be of a process that died long ago, while another listens at the same address and has the name. So each address is
asked which process listens there.
"""

from dataclasses import dataclass, field

from ps_proto.errors import InvalidRequest, ParameterServerError, Recovering, Unreachable
from ps_proto.orders import AskProcess, ProcessNamed
from ps_proto.requests import RegisterServer
from ps_server.coordinator.plans import Plans
from ps_server.events import Body, Effect, Tell
from sharding.shard_map import Server


@dataclass
class Contender:
    """A server that asks for the name that `rival` has, whose process is named `rival_nonce`.

    requests  those that wait, of the same message.     answers  address -> who is there, None until that is known; empty: nobody was asked.
    """

    body: RegisterServer
    server: Server
    rival: Server
    rival_nonce: int
    requests: list[int] = field(default_factory=list)
    answers: dict[str, Body | ParameterServerError | None] = field(default_factory=dict)

    def check(self) -> None:
        """Raise unless the rival is gone (InvalidRequest) and the contender is there (Recovering)."""
        if self.server.address != self.rival.address and not self._rival_is_gone():
            have = f"{self.rival.name!r}, which the server at {self.rival.address} has"
            raise InvalidRequest("server name", have, "a name of its own: give this server another --name, or stop the other one")
        found = self.answers[self.server.address]
        if found != ProcessNamed(self.body.nonce):
            who = f"nobody answers ({found.cause})" if isinstance(found, Unreachable) else "another process answers"
            at = f"at {self.server.address}, where {self.server.name} says that it listens, {who}"
            raise Recovering("The coordinator", f"{at}; others must reach it there: see --advertise")

    def _rival_is_gone(self) -> bool:
        """Return whether nobody is at its address, or another process, which need be none of ours: InvalidRequest says that."""
        found = self.answers[self.rival.address]
        return isinstance(found, Unreachable | InvalidRequest) or (isinstance(found, ProcessNamed) and found.nonce != self.rival_nonce)


class Contenders:
    """Those of whom it is not known yet who is there. `plans`: give each question a number that nothing else has."""

    def __init__(self, plans: Plans) -> None:
        self._plans = plans
        self._contenders: list[Contender] = []
        self._questions: dict[int, tuple[Contender, str]] = {}  # number -> of whom, and which address was asked

    def add(self, request: int, contender: Contender) -> None:
        """Let a request wait until it is known who is there."""
        for other in self._contenders:
            if (other.body, other.rival) == (contender.body, contender.rival):
                other.requests.append(request)
                return
        contender.requests.append(request)
        self._contenders.append(contender)

    def question(self, effects: list[Effect]) -> None:
        """Ask at the addresses of which nobody was asked."""
        for contender in self._contenders:
            if not contender.answers:
                contender.answers = dict.fromkeys((contender.rival.address, contender.server.address))
                for address in contender.answers:
                    number = self._plans.number()
                    self._questions[number] = (contender, address)
                    effects.append(Tell(number, contender.server.name, address, AskProcess()))

    def has_asked(self, number: int) -> bool:
        """Return whether a question that is open has this number."""
        return number in self._questions

    def take_answer(self, number: int, outcome: Body | ParameterServerError) -> Contender | None:
        """Take the answer to a question; return the contender, which waits no more, once all of its own are answered."""
        contender, address = self._questions.pop(number)
        contender.answers[address] = outcome
        if None in contender.answers.values():
            return None
        self._contenders.remove(contender)
        return contender

    def forget(self, request: int) -> None:
        """Let a request go that nobody waits for."""
        for contender in self._contenders:
            if request in contender.requests:
                contender.requests.remove(request)
