"""Asks an OpenAI-compatible server what it serves, and waits for one to come up."""

from __future__ import annotations

import asyncio
import json
import time

from quire_bench.http_client import Endpoint, HttpConnection
from quire_bench.openai_client import error_message


async def get(
    url: str, path: str, headers: dict[str, str] | None = None, *, timeout_s: float = 10.0
) -> tuple[int, bytes]:
    """GET url + path on a connection of its own: status and body. OSError or TimeoutError when there is no answer."""
    parts: list[bytes] = []
    async with asyncio.timeout(timeout_s):
        connection = await HttpConnection.connect(Endpoint.parse(url))
        try:
            response = await connection.request("GET", path, b"", lambda data, _: parts.append(data), headers)
        finally:
            connection.close()
    return response.status, b"".join(parts)


async def only_model(url: str, headers: dict[str, str] | None = None) -> str:
    """Name of the model the server has; ValueError unless there is exactly one."""
    status, body = await get(url, "/models", headers)
    if status != 200:
        raise ValueError(f"{url}/models answers {status}: {error_message(body)}")
    names = [entry["id"] for entry in json.loads(body)["data"]]
    if len(names) != 1:
        raise ValueError(f"model: the server has {names}; name one")
    return str(names[0])


async def wait_ready(url: str, timeout_s: float) -> float:
    """Poll until the server lists a model; seconds waited. TimeoutError with the last reason after `timeout_s`."""
    started = time.perf_counter()
    reason = "no attempt"
    while time.perf_counter() - started < timeout_s:
        try:
            status, body = await get(url, "/models", timeout_s=2.0)
            if status == 200 and json.loads(body)["data"]:
                return time.perf_counter() - started
            reason = f"status {status}, {body[:80]!r}"
        except (OSError, ValueError, LookupError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
        await asyncio.sleep(0.05)
    raise TimeoutError(f"{url}/models lists no model after {timeout_s:g} s: {reason}")
