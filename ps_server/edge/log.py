"""What a process says about itself, on stderr: lines for people, or JSON for machines."""

import logging
import os
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog
from structlog.typing import Processor


def configure_log(process: str, log_format: str, log_level: str) -> None:
    """Send what structlog and the standard library log to stderr, under the name of this process; once per process.

    log_format  "text" or "json".     log_level  the least level that is logged, as "info".
    """
    as_json = log_format == "json"
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso" if as_json else "%H:%M:%S", utc=as_json),
        structlog.processors.format_exc_info,
    ]

    def add_process(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {"process": process, **event}

    render: Processor = structlog.processors.JSONRenderer() if as_json else render_text
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, add_process, render],
            foreign_pre_chain=shared,
        )
    )
    logging.basicConfig(handlers=[handler], level=log_level.upper(), force=True)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def render_text(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    """Return `time LEVEL process  event  key=value ...`, then the traceback if there is one."""
    fields = dict(event)
    head = f"{fields.pop('timestamp')} {fields.pop('level').upper():<7} {fields.pop('process')}  {fields.pop('event')}"
    traceback = fields.pop("exception", None)
    values = "".join(f"  {name}={value}" for name, value in fields.items())
    return f"{head}{values}" + (f"\n{traceback}" if traceback else "")


def quiet_grpc() -> None:
    """Keep gRPC's C core from writing lines of its own to stderr: they say again what its errors say. Call it before grpc is imported."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
