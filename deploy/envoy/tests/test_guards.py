"""Keys, rate limits, browsers, TLS: who may call, through the real binary."""

import json
import os
import signal
import subprocess
import sys

import grpc
import httpx
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.inference.v1 import generate_pb2, inference_service_pb2_grpc, models_pb2
from quire_envoy import ApiKey, RateLimit, Tls

KEYS = (ApiKey(client="alice", key="key-of-alice"), ApiKey(client="bob", key="key-of-bob"))
ALICE = {"authorization": "Bearer key-of-alice"}
BOB = {"x-api-key": "key-of-bob"}
MODELS = "/v1/models"


@pytest.fixture(scope="module")
def guarded(running_edge, gateway):
    """An edge with keys, limits and browsers' origins."""
    limit = RateLimit(burst=5, refill=1, interval_s=30)
    origins = ("https://app.example",)
    with running_edge(
        gateways=(gateway.address,), api_keys=KEYS, rate_limit=limit, cors_origins=origins
    ) as edge:
        yield edge


@pytest.fixture(scope="module")
def keyed(running_edge, gateway):
    """An edge with keys alone."""
    with running_edge(gateways=(gateway.address,), api_keys=KEYS) as edge:
        yield edge


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong-key"}, {"x-api-key": "wrong-key"}])
@pytest.mark.parametrize("path", [MODELS, "/v1/chat/completions", "/quire/v1/models", "/nothing"])
def test_without_a_known_key_everything_is_401(keyed, headers, path):
    """No key or a wrong one is 401 in OpenAI's shape, on every path."""
    answer = keyed.http.post(path, headers=headers, json={})
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(("headers", "client"), [(ALICE, "alice"), (BOB, "bob")])
def test_key_names_the_client_and_stays_at_the_edge(keyed, headers, client):
    """Both headers carry keys; the gateway learns the client's name, even against a forged one, not the key."""
    seen = keyed.http.get(MODELS, headers={**headers, "x-client-id": "boss"}).json()
    assert seen["x-client-id"] == client
    assert "key-of" not in json.dumps(seen)


def test_health_needs_no_key(keyed):
    """Probes pass without a key, as HTTP and as gRPC."""
    assert keyed.http.get("/health").status_code == 200
    assert keyed.http.get("/live").status_code == 200
    with grpc.insecure_channel(keyed.target) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="quire.inference.v1.Inference")
        )
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("path", ["/ready", "/openapi.json", "/docs"])
def test_readiness_and_documentation_need_no_key(keyed, path):
    """Probes and readers of the documentation reach the gateway without a key."""
    assert keyed.http.get(path).status_code != 401
    assert keyed.http.get("/metrics").status_code == 401


def test_grpc_without_a_key_is_unauthenticated(keyed):
    """A native call needs the key as metadata; without it the status is UNAUTHENTICATED and its message readable."""
    with grpc.insecure_channel(keyed.target) as channel:
        stub = inference_service_pb2_grpc.InferenceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            stub.ListModels(models_pb2.ListModelsRequest())
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert "{" not in refused.value.details()
        stub.ListModels(models_pb2.ListModelsRequest(), metadata=tuple(ALICE.items()))


def test_openai_client_raises_authentication_error(keyed):
    """The real client maps the edge's 401 to its class, and works with a key."""
    client = openai.OpenAI(base_url=keyed.url + "/v1", api_key="wrong-key", max_retries=0)
    with client, pytest.raises(openai.AuthenticationError) as refused:
        client.models.list()
    assert refused.value.code == "invalid_api_key"


def test_rate_limit_is_per_client_with_retry_after(guarded):
    """A client over its rate gets 429 with Retry-After in OpenAI's shape, others go on, health is not counted."""
    statuses = [guarded.http.get(MODELS, headers=ALICE).status_code for _ in range(6)]
    assert statuses == [200] * 5 + [429]
    refused = guarded.http.get(MODELS, headers=ALICE)
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert refused.headers["x-ratelimit-limit"].startswith("5")
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert guarded.http.get(MODELS, headers=BOB).status_code == 200
    assert {guarded.http.get("/health").status_code for _ in range(10)} == {200}
    client = openai.OpenAI(base_url=guarded.url + "/v1", api_key="key-of-alice", max_retries=0)
    with client, pytest.raises(openai.RateLimitError):
        client.models.list()
    with grpc.insecure_channel(guarded.target) as channel, pytest.raises(grpc.RpcError) as exhausted:
        list(
            inference_service_pb2_grpc.InferenceStub(channel).Generate(
                generate_pb2.GenerateRequest(text="go"), metadata=tuple(ALICE.items())
            )
        )
    assert exhausted.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_rate_limit_without_keys_is_per_address(running_edge, gateway):
    """Without keys the limit holds for the client's address."""
    limit = RateLimit(burst=2, refill=1, interval_s=30)
    with running_edge(gateways=(gateway.address,), rate_limit=limit) as edge:
        assert [edge.http.get(MODELS).status_code for _ in range(3)] == [200, 200, 429]


def test_preflight_of_a_listed_origin_needs_no_key(guarded):
    """A browser's preflight from a listed origin is answered by the edge, without a key."""
    asked = {
        "origin": "https://app.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type",
    }
    answer = guarded.http.options("/v1/chat/completions", headers=asked)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert "POST" in answer.headers["access-control-allow-methods"]


def test_other_origins_get_no_permission(guarded):
    """An origin that is not listed gets no CORS headers."""
    asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in guarded.http.options(MODELS, headers=asked).headers


def test_answers_to_a_listed_origin_carry_permission(guarded):
    """The answer itself carries the CORS headers too, errors included."""
    answer = guarded.http.get("/v1/models", headers={"origin": "https://app.example", **BOB})
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    refused = guarded.http.get("/v1/models", headers={"origin": "https://app.example"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for 127.0.0.1 made now."""
    folder = tmp_path_factory.mktemp("tls")
    arguments = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    arguments += [
        "-keyout",
        folder / "key.pem",
        "-out",
        folder / "cert.pem",
        "-days",
        "2",
        "-subj",
        "/CN=quire",
    ]
    arguments += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    try:
        subprocess.run(arguments, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return Tls(certificate=folder / "cert.pem", key=folder / "key.pem")


def test_tls_serves_http_and_grpc(running_edge, gateway, certificate):
    """With a certificate the port speaks TLS, to HTTP clients and (by ALPN) to gRPC clients."""
    with running_edge(gateways=(gateway.address,), tls=certificate) as edge:
        assert edge.http.get(MODELS).status_code == 200
        trusted = grpc.ssl_channel_credentials(certificate.certificate.read_bytes())
        with grpc.secure_channel(edge.target, trusted) as channel:
            inference_service_pb2_grpc.InferenceStub(channel).ListModels(models_pb2.ListModelsRequest())


def test_client_certificate_is_demanded(running_edge, gateway, certificate):
    """With a client CA a client without a certificate gets no answer, one with it does."""
    tls = certificate.model_copy(update={"client_ca": certificate.certificate})
    # /health cannot be asked without a certificate: the admin address says when the edge is up.
    with running_edge(gateways=(gateway.address,), tls=tls, wait_on_admin=True) as edge:
        trusted = certificate.certificate.read_bytes()
        with_certificate = grpc.ssl_channel_credentials(trusted, certificate.key.read_bytes(), trusted)
        with grpc.secure_channel(edge.target, with_certificate) as channel:
            stub = inference_service_pb2_grpc.InferenceStub(channel)
            stub.ListModels(models_pb2.ListModelsRequest(), wait_for_ready=True, timeout=10)
        with grpc.secure_channel(edge.target, grpc.ssl_channel_credentials(trusted)) as channel:
            stub = inference_service_pb2_grpc.InferenceStub(channel)
            with pytest.raises(grpc.RpcError) as refused:
                stub.ListModels(models_pb2.ListModelsRequest(), timeout=10)
            assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def test_termination_lets_a_stream_end_first(gateway, free_ports, tmp_path, wait_until):
    """`quire-envoy run` drains on SIGTERM: /health turns 503, the open stream ends whole, then the process exits 0."""
    port, admin = free_ports(2)
    arguments = [sys.executable, "-m", "quire_envoy.main", "run", "--port", str(port)]
    arguments += ["--admin", f"127.0.0.1:{admin}", "--gateway", gateway.address]
    process = subprocess.Popen(arguments, cwd=tmp_path)
    url = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(base_url=url, timeout=20, trust_env=False) as client:
            wait_until(lambda: client.get("/health").status_code == 200, process)
            order = {"mode": "sse", "events": 40, "gap_s": 0.05}
            with client.stream("POST", "/v1/chat/completions", json=order) as answer:
                pieces = answer.iter_text()
                text = next(pieces)
                os.kill(process.pid, signal.SIGTERM)
                text += "".join(pieces)
            assert text.count("data: ") == 41
        assert process.wait(timeout=20) == 0
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=20)
