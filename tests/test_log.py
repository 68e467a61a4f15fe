"""Log lines for people."""

from ps_server.edge.log import render_text


def test_a_line_has_time_level_process_event_and_values() -> None:
    event = {"process": "server-0", "event": "serving", "address": "127.0.0.1:80", "level": "info", "timestamp": "12:00:00"}
    assert render_text(None, "info", event) == "12:00:00 INFO    server-0  serving  address=127.0.0.1:80"


def test_a_traceback_follows_its_line() -> None:
    event = {
        "process": "coordinator",
        "event": "a bug",
        "level": "error",
        "timestamp": "12:00:00",
        "exception": "Traceback ...\nKeyError: 1",
    }
    assert render_text(None, "error", event) == "12:00:00 ERROR   coordinator  a bug\nTraceback ...\nKeyError: 1"
