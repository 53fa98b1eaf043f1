"""Tools of MCP servers in a response.

One job: list them, answer calls and approvals with them, and tell each as items and events. A server that fails gives
an item that says so, never a failed response.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson

from quire_gateway.chat.call import Tool
from quire_gateway.mcp_servers import McpConnection, McpFailure, McpServers, McpToolInfo
from quire_gateway.openai.response_input import Item
from quire_gateway.openai.response_items import ServerTool, new_item_id
from quire_gateway.openai.response_state import Event, ResponseState
from quire_gateway.openai.response_tools import McpTool
from quire_servicekit.errors import InvalidRequest

#: What a tool's name may hold towards the model.
_FORBIDDEN = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_NAME = 64


class McpToolbox:
    """The MCP tools of one response. Enter it; leaving closes its connections."""

    def __init__(
        self,
        servers: McpServers,
        tools: Sequence[tuple[int, McpTool]],
        *,
        taken: Sequence[str] = (),
        max_calls: int | None = None,
    ) -> None:
        """tools: with their index in the request. taken: names of the client's own. Raises for one not allowed."""
        self._requested = [tool for _, tool in tools]
        self._connections: dict[str, McpConnection] = {}
        for index, tool in tools:
            if tool.server_label in self._connections:
                field = f"tools[{index}].server_label"
                raise InvalidRequest(field, "different from every other server's", tool.server_label)
            headers = dict(tool.headers)
            if tool.authorization:
                headers["Authorization"] = f"Bearer {tool.authorization}"
            server = servers.find(tool.server_label, tool.server_url, headers, f"tools[{index}]")
            self._connections[tool.server_label] = servers.connection(tool.server_label, server)
        self._taken, self._max_calls = set(taken), max_calls
        #: By the name that the model knows: whose tool it is.
        self.known: dict[str, ServerTool] = {}
        #: The same in domain words.
        self.tools: list[Tool] = []
        self.num_calls = 0
        #: A server could not list its tools.
        self.has_failed = False

    @property
    def is_used(self) -> bool:
        """Whether the request names any server."""
        return bool(self._requested)

    @property
    def labels(self) -> dict[str, str]:
        """By the name that the model knows: the server's label."""
        return {name: tool.label for name, tool in self.known.items()}

    async def __aenter__(self) -> McpToolbox:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for connection in self._connections.values():
            await connection.close()

    # ---- Lists of tools ----------------------------------------------------------------------------------------

    async def list_tools(self, state: ResponseState, context: list[Item]) -> AsyncIterator[list[Event]]:
        """Learn each server's tools: from the conversation, where they stand, else from the server."""
        listed = {item["server_label"]: item for item in context if item["type"] == "mcp_list_tools"}
        for tool in self._requested:
            item = listed.get(tool.server_label)
            if item is not None and not item.get("error"):
                self._learn(tool, [_info(entry) for entry in item["tools"]])
                continue
            async for events in self._ask(state, context, tool):
                yield events

    async def _ask(
        self, state: ResponseState, context: list[Item], tool: McpTool
    ) -> AsyncIterator[list[Event]]:
        label, item_id = tool.server_label, new_item_id("mcp_list_tools")
        item: Item = {
            "id": item_id,
            "type": "mcp_list_tools",
            "server_label": label,
            "tools": [],
            "error": None,
        }
        index = state.add_item(item)
        place = {"item_id": item_id, "output_index": index}
        yield [
            state.event("response.output_item.added", output_index=index, item=dict(item)),
            state.event("response.mcp_list_tools.in_progress", **place),
        ]
        try:
            found = await self._connections[label].list_tools()
        except McpFailure as error:
            self.has_failed = True
            item["error"], name = str(error), "response.mcp_list_tools.failed"
        else:
            name = "response.mcp_list_tools.completed"
            allowed = [info for info in found if tool.is_allowed(info.name)]
            item["tools"] = [_entry(info) for info in allowed]
            self._learn(tool, allowed)
        context.append(item)
        yield [
            state.event(name, **place),
            state.event("response.output_item.done", output_index=index, item=item),
        ]

    def _learn(self, server: McpTool, tools: Sequence[McpToolInfo]) -> None:
        for tool in tools:
            name = self._free_name(server.server_label, tool.name)
            self._taken.add(name)
            self.known[name] = ServerTool(server.server_label, tool.name, server.needs_approval(tool.name))
            self.tools.append(
                Tool(name=name, description=tool.description, parameters=dict(tool.input_schema))
            )

    def _free_name(self, label: str, name: str) -> str:
        """The tool's own name if the model can have it, else one with the server's label."""
        for candidate in (name, f"{label}_{name}"):
            clean = _FORBIDDEN.sub("_", candidate)[:_MAX_NAME]
            if clean not in self._taken:
                return clean
        raise InvalidRequest("tools", message=f"tools: {name} of server {label} has the name of another tool")

    # ---- Calls -------------------------------------------------------------------------------------------------

    async def answer(self, state: ResponseState, index: int, item: Item) -> AsyncIterator[list[Event]]:
        """Let the server answer a call that stands in the output as item `index`."""
        place = {"item_id": item["id"], "output_index": index}
        self.num_calls += 1
        try:
            if self._max_calls is not None and self.num_calls > self._max_calls:
                raise McpFailure(f"not called: max_tool_calls is {self._max_calls}")
            connection = self._connections.get(item["server_label"])
            if connection is None:
                raise McpFailure(f"there is no server {item['server_label']} in this request's tools")
            item["output"] = await connection.call(item["name"], _arguments(item["arguments"]))
        except McpFailure as error:
            item |= {"error": {"type": "mcp_tool_execution_error", "content": _error_content(error)}}
            item["status"], name = "failed", "response.mcp_call.failed"
        else:
            item["status"], name = "completed", "response.mcp_call.completed"
        yield [
            state.event(name, **place),
            state.event("response.output_item.done", output_index=index, item=item),
        ]

    async def answer_approvals(self, state: ResponseState, context: list[Item]) -> AsyncIterator[list[Event]]:
        """Make the calls that the client has approved; note those that it has not."""
        requests = {item["id"]: item for item in context if item["type"] == "mcp_approval_request"}
        made = {item.get("approval_request_id") for item in context if item["type"] == "mcp_call"}
        responses = [item for item in context if item["type"] == "mcp_approval_response"]
        for response in responses:
            request_id = response["approval_request_id"]
            if request_id in made:
                continue
            request = requests.get(request_id)
            if request is None:
                raise InvalidRequest("input", "approvals of requests in the conversation", request_id)
            item = _call_of(request)
            if not response["approve"]:
                reason = response.get("reason") or "the user does not want it"
                content = _error_content(McpFailure(f"not approved: {reason}"))
                context.append(item | {"error": {"type": "mcp_tool_execution_error", "content": content}})
                continue
            index = state.add_item(item)
            yield [state.event("response.output_item.added", output_index=index, item=dict(item))]
            async for events in self.answer(state, index, item):
                yield events
            context.append(item)


def _call_of(request: Item) -> Item:
    return {
        "id": new_item_id("mcp_call"),
        "type": "mcp_call",
        "server_label": request["server_label"],
        "name": request["name"],
        "arguments": request["arguments"],
        "approval_request_id": request["id"],
        "output": None,
        "error": None,
        "status": "in_progress",
    }


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = orjson.loads(text or "{}")
    except orjson.JSONDecodeError as error:
        raise McpFailure(f"the model's arguments are not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise McpFailure("the model's arguments are not a JSON object")
    return arguments


def _error_content(error: McpFailure) -> list[dict[str, str]]:
    return [{"type": "text", "text": str(error)}]


def _entry(info: McpToolInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "description": info.description,
        "input_schema": info.input_schema,
        "annotations": info.annotations,
    }


def _info(entry: dict[str, Any]) -> McpToolInfo:
    schema = entry.get("input_schema")
    return McpToolInfo(
        str(entry.get("name", "")), entry.get("description") or "", schema if isinstance(schema, dict) else {}
    )
