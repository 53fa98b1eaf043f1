"""The OpenAPI document and its page."""

from __future__ import annotations

import json
import re
from typing import Any

from quire.management.v1 import management_service_pb2 as messages
from quire.management.v1 import management_service_pb2_grpc
from quire_gateway.openapi.document import load_contracts
from quire_gateway.servicers.management import BODIES, PUBLIC_SERVICES, api_document


def test_every_reference_of_the_document_is_there() -> None:
    """A client generator meets no dangling reference."""
    text = json.dumps(api_document())
    schemas = api_document()["components"]["schemas"]
    references = re.findall(r'"#/components/schemas/([^"]+)"', text)
    assert references and all(name in schemas for name in references)


def test_the_dialects_bodies_are_described_by_what_parses_them() -> None:
    """The document of a chat completion's body has the parameters that are served."""
    document = api_document()
    for path in BODIES:
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert schema["$ref"].rpartition("/")[2] in document["components"]["schemas"]
    chat = document["components"]["schemas"]["openai.chat_request.ChatRequest"]["properties"]
    assert {"messages", "temperature", "tools", "response_format"} <= chat.keys()


def test_every_field_of_the_typed_api_is_described() -> None:
    """Comments of the contract arrive in the document."""
    schemas = api_document()["components"]["schemas"]
    sampling = schemas["quire.sampling.v1.SamplingParams"]["properties"]
    assert sampling["temperature"]["type"] == "number"
    assert "greedy" in sampling["temperature"]["description"]
    missing = [
        f"{name}.{field}"
        for name, schema in schemas.items()
        if name.startswith("quire.")
        for field, found in schema.get("properties", {}).items()
        if not found.get("description")
    ]
    assert missing == []


def test_path_parameters_and_streams_are_declared() -> None:
    """A templated path has its parameter, and a server stream is an event stream."""
    paths = api_document()["paths"]
    assert paths["/quire/v1/models/{model}"]["get"]["parameters"][0]["in"] == "path"
    assert list(paths["/quire/v1/generate"]["post"]["responses"]["200"]["content"]) == ["text/event-stream"]


def test_operation_ids_are_unique() -> None:
    """OpenAPI wants them so; generated clients name their methods by them."""
    ids = [op["operationId"] for verbs in api_document()["paths"].values() for op in verbs.values()]
    assert len(ids) == len(set(ids))


def test_the_documented_services_exist() -> None:
    """Every documented service is one of the contracts."""
    known = {f"{f.package}.{s.name}" for f in load_contracts().files for s in f.service}
    assert set(PUBLIC_SERVICES) <= known


async def test_the_page_names_every_path(suite: Any) -> None:
    """The page is HTML, needs nothing from elsewhere, and lists what the document lists."""
    stub = management_service_pb2_grpc.ManagementStub(suite.client.channel)
    answer = await stub.GetDocs(messages.GetDocsRequest())
    assert answer.content_type.startswith("text/html")
    html = answer.data.decode()
    assert all(path in html for path in api_document()["paths"])
    assert "<script" not in html and "<link" not in html
