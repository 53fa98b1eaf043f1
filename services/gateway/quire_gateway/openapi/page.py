"""A page that shows the OpenAPI document: no script or style from elsewhere, so that it works without a network.

One job: HTML.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, summary { font-family: ui-monospace, monospace; } summary { cursor: pointer; padding: .2rem 0; }
.verb { display: inline-block; min-width: 4.5rem; font-weight: 600; } td { padding: .1rem .8rem .1rem 0; }
td { vertical-align: top; } details > * { margin-left: 1rem; } details > summary { margin-left: 0; }
p { white-space: pre-line; } :root { color-scheme: light dark; }
"""


def page(document: Mapping[str, Any]) -> bytes:
    """The page, UTF-8."""
    info = document["info"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style>",
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])}</p>",
        "<p>Machine-readable: <a href='/openapi.json'>/openapi.json</a></p>",
    ]
    for tag in document["tags"]:
        parts.append(f"<h2>{escape(tag['name'])}</h2><p>{escape(tag['description'])}</p>")
        for path, verbs in document["paths"].items():
            for verb, operation in verbs.items():
                if tag["name"] in operation["tags"]:
                    parts += _operation(path, verb, operation, document["components"]["schemas"])
    return "\n".join(parts).encode()


def _operation(
    path: str, verb: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]
) -> Iterator[str]:
    yield f"<details><summary><span class=verb>{verb.upper()}</span>{escape(path)}</summary>"
    yield f"<p>{escape(operation['description'])}</p>"
    rows = [(p["name"], p["schema"]) for p in operation.get("parameters", ())]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    rows += _properties(body, schemas)
    if rows:
        yield "<table>"
        for name, schema in rows:
            yield f"<tr><td><code>{escape(name)}</code><td>{escape(_type(schema))}"
            yield f"<td>{escape(schema.get('description', ''))}"
        yield "</table>"
    yield "</details>"


def _properties(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> list[tuple[str, Any]]:
    reference = schema.get("$ref", "").rpartition("/")[2]
    return list(schemas.get(reference, {}).get("properties", {}).items())


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition(".")[2])
    if "anyOf" in schema:
        return " or ".join(_type(option) for option in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))
