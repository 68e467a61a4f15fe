"""A core that does as a test says."""

from collections.abc import Callable

from ps_server.events import Asked, Body, Effect, Event, Reply

Script = Callable[[Asked], list[Effect]]


class ScriptedCore:
    """Answers each request as `scripts` says for its type; a type without a script is parked. All events are kept, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.scripts: dict[type, Script] = {}
        self.on_other: Callable[[Event, float], list[Effect]] = lambda event, now_s: []
        self.wanted_s: float | None = None

    def reply(self, request: type, body: Body) -> None:
        """Answer requests of this type with `body`."""
        self.scripts[request] = lambda asked: [Reply(asked.request, body)]

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        self.events.append(event)
        if not isinstance(event, Asked):
            return self.on_other(event, now_s)
        script = self.scripts.get(type(event.body))
        return [] if script is None else script(event)

    def deadline_s(self) -> float | None:
        return self.wanted_s

    def asked(self) -> list[Asked]:
        """Return the requests so far."""
        return [event for event in self.events if isinstance(event, Asked)]
