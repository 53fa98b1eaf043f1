"""Structured logs: one line an event, a constant phrase with fields, for people or for machines.

One job: configure structlog once, and route the standard library's loggers through it. Services call
`structlog.get_logger()` (or `get_logger` here) and write `log.info("step applied", step_id=7)`. The interceptor binds
request_id and trace_id; nobody passes them by hand.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def get_logger(name: str) -> Any:
    """A logger whose lines carry `component=name`."""
    return structlog.get_logger(component=name)


def configure_logging(
    service: str, *, level: str = "info", log_format: str = "auto", stream: TextIO | None = None
) -> None:
    """Send structlog's and the standard library's records to `stream` (standard error) in one format.

    log_format is "console", "json", or "auto": console on a terminal and JSON elsewhere. May be called again; the last
    call counts.
    """
    stream = sys.stderr if stream is None else stream
    console = log_format == "console" or (log_format == "auto" and stream.isatty())
    threshold = LEVELS[level]

    def add_service(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        event.setdefault("service", service)
        return event

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f" if console else "iso", utc=not console),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: list[Processor]
    if console:
        renderer = [
            structlog.dev.ConsoleRenderer(
                colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
            )
        ]
    else:
        shared.append(add_service)
        renderer = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )
    _route_standard_logging(stream, threshold, shared, renderer)


def _route_standard_logging(
    stream: TextIO, threshold: int, shared: list[Processor], renderer: list[Processor]
) -> None:
    """Give the root logger one handler that renders as structlog does."""
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(threshold, logging.INFO) if threshold > logging.DEBUG else logging.INFO)
    logging.captureWarnings(True)
