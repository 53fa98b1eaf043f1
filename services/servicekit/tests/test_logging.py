"""Logs: one format for ours and the libraries' lines."""

from __future__ import annotations

import io
import json
import logging

import pytest
import structlog

from quire_servicekit.logging import configure_logging, get_logger


@pytest.fixture
def configured(quiet_logs):
    """Call it to configure logging into the returned buffer; undone afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    processors = structlog.get_config()

    def configure(**options) -> io.StringIO:
        buffer = io.StringIO()
        configure_logging("sample", stream=buffer, **options)
        return buffer

    yield configure
    root.handlers, root.level = handlers, level
    logging.captureWarnings(False)
    structlog.configure(**processors)


def lines(buffer: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in buffer.getvalue().splitlines()]


def test_json_lines_carry_service_fields_and_bound_ids(configured):
    """A machine-readable line has the event, its fields, the service and the request."""
    buffer = configured(log_format="json")
    with structlog.contextvars.bound_contextvars(request_id="r1"):
        get_logger("engine").info("step applied", step_id=7)
    (line,) = lines(buffer)
    expected = {
        "event": "step applied",
        "step_id": 7,
        "service": "sample",
        "request_id": "r1",
        "component": "engine",
    }
    assert expected.items() <= line.items()


def test_standard_library_records_take_the_same_form(configured):
    """A library's own log line comes out as JSON too."""
    buffer = configured(log_format="json")
    logging.getLogger("some.library").warning("odd %s", "thing")
    (line,) = lines(buffer)
    assert (line["event"], line["level"], line["logger"]) == ("odd thing", "warning", "some.library")


def test_level_filters_our_lines(configured):
    """Lines under the level are not written."""
    buffer = configured(log_format="json", level="warning")
    get_logger("engine").info("quiet")
    get_logger("engine").warning("loud")
    assert [line["event"] for line in lines(buffer)] == ["loud"]


def test_auto_is_json_without_a_terminal(configured):
    """Output to a file or a pipe is for machines unless told otherwise."""
    buffer = configured(log_format="auto")
    get_logger("engine").info("hello")
    assert lines(buffer)[0]["event"] == "hello"


def test_console_is_for_people(configured):
    """The console form has the phrase and the fields, and no JSON."""
    buffer = configured(log_format="console")
    get_logger("engine").info("step applied", step_id=7)
    assert "step applied" in buffer.getvalue()
    assert "step_id=7" in buffer.getvalue()
    assert not buffer.getvalue().startswith("{")


def test_exceptions_keep_their_traceback(configured):
    """A logged exception shows where it came from."""
    buffer = configured(log_format="json")
    try:
        raise KeyError("x")
    except KeyError:
        get_logger("engine").exception("failed")
    assert "KeyError: 'x'" in lines(buffer)[0]["exception"]
