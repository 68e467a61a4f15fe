"""Spans in the Trace Event Format of Chrome, which Perfetto and chrome://tracing show.

After "Trace Event Format" (the Chromium project), complete events ("ph": "X"), whose times are in microseconds.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ps_worker.profiling.stopwatch import Carried, Ended


def trace_events(spans: Iterable[Ended | Carried], threads: Mapping[int, str], rank: int, begin_s: float) -> dict[str, Any]:
    """Return the JSON object: a process for the rank, a track for each thread, times from `begin_s` on."""
    tracks = {thread: number for number, thread in enumerate(threads)}
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}]
    events += [{"ph": "M", "name": "thread_name", "pid": rank, "tid": tracks[it], "args": {"name": name}} for it, name in threads.items()]
    for span in spans:
        if span.begin_s >= begin_s:
            times = {"ts": (span.begin_s - begin_s) * 1e6, "dur": (span.end_s - span.begin_s) * 1e6}
            events.append({"ph": "X", "pid": rank, "tid": tracks[span.thread], **times, **_described(span)})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _described(span: Ended | Carried) -> dict[str, Any]:
    if isinstance(span, Ended):
        return {"name": f"{span.name} {span.kind}".strip() if span.kind != span.name else span.name, "cat": "span", "args": {}}
    travelled = {"sent_bytes": span.sent_bytes, "received_bytes": span.received_bytes}
    return {"name": f"{span.kind} at {span.peer}", "cat": "call", "args": travelled}
