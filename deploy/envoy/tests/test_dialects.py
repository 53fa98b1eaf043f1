"""What clients of the Anthropic dialect, of responses and of files get from the edge."""

import anthropic
import pytest

MESSAGES = "/v1/messages"
BODY = {"model": "m", "max_tokens": 1, "messages": []}
KEY = "key-of-client-one"


def error_of(answer):
    """The error object of an answer that must be in Anthropic's shape."""
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    assert document["type"] == "error"
    assert document["request_id"]
    assert document["error"]["message"]
    return document["error"]


def test_messages_stream_and_have_the_id_header(edge):
    """Named events come through, and the header that Anthropic's client reads names the request."""
    answer = edge.http.post(MESSAGES + "?beta=true", json={"stream": True}, headers={"x-request-id": "mine"})
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.text.startswith("event: message_stop\n")
    assert answer.headers["request-id"] == "mine"


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", MESSAGES, 405, "invalid_request_error"),
        ("PUT", MESSAGES + "/count_tokens", 405, "invalid_request_error"),
        ("POST", MESSAGES + "/batches", 404, "not_found_error"),
    ],
)
def test_the_edges_own_refusals_are_in_anthropics_shape(edge, method, path, status, kind):
    """A wrong method or path under /v1/messages is refused as Anthropic would."""
    answer = edge.http.request(method, path)
    assert answer.status_code == status
    assert error_of(answer)["type"] == kind


def test_a_body_that_is_too_large_is_request_too_large(edge):
    """413 has Anthropic's own type."""
    answer = edge.http.post(MESSAGES, content=b"x" * (9 << 20))
    assert answer.status_code == 413
    assert error_of(answer)["type"] == "request_too_large"


def test_without_a_gateway_messages_are_overloaded(running_edge, free_ports):
    """No gateway is 529 overloaded_error for Anthropic's paths, and stays 503 for OpenAI's."""
    (port,) = free_ports(1)
    with running_edge(gateways=(f"127.0.0.1:{port}",), wait_on_admin=True) as edge:
        answer = edge.http.post(MESSAGES, json=BODY)
        assert answer.status_code == 529
        assert error_of(answer)["type"] == "overloaded_error"
        assert edge.http.get("/v1/models").status_code == 503


def test_the_real_client_uses_its_own_key_header(running_edge, gateway):
    """x-api-key opens the edge for the anthropic client, and a wrong one is its AuthenticationError."""
    keys = ({"client": "one", "key": KEY},)
    with running_edge(gateways=(gateway.address,), api_keys=keys) as edge:
        with anthropic.Anthropic(api_key=KEY, base_url=edge.url) as client:
            message = client.messages.with_raw_response.create(**BODY)
        assert message.http_response.json()["x-client-id"] == "one"
        assert "x-api-key" not in message.http_response.json()
        with (
            anthropic.Anthropic(api_key="wrong-key", base_url=edge.url, max_retries=0) as client,
            pytest.raises(anthropic.AuthenticationError) as refused,
        ):
            client.messages.create(**BODY)
        assert refused.value.body["error"]["type"] == "authentication_error"


def test_paths_and_queries_of_responses_bind(edge):
    """Ids, paging and streaming options reach the gateway as fields of the contract."""
    get = edge.http.get("/v1/responses/resp_1?stream=true&starting_after=7").json()["asked"]
    assert all(part in get for part in ('response_id: "resp_1"', "stream: true", "starting_after: 7"))
    items = edge.http.get("/v1/responses/resp_1/input_items?limit=5&order=asc").json()["asked"]
    assert all(part in items for part in ('response_id: "resp_1"', "limit: 5", 'order: "asc"'))
    assert "resp_2" in edge.http.post("/v1/responses/resp_2/cancel").json()["asked"]
    assert "resp_2" in edge.http.post("/v1/responses/resp_2/cancel", json={}).json()["asked"]
    assert "resp_3" in edge.http.delete("/v1/responses/resp_3").json()["asked"]


def test_uploads_pass_raw_with_their_boundary(edge):
    """A multipart form reaches the gateway byte for byte, its content type with the boundary beside it."""
    data = bytes(range(256)) * 5000
    answer = edge.http.post("/v1/files", files={"file": ("a.jsonl", data)}, data={"purpose": "batch"}).json()
    kind, _, boundary = answer["type"].partition("; boundary=")
    assert kind == "multipart/form-data"
    assert answer["size"] > len(data)
    assert bytes.fromhex(answer["tail"]).endswith(f"{boundary}--\r\n".encode()[-20:])


def test_downloads_keep_their_bytes_and_type(edge):
    """A file of any bytes comes back as it is, in as many messages as the gateway likes."""
    answer = edge.http.get("/v1/files/file-1/content")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.content == bytes(range(256)) + b"file-1"
