"""The tests' own worlds carry out what a core asks for: the end of a task comes back to it, and what is to be durable is kept."""

from collections.abc import Callable
from typing import Any

import pytest

from inprocess import InProcess
from ps_proto.errors import Unreachable
from ps_proto.requests import Done, GetCluster
from ps_server.events import Asked, Core, Effect, Event, Persist, Reply, Work, Worked
from scripted_core import ScriptedCore
from sim.cluster import Simulation
from sim.network import Message
from sim.nodes import CoreNode

GONE = Unreachable("the store", "s3://bucket", 1.0, "it is gone")


def do(owner: str, task: str) -> object:
    return GONE if task == "fail" else f"{owner} did {task}"


def scripted() -> ScriptedCore:
    """Return a core that makes things durable, gives two tasks, and answers once both have ended."""
    core = ScriptedCore()

    def begin(asked: Asked) -> list[Effect]:
        return [Persist({"map": b"1", "job": b"2"}), Work(1, "save"), Work(2, "fail")]

    def go_on(event: Event, now_s: float) -> list[Effect]:
        ended = [event for event in core.events if isinstance(event, Worked)]
        (asked,) = core.asked()
        return [Persist({"map": b"3"}, frozenset({"job"})), Reply(asked.request, Done(7))] if len(ended) == 2 else []

    core.scripts[GetCluster] = begin
    core.on_other = go_on
    return core


def in_virtual_time(core: Core) -> tuple[Any, dict[str, bytes], str]:
    sim = Simulation(seed=7, servers=1, tasks={str: do})
    answers = list[Message]()
    asker: Any = type("Asker", (), {"is_dead": False, "address": "", "receive": lambda self, message: answers.append(message)})()
    node = CoreNode(sim, "scripted", core)
    sim.nodes |= {"asker": asker, "scripted": node}
    sim.network.send(Message("asker", "scripted", "ask", 1, GetCluster()))
    sim.run(until=lambda: bool(answers))
    return answers[0].body, node.store.load(), "scripted"


def in_this_process(core: Core) -> tuple[Any, dict[str, bytes], str]:
    cluster = InProcess(servers=1, tasks={str: do})
    cluster._cores["scripted:0"] = core
    cluster.stored.clear()  # what its coordinator has
    return cluster.ask("scripted:0", GetCluster(), 1.0, "scripted", lambda: False), cluster.stored, "scripted:0"


@pytest.mark.parametrize("talk", [in_virtual_time, in_this_process])
def test_a_world_does_tasks_and_keeps_what_is_to_be_durable(talk: Callable[[Core], tuple[Any, dict[str, bytes], str]]) -> None:
    core = scripted()
    answer, stored, owner = talk(core)
    assert answer == Done(7)
    assert stored == {"map": b"3"}
    ended = {event.number: event.outcome for event in core.events if isinstance(event, Worked)}
    assert ended == {1: f"{owner} did save", 2: GONE}
