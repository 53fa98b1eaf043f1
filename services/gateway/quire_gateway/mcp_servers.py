"""Servers of tools that speak the Model Context Protocol.

One job: which servers may be reached, and calls of their tools within limits of time and size. Knows no dialect: who
offers the tools to a model, and how a call is told, is the dialect's.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from quire_gateway.mcp_stdio import stdio_transport
from quire_servicekit.errors import InvalidRequest, QuireError, Unsupported
from quire_servicekit.logging import get_logger

if TYPE_CHECKING:
    from mcp import Client

log = get_logger("mcp")

#: Pages of a server's list of tools that are read at most.
_MAX_PAGES = 20


class McpServer(BaseModel):
    """One server that requests may name by its label: reached over HTTP, or a program that is started."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field("", description="Streamable HTTP endpoint.")
    headers: dict[str, str] = Field(default_factory=dict, description="Sent with each request to it.")
    command: tuple[str, ...] = Field((), description="Program and arguments of a stdio server.")
    env: dict[str, str] = Field(default_factory=dict, description="Environment added for the program.")

    @model_validator(mode="after")
    def _is_one_kind(self) -> McpServer:
        if bool(self.url) == bool(self.command):
            raise ValueError("an MCP server has a url or a command, and not both")
        return self


class McpFailure(QuireError):
    """A server could not be reached, did not answer in time, or refused; the message is for the client."""


@dataclass(frozen=True, slots=True)
class McpToolInfo:
    """One tool of a server."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    annotations: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class McpLimits:
    """How long a server may take and how much it may say."""

    connect_timeout_s: float = 10.0
    call_timeout_s: float = 60.0
    max_result_bytes: int = 256 << 10


@dataclass(frozen=True, slots=True)
class McpServers:
    """The servers that requests may use. Without any, MCP tools are refused."""

    servers: Mapping[str, McpServer] = field(default_factory=dict)
    #: Addresses that a request may name itself.
    allowed_urls: Sequence[str] = ()
    limits: McpLimits = field(default_factory=McpLimits)

    def __post_init__(self) -> None:
        if (self.servers or self.allowed_urls) and importlib.util.find_spec("mcp") is None:
            raise ValueError("MCP servers need the package mcp: pip install quire-gateway[mcp]")

    def find(self, label: str, url: str, headers: Mapping[str, str], where: str) -> McpServer:
        """The server that a request means. Raises naming the field that is not allowed.

        url: empty for a server of the settings. headers: the request's own, only for a server it names by address.
        """
        if not self.servers and not self.allowed_urls:
            raise Unsupported(f"{where}.type", message=f"{where}.type: this server has no MCP servers")
        known = self.servers.get(label)
        if not url or (known is not None and _same(url, known.url)):
            if known is None:
                raise InvalidRequest(f"{where}.server_label", "a label of this server's settings", label)
            if headers:
                raise InvalidRequest(
                    f"{where}.headers",
                    message=f"{where}.headers: this server has its own credentials for {label}",
                )
            return known
        if not any(_same(url, allowed) for allowed in self.allowed_urls):
            raise InvalidRequest(
                f"{where}.server_url", message=f"{where}.server_url: {url} is not on this server's list"
            )
        return McpServer(url=url, headers=dict(headers))

    def connection(self, label: str, server: McpServer) -> McpConnection:
        """A connection, not open yet."""
        return McpConnection(label, server, self.limits)


def _same(url: str, other: str) -> bool:
    return bool(other) and url.rstrip("/") == other.rstrip("/")


class McpConnection:
    """One connection to one server. Opens at its first use; `close` ends it.

    The library's scopes have to be left by the task that entered them, so that a connection lives in a task of its own.
    """

    def __init__(self, label: str, server: McpServer, limits: McpLimits) -> None:
        self.label = label
        self._server, self._limits = server, limits
        self._task: asyncio.Task[None] | None = None
        self._client: asyncio.Future[Client] | None = None
        self._closing = asyncio.Event()

    async def list_tools(self) -> list[McpToolInfo]:
        """Its tools. Raises McpFailure."""
        async with self._limited(self._limits.connect_timeout_s, "its list of tools"):
            client = await self._open()
            found: list[McpToolInfo] = []
            cursor: str | None = None
            for _ in range(_MAX_PAGES):
                page = await client.list_tools(cursor=cursor)
                found += [_info(tool) for tool in page.tools]
                cursor = page.next_cursor
                if cursor is None:
                    break
            return found

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The text that a tool gave. Raises McpFailure."""
        async with self._limited(self._limits.connect_timeout_s, "a connection"):
            client = await self._open()
        async with self._limited(self._limits.call_timeout_s, f"a result of {name}"):
            result = await client.call_tool(name, dict(arguments))
        text = "\n".join(map(_text_of, result.content))
        if result.is_error:
            raise McpFailure(self._shorten(text) or f"{name} failed")
        return self._shorten(text)

    async def close(self) -> None:
        """End the connection; a program that was started ends too."""
        self._closing.set()
        if self._task is not None:
            _, pending = await asyncio.wait((self._task,), timeout=self._limits.connect_timeout_s)
            for task in pending:
                task.cancel()

    @asynccontextmanager
    async def _limited(self, timeout_s: float, what: str) -> Any:
        """Whatever goes wrong inside becomes an McpFailure that says it."""
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError:
            raise McpFailure(f"{self.label} gave no answer within {timeout_s:g} s for {what}") from None
        except McpFailure:
            raise
        except Exception as error:
            raise McpFailure(f"{self.label}: {_reason(error)}") from error

    async def _open(self) -> Client:
        if self._client is None:
            self._client = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._live(self._client), name=f"mcp {self.label}")
        return await asyncio.shield(self._client)

    async def _live(self, opened: asyncio.Future[Client]) -> None:
        from mcp import Client

        try:
            async with self._transport() as transport, Client(transport) as client:
                opened.set_result(client)
                await self._closing.wait()
        except BaseException as error:
            if not opened.done():
                opened.set_exception(McpFailure(f"{self.label}: {_reason(error)}"))
                opened.exception()
            elif isinstance(error, Exception):
                log.info("mcp connection ended", server=self.label, reason=_reason(error))
            if not isinstance(error, Exception):
                raise

    @asynccontextmanager
    async def _transport(self) -> Any:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        server = self._server
        if server.command:
            yield stdio_transport(server.command, server.env)
            return
        # Redirects could lead to addresses that are not on the list; a proxy of this machine's could see the headers.
        timeout = httpx2.Timeout(self._limits.call_timeout_s)
        async with httpx2.AsyncClient(
            headers=dict(server.headers), timeout=timeout, follow_redirects=False, trust_env=False
        ) as http:
            yield streamable_http_client(server.url, http_client=http)

    def _shorten(self, text: str) -> str:
        limit = self._limits.max_result_bytes
        data = text.encode()
        if len(data) <= limit:
            return text
        return data[:limit].decode(errors="ignore") + f"\n[cut: {len(data)} bytes, at most {limit}]"


def _info(tool: Any) -> McpToolInfo:
    annotations = tool.annotations.model_dump(exclude_none=True) if tool.annotations is not None else None
    return McpToolInfo(tool.name, tool.description or "", tool.input_schema, annotations)


def _text_of(content: Any) -> str:
    """A piece of a result as text: a model that reads text alone is told what else there was."""
    if content.type == "text":
        return str(content.text)
    if content.type == "resource" and hasattr(content.resource, "text"):
        return str(content.resource.text)
    return f"[{content.type}]"


def _reason(error: BaseException) -> str:
    """The first cause of a group, in words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
