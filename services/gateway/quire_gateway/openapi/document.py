"""The OpenAPI document: every path that some contract names, as the edge serves it.

One job: paths. Made from the descriptor set that is installed with the contracts, so that it cannot differ from what
is served; the bodies of the dialects, which are opaque to the contracts, come from the models that parse them.
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.api import annotations_pb2
from google.protobuf import descriptor_pb2
from pydantic import BaseModel

from quire_gateway.openapi.schemas import Contracts, Field

_HTTP_BODY = ".google.api.HttpBody"
_VERBS = ("get", "put", "post", "delete", "patch")
_ANY_BODY = {"description": "As the dialect defines it."}


def load_contracts() -> Contracts:
    """The installed contracts."""
    data = (importlib.resources.files("quire") / "descriptors.binpb").read_bytes()
    return Contracts(descriptor_pb2.FileDescriptorSet.FromString(data))


def document(
    contracts: Contracts, services: Sequence[str], bodies: Mapping[str, type[BaseModel]], version: str
) -> dict[str, Any]:
    """The OpenAPI 3.1 document. services: full names, without a leading dot. bodies: what parses a path's body."""
    paths: dict[str, dict[str, Any]] = {}
    roots = {".google.rpc.Status"}
    for service, name, method in _methods(contracts, services):
        for verb, template, body in _bindings(method):
            path = re.sub(r"\{([^=}]+)=[^}]*\}", r"{\1}", template)
            operation = _operation(contracts, name, method, path, body, bodies.get(path))
            operation["tags"] = [service.rpartition(".")[2]]
            if verb != "get" and verb in paths.get(path, {}):
                raise ValueError(f"{verb} {path} is named twice")
            paths.setdefault(path, {})[verb] = operation
        roots |= {
            type_name for type_name in (method.input_type, method.output_type) if type_name != _HTTP_BODY
        }
    schemas = contracts.components(roots)
    for model in dict.fromkeys(bodies.values()):
        schemas |= _model_schemas(model)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Quire",
            "version": version,
            "description": "OpenAI and Anthropic dialects under /v1, the typed API under /quire/v1. "
            "The same contracts are served over gRPC on this port.",
        },
        "security": [{"bearer": []}],
        "tags": [
            {"name": service.rpartition(".")[2], "description": contracts.comments[f".{service}"]}
            for service in services
        ],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _methods(
    contracts: Contracts, services: Sequence[str]
) -> Iterator[tuple[str, str, descriptor_pb2.MethodDescriptorProto]]:
    """(service, full name with a leading dot, method), in the order of `services`."""
    known = {
        f"{file.package}.{service.name}": service for file in contracts.files for service in file.service
    }
    for name in services:
        for method in known[name].method:
            yield name, f".{name}.{method.name}", method


def _bindings(method: descriptor_pb2.MethodDescriptorProto) -> Iterator[tuple[str, str, str]]:
    """(verb, template, body) of each http rule."""
    if not method.options.HasExtension(annotations_pb2.http):
        return
    rule = method.options.Extensions[annotations_pb2.http]
    for binding in (rule, *rule.additional_bindings):
        verb = binding.WhichOneof("pattern")
        if verb in _VERBS:
            yield verb, getattr(binding, verb), binding.body


def _operation(
    contracts: Contracts,
    name: str,
    method: descriptor_pb2.MethodDescriptorProto,
    path: str,
    body: str,
    model: type[BaseModel] | None,
) -> dict[str, Any]:
    comment = contracts.comments.get(name, "")
    operation: dict[str, Any] = {
        "operationId": name.rsplit(".", 2)[-2] + "_" + method.name + re.sub(r"\W+", "_", path),
        "summary": comment.split(". ")[0].rstrip("."),
        "description": comment,
        "responses": {
            "200": {"description": "Done.", "content": _answer(contracts, method)},
            "default": {"description": "An error, in the shape of the path's dialect."},
        },
    }
    in_path = re.findall(r"\{([^}]+)\}", path)
    parameters = [{"name": p, "in": "path", "required": True, "schema": {"type": "string"}} for p in in_path]
    if not body and method.input_type != _HTTP_BODY:
        message = contracts.messages[method.input_type]
        parameters += [
            {"name": field.name, "in": "query", "schema": contracts.field_schema(method.input_type, field)}
            for field in message.field
            if field.name not in in_path and field.type != Field.TYPE_MESSAGE
        ]
    if parameters:
        operation["parameters"] = parameters
    if body:
        schema = contracts.schema(method.input_type)
        if method.input_type == _HTTP_BODY:
            schema = _ANY_BODY if model is None else {"$ref": f"#/components/schemas/{_model_name(model)}"}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _answer(contracts: Contracts, method: descriptor_pb2.MethodDescriptorProto) -> dict[str, Any]:
    if method.output_type == _HTTP_BODY:
        content = {"application/json": {"schema": _ANY_BODY}}
        if method.server_streaming:
            content["text/event-stream"] = {"schema": {"type": "string"}}
        return content
    schema = contracts.schema(method.output_type)
    return {"text/event-stream" if method.server_streaming else "application/json": {"schema": schema}}


def _model_name(model: type[BaseModel]) -> str:
    """Unique among the dialects: two of them may have a model of the same name."""
    return f"{model.__module__.removeprefix('quire_gateway.')}.{model.__name__}"


def _model_schemas(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of a dialect's body and of what it refers to."""
    scope = _model_name(model)
    schema = model.model_json_schema(ref_template=f"#/components/schemas/{scope}.{{model}}")
    nested = schema.pop("$defs", {})
    return {scope: schema, **{f"{scope}.{name}": found for name, found in nested.items()}}
