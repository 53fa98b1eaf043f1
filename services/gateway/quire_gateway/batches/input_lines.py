"""The input of a job: where each line stands, and whether it can be run.

One job: check the whole file once, before anything runs, and read single lines later. Knows no endpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

MAX_LINES = 50_000
MAX_ERRORS = 20


@dataclass(frozen=True, slots=True)
class InputLines:
    """A checked file."""

    path: Path
    #: Offset and length of each line that is a request.
    places: list[tuple[int, int]]

    def read(self, line: int) -> dict[str, Any]:
        """The request of that number, from 0."""
        offset, num_bytes = self.places[line]
        with self.path.open("rb") as file:
            file.seek(offset)
            document: dict[str, Any] = orjson.loads(file.read(num_bytes))
            return document


def check_lines(path: Path, endpoint: str) -> tuple[InputLines, list[dict[str, Any]]]:
    """The lines, and what is wrong with them: code, message, param, line (from 1). Blocks: call it from a thread."""
    places: list[tuple[int, int]] = []
    errors: list[dict[str, Any]] = []
    seen: set[str] = set()
    offset = 0
    with path.open("rb") as file:
        for number, data in enumerate(file, start=1):
            if data.strip():
                problem = _problem_of(data, endpoint, seen)
                if problem is not None and len(errors) < MAX_ERRORS:
                    errors.append({**problem, "line": number})
                places.append((offset, len(data)))
            offset += len(data)
    if not places:
        errors.append(_problem("empty_file", "The input file has no lines.", None) | {"line": None})
    if len(places) > MAX_LINES:
        message = f"The input file has {len(places)} lines, at most {MAX_LINES} are allowed."
        errors.insert(0, _problem("too_many_tasks", message, None) | {"line": None})
    return InputLines(path, places), errors


def _problem_of(data: bytes, endpoint: str, seen: set[str]) -> dict[str, Any] | None:
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return _problem("invalid_json_line", f"This line is not valid JSON: {error}", None)
    if not isinstance(document, dict):
        return _problem("invalid_json_line", "This line is not a JSON object.", None)
    custom_id = document.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        return _problem("missing_required_parameter", "custom_id must be a text.", "custom_id")
    if custom_id in seen:
        return _problem(
            "duplicate_custom_id", f"The custom_id {custom_id!r} stands in an earlier line.", "custom_id"
        )
    seen.add(custom_id)
    if document.get("method") != "POST":
        return _problem("invalid_method", "method must be POST.", "method")
    if document.get("url") != endpoint:
        return _problem("mismatched_endpoint", f"url must be the batch's endpoint, {endpoint}.", "url")
    if not isinstance(document.get("body"), dict):
        return _problem("missing_required_parameter", "body must be a JSON object.", "body")
    if unknown := sorted(set(document) - {"custom_id", "method", "url", "body"}):
        return _problem("unknown_parameter", f"Unrecognized key: {unknown[0]}", unknown[0])
    if document["body"].get("stream"):
        return _problem("unsupported_parameter", "stream is not supported in a batch.", "body.stream")
    return None


def _problem(code: str, message: str, param: str | None) -> dict[str, Any]:
    return {"code": code, "message": message, "param": param}
