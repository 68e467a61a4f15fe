"""Where a training loop's time goes: `ps.profile`."""

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import Any, Self

from ps_proto.errors import InvalidRequest, ParameterServerError
from ps_proto.requests import OBSERVER, Stats
from ps_worker.client import Client
from ps_worker.profiling import report, stopwatch
from ps_worker.profiling.advice import advice
from ps_worker.profiling.breakdown import Breakdown
from ps_worker.profiling.server_times import ServerTimes, calls_s
from ps_worker.profiling.steps import StepTimes
from ps_worker.profiling.stopwatch import Stopwatch
from ps_worker.profiling.taps import Taps
from ps_worker.profiling.trace import trace_events
from ps_worker.session import Session, current_session

WARM_UP_STEPS = 3  # kernels are compiled or loaded, connections opened, memory touched
STEPS_KEPT_MAX = 10_000  # the newest


def profile(of: Client | Session | None = None, *, warm_up: int = WARM_UP_STEPS) -> "Profile":
    """Return a profile of a client's steps, by default the session's; `with` runs it.

        with ps.profile() as profile:
            for batch in batches: ...            # each step that ends in here counts, but for the first `warm_up`
        print(profile.report())

    It looks at the thread that enters the block. Raises InvalidRequest; one profile at a time looks at a thread or at a client.
    """
    if isinstance(warm_up, bool) or not isinstance(warm_up, int) or warm_up < 0:
        raise InvalidRequest("warm_up", repr(warm_up), "a whole number from 0: how many steps are left out")
    given = current_session() if of is None else of
    client = given.client if isinstance(given, Session) else given
    if not isinstance(client, Client):
        raise InvalidRequest("what is profiled", type(client).__name__, "a client or a session")
    if client.rank is None:
        raise InvalidRequest("what is profiled", "an observer's client", "one with a rank: an observer takes no steps")
    return Profile(client, warm_up)


class Profile:
    """See `profile`. `now_s`: a monotonic time in seconds."""

    def __init__(self, client: Client, warm_up: int = WARM_UP_STEPS, now_s: Callable[[], float] = time.perf_counter) -> None:
        self._client = client
        self._rank = OBSERVER if client.rank is None else client.rank
        self._job = f"rank {client.rank} of {client.world_size}, {client.mode}"
        self._warm_up = warm_up
        self._now_s = now_s
        self._taps: Taps | None = None
        self._watch: Stopwatch | None = None
        self._steps: deque[StepTimes] = deque(maxlen=STEPS_KEPT_MAX)
        self._steps_ended = self._steps_elsewhere = 0
        self._calls_s: dict[str, float] = {}
        self._begin_s = self._step_begin_s = self._end_s = 0.0
        self._before: Mapping[str, Stats] | None = None
        self._servers: ServerTimes | None = None

    # --- running -----------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Look at this thread's steps from now on. Raises InvalidRequest where another profile does, or this one has run before."""
        if self._watch is not None:
            raise InvalidRequest("A profile", "run before", "run once: ask ps.profile for another")
        if stopwatch.is_watched() or Taps.are_in(self._client):
            want = "the only one that looks at this client and this thread; ROWSTEAD_PROFILE and --profile begin one too"
            raise InvalidRequest("A profile", "begun while another one runs", want)
        self._watch = Stopwatch(self._now_s)
        self._taps = Taps(self._client, self._watch, self._on_step_end)
        stopwatch.begin(self._watch)
        try:
            self._count_from_here()
        except BaseException:  # such as a Ctrl-C while the servers are asked: nobody would stop what never began
            self._look_away()
            raise

    def stop(self, asks_servers: bool = True) -> None:
        """Look no more; a second time does nothing. `asks_servers`: what they did; where the training has failed they may be gone."""
        if self._taps is None or self._watch is None:
            return
        self._end_s = self._now_s()
        self._look_away()
        _, carried = self._watch.take()
        self._add_calls(calls_s(carried))
        after = self._ask_servers() if asks_servers else None
        if self._before is not None and after is not None:
            self._servers = ServerTimes.between(self._before, after, self._rank, self._calls_s, self._end_s - self._begin_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop(asks_servers=error is None)

    def _look_away(self) -> None:
        """Take away what listens."""
        assert self._taps is not None
        assert self._watch is not None
        self._taps.remove()
        self._taps = None
        stopwatch.end(self._watch)

    def _on_step_end(self) -> None:
        """Count the step that has ended; after those of the warm-up, forget them. One of another thread is only noted."""
        assert self._watch is not None
        if get_ident() != self._watch.thread:
            self._steps_elsewhere += 1
            return
        self._steps_ended += 1
        if self._steps_ended <= self._warm_up:
            if self._steps_ended == self._warm_up:
                self._count_from_here()
            return
        end_s = self._now_s()
        ended, carried = self._watch.take()
        self._add_calls(calls_s(carried))
        self._steps.append(StepTimes.of(self._step_begin_s, end_s, ended, carried, self._watch.thread))
        self._step_begin_s = end_s

    def _count_from_here(self) -> None:
        assert self._watch is not None
        self._before = self._ask_servers()
        self._watch.take()
        self._begin_s = self._step_begin_s = self._now_s()

    def _ask_servers(self) -> Mapping[str, Stats] | None:
        """Return the servers' numbers; None where they give none: a profile must not end a training."""
        try:
            return self._client.stats()
        except ParameterServerError:
            return None

    def _add_calls(self, seconds: Mapping[str, float]) -> None:
        for kind, total_s in seconds.items():
            self._calls_s[kind] = self._calls_s.get(kind, 0.0) + total_s

    # --- looking -----------------------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """How many steps count: those after the warm-up, the newest 10,000 of them at most."""
        return len(self._steps)

    @property
    def breakdown(self) -> Breakdown | None:
        """Where the time of the steps went; None where no step counts."""
        if not self._steps:
            return None
        return Breakdown.of(list(self._steps), {} if self._servers is None else self._servers.splits)

    def report(self) -> str:
        """Return the profile as lines for people, with one of advice. While it runs, what the servers did is not known yet."""
        seen = self.breakdown
        if seen is None:
            head = f"Profile of {self._job}: no step has ended after the {self._warm_up} of warm-up."
            if self._steps_elsewhere:
                return f"{head} In other threads {self._steps_elsewhere} have: begin the profile in the thread that trains."
            return head
        is_running = self._taps is not None
        end_s = self._now_s() if is_running else self._end_s
        head = f"Profile of {self._job}: {seen.steps} steps after {self._warm_up} of warm-up, {end_s - self._begin_s:.3f} s."
        servers = report.servers(self._servers, is_running)
        return "\n".join([head, "", *report.table(seen), "", *report.beside(seen), *servers, "", self._advice(seen)])

    def _advice(self, seen: Breakdown) -> str:
        return advice(seen, self._servers, self._rank, self._client.has_synchronous_tables)

    def as_dict(self) -> dict[str, Any]:
        """Return the profile as what JSON can carry; seconds, bytes and shares of 1. `rows` is empty where no step counts."""
        seen = self.breakdown
        whole: dict[str, Any] = {"job": self._job, "rank": self._rank, "steps": self.steps, "warm_up_steps": self._warm_up}
        if seen is None:
            return {**whole, "rows": {}}
        servers = self._servers
        return {
            **whole,
            "rows": {name: row._asdict() for name, row in seen.rows.items()},
            "beside_s": dict(seen.beside_s),
            "hidden": dict(seen.hidden),
            "sent_bytes": seen.sent_bytes,
            "received_bytes": seen.received_bytes,
            "servers": None
            if servers is None
            else {name: {"cpu": busy, "turns": servers.turns[name]} for name, busy in servers.busy.items()},
            "parked_s": None if servers is None else {str(rank): seconds for rank, seconds in servers.parked_s.items()},
            "advice": self._advice(seen),
        }

    def save_trace(self, path: str | Path) -> None:
        """Write the newest spans in the Trace Event Format, for Perfetto (ui.perfetto.dev) or chrome://tracing."""
        if self._watch is None:
            raise InvalidRequest("A profile's trace", "asked for before it has run", "asked for after it")
        events = trace_events(list(self._watch.trace), dict(self._watch.threads), self._rank, self._begin_s)
        Path(path).write_text(json.dumps(events))
