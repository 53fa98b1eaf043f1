"""What clients get: statuses and bodies, REST and native gRPC, through the real binary."""

import subprocess

import grpc
import httpx
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from quire.admin.v1 import admin_service_pb2, admin_service_pb2_grpc
from quire.inference.v1 import generate_pb2, inference_service_pb2_grpc
from quire.scheduler.v1 import load_pb2, scheduler_service_pb2_grpc

CHAT = "/v1/chat/completions"


def error_of(answer):
    """The error object of an answer that must be in OpenAI's shape."""
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["param"] is None
    return error


def test_json_body_passes_both_ways(edge):
    """A JSON request reaches the gateway as it is and its JSON answer comes back with status 200."""
    answer = edge.http.post(CHAT, json={"mode": "json"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["type"] == "application/json"
    assert "grpc-status" not in answer.headers
    assert not [name for name in answer.headers if name.startswith("x-envoy")]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 429, 500, 503, 529])
def test_gateway_names_the_status_of_its_errors(edge, status):
    """The status that the gateway names in `x-http-status` becomes the HTTP status, its body stays."""
    answer = edge.http.post(CHAT, json={"mode": "error", "status": status})
    assert answer.status_code == status
    assert answer.json()["error"]["message"] == "as ordered"
    assert answer.headers["retry-after"] == "7"
    assert "x-http-status" not in answer.headers


def test_unary_error_gets_its_status_too(edge):
    """The status header works on RPCs that are not streams."""
    assert edge.http.get("/v1/models/missing").status_code == 404


def test_model_names_may_hold_slashes(edge):
    """A model's name with slashes arrives whole, plain or escaped as the openai client sends it."""
    assert edge.http.get("/v1/models/org/name").json() == {"id": "org/name"}
    assert edge.http.get("/v1/models/org%2Fname").json() == {"id": "org/name"}


@pytest.mark.parametrize(
    ("code", "status"),
    [("NOT_FOUND", 404), ("RESOURCE_EXHAUSTED", 429), ("UNAVAILABLE", 503), ("INTERNAL", 500)],
)
def test_grpc_status_becomes_http_status(edge, code, status):
    """A call that the gateway aborts before its first message gives the matching HTTP status, never a 200."""
    answer = edge.http.post(CHAT, json={"mode": "abort", "code": code})
    assert answer.status_code == status
    assert "aborted as ordered" in answer.text


@pytest.mark.parametrize("path", ["/nothing", "/v1/nothing", "/", "/v1/chat/completions/more"])
def test_unknown_path_is_404_in_openai_shape(edge, path):
    """A path that no contract names is 404."""
    answer = edge.http.get(path)
    assert answer.status_code == 404
    assert error_of(answer)["code"] == "not_found"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, "POST"),
        ("DELETE", CHAT, "POST"),
        ("POST", "/v1/models", "GET"),
        ("PUT", "/v1/models/m", "GET"),
    ],
)
def test_wrong_method_is_405_with_allow(edge, method, path, allowed):
    """A known path with another method is 405 and says which methods there are."""
    answer = edge.http.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == allowed
    assert error_of(answer)["code"] == "method_not_allowed"


def test_internal_services_are_not_reachable(edge, channel):
    """Scheduler and admin calls never pass the public port, neither as gRPC nor as HTTP."""
    for call in (
        lambda: scheduler_service_pb2_grpc.SchedulerStub(channel).GetLoad(load_pb2.GetLoadRequest()),
        lambda: admin_service_pb2_grpc.AdminStub(channel).GetStatus(admin_service_pb2.GetStatusRequest()),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            call()
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert edge.http.post("/quire.admin.v1.Admin/Drain", json={}).status_code == 404


def test_rpc_path_over_plain_http_is_404(edge):
    """The gRPC path of a public RPC is no REST path."""
    assert edge.http.post("/quire.inference.v1.Inference/Generate", json={}).status_code == 404


def test_malformed_typed_json_is_400(edge):
    """JSON that does not parse on a typed route is 400 in OpenAI's shape."""
    answer = edge.http.post(
        "/quire/v1/tokenize", content=b'{"text": ', headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    assert error_of(answer)["type"] == "invalid_request_error"


def test_typed_error_has_details_in_its_body(edge):
    """An error with google.rpc details is a readable JSON body: their types are in the descriptor set."""
    answer = edge.http.post("/quire/v1/generate", json={"text": "refuse"})
    assert answer.status_code == 400
    body = answer.json()
    assert body["message"] == "sampling.top_p is out of range"
    assert body["details"][0]["field_violations"][0]["field"] == "sampling.top_p"


def test_typed_answers_use_contract_names_and_show_zeros(edge):
    """REST field names are those of the contracts, ids are numbers, and a zero is shown."""
    answer = edge.http.post("/quire/v1/tokenize", json={"text": "abc"})
    assert answer.json() == {"token_ids": [0, 1, 2], "rendered_text": "", "max_model_len": 0}


def test_unknown_query_parameters_do_no_harm(edge):
    """A query that the contract does not know leaves the call as it is."""
    assert edge.http.get("/v1/models?beta=true&x=1").status_code == 200
    assert edge.http.post(CHAT + "?beta=true", json={"mode": "json"}).status_code == 200


def test_request_id_is_kept_or_made(edge):
    """A client's request id reaches the gateway and comes back; without one the edge makes it."""
    answer = edge.http.get("/v1/models", headers={"x-request-id": "mine-1"})
    assert answer.headers["x-request-id"] == answer.json()["x-request-id"] == "mine-1"
    assert edge.http.get("/v1/models").headers["x-request-id"]


def test_trace_context_passes(edge):
    """The W3C trace context reaches the gateway unchanged."""
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert edge.http.get("/v1/models", headers={"traceparent": parent}).json()["traceparent"] == parent


def test_client_cannot_forge_its_identity(edge):
    """The tenant header is the edge's to set: a client's own is dropped."""
    assert "x-client-id" not in edge.http.get("/v1/models", headers={"x-client-id": "boss"}).json()


def test_native_grpc_error_keeps_code_message_and_details(channel):
    """A gRPC client sees the status of the call, its message and its details, not an HTTP translation."""
    stub = inference_service_pb2_grpc.InferenceStub(channel)
    with pytest.raises(grpc.RpcError) as refused:
        list(stub.Generate(generate_pb2.GenerateRequest(text="refuse")))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == "sampling.top_p is out of range"
    detail = error_details_pb2.BadRequest()
    assert rpc_status.from_call(refused.value).details[0].Unpack(detail)
    assert detail.field_violations[0].field == "sampling.top_p"


def test_edge_error_is_readable_for_grpc(channel):
    """The edge's own refusal reaches a gRPC client as plain text."""
    call = channel.unary_unary("/nobody.v1.Nobody/Call")
    with pytest.raises(grpc.RpcError) as refused:
        call(b"")
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert refused.value.details().startswith("Unknown path")


def test_grpc_health_and_reflection_pass(channel):
    """Health and reflection of the gateway answer on the public port."""
    stub = health_pb2_grpc.HealthStub(channel)
    assert (
        stub.Check(health_pb2.HealthCheckRequest(service="quire.inference.v1.Inference")).status
        == health_pb2.HealthCheckResponse.SERVING
    )
    ask = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
    (answer,) = ask(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    names = [service.name for service in answer.list_services_response.service]
    assert "quire.inference.v1.Inference" in names


def test_http2_without_tls_works(edge):
    """The same port speaks HTTP/1.1 and HTTP/2: curl with prior knowledge gets the JSON."""
    done = subprocess.run(
        ["curl", "-s", "--http2-prior-knowledge", "-o", "/dev/null", "-w", "%{http_version} %{http_code}",
         edge.url + "/v1/models"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "2 200"


def test_access_log_has_one_line_per_request(edge, wait_until):
    """The access log names the client's path, the status and the request id; probes are not logged."""
    edge.http.get("/health")
    edge.http.get("/v1/models?a=1", headers={"x-request-id": "logged-1"})
    log = edge.settings.access_log
    wait_until(lambda: "logged-1" in log.read_text())
    line = next(line for line in log.read_text().splitlines() if "logged-1" in line)
    assert '"path":"/v1/models?a=1"' in line
    assert '"status":200' in line
    assert "/health" not in log.read_text()


def test_health_paths_answer_ok(edge):
    """/health and /live are 200 while a gateway serves, with any client."""
    assert httpx.get(edge.url + "/health", trust_env=False).status_code == 200
    assert httpx.get(edge.url + "/live", trust_env=False).status_code == 200
