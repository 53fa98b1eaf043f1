"""A real MCP server for tests: `python mcp_server.py PORT` over HTTP, `python mcp_server.py` over stdio."""

import asyncio
import sys

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("test")


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool(name="dotted.name")
def dotted() -> str:
    """A name that models may not have."""
    return "dotted"


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("as ordered")


@server.tool()
def big() -> str:
    """More than anybody wants."""
    return "x" * 100_000


@server.tool()
async def slow() -> str:
    """Take a minute."""
    await asyncio.sleep(60)
    return "done"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
