"""Clients of other people against a running suite (`make compat`), and the table of what each showed.

QUIRE_URL names the suite. Each test says by the marker `shows` which endpoint and feature it holds; with --table FILE
the results are written as the table in docs/compatibility.md.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest

URL = os.environ.get("QUIRE_URL", "")
KEY = "no-key-needed"


def pytest_addoption(parser):
    """--table FILE: where the table goes."""
    parser.addoption("--table", type=Path, help="write the table of what was shown here")


def pytest_configure(config):
    """Register the marker."""
    config.addinivalue_line("markers", "shows(endpoint, feature): what a test holds, for the table")
    config.shown = []


def pytest_collection_modifyitems(items):
    """Without a suite there is nothing to test against."""
    if not URL:
        for item in items:
            item.add_marker(pytest.mark.skip(reason="QUIRE_URL names no suite; run `make compat`"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Keep what each test showed."""
    report = yield
    marker = item.get_closest_marker("shows")
    if marker is not None and report.when == "call":
        client = Path(item.fspath).stem.removeprefix("test_").replace("_", "-")
        item.config.shown.append((*marker.args, client, report.outcome))
    return report


def pytest_sessionfinish(session):
    """Write the table."""
    path = session.config.getoption("--table")
    if path is None or not session.config.shown:
        return
    clients = sorted({client for _, _, client, _ in session.config.shown})
    cells = {
        (endpoint, feature, client): outcome for endpoint, feature, client, outcome in session.config.shown
    }
    rows = sorted({(endpoint, feature) for endpoint, feature, _, _ in session.config.shown})
    words = {"passed": "yes", "failed": "**no**"}
    lines = [
        "| endpoint | feature | " + " | ".join(f"{name} {version(name)}" for name in clients) + " |",
        "|---" * (len(clients) + 2) + "|",
    ]
    for endpoint, feature in rows:
        shown = [words.get(cells.get((endpoint, feature, client), ""), "") for client in clients]
        lines.append(f"| `{endpoint}` | {feature} | " + " | ".join(shown) + " |")
    before, _, after = path.read_text().partition("<!-- clients -->")
    _, _, rest = after.partition("<!-- /clients -->")
    path.write_text(before + "<!-- clients -->\n" + "\n".join(lines) + "\n<!-- /clients -->" + rest)


@pytest.fixture(scope="session")
def url():
    """The suite's address, without a path."""
    return URL.rstrip("/")


@pytest.fixture(scope="session")
def model():
    """The model that generates."""
    return "smollm2-135m-instruct"


@pytest.fixture(scope="session")
def tool():
    """A tool in OpenAI's form."""
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    }
    function = {"name": "get_weather", "description": "Weather of a city", "parameters": parameters}
    return {"type": "function", "function": function}
