"""Several gateways behind one edge: turns, health, loss; through the real binary."""

import collections
import threading

import httpx
import pytest

MODELS = "/v1/models"


@pytest.fixture
def pair(start_gateway, free_ports, running_edge):
    """Two gateways and an edge before them."""
    ports = free_ports(2)
    gateways = [start_gateway(port, name) for port, name in zip(ports, ("one", "two"), strict=True)]
    with running_edge(gateways=tuple(f"127.0.0.1:{port}" for port in ports)) as edge:
        edge.gateways, edge.ports = gateways, ports
        yield edge
    for each in gateways:
        each.stop()


def asked(edge, count):
    """How many of `count` requests each gateway answered; every one must succeed."""
    names = collections.Counter()
    for _ in range(count):
        answer = edge.http.get(MODELS)
        assert answer.status_code == 200
        names[answer.json()["gateway"]] += 1
    return names


def test_gateways_take_turns_on_one_connection(pair):
    """Requests of a single client connection are spread evenly: balance is per request, not per connection."""
    pair_up(pair)
    assert asked(pair, 20) == {"one": 10, "two": 10}


def pair_up(pair, attempts=200):
    """Wait until both gateways are seen healthy."""
    for _ in range(attempts):
        if len(asked(pair, 2)) == 2:
            return
    raise AssertionError("one gateway never got a request")


def test_lost_gateway_costs_no_request(pair):
    """While one gateway dies and comes back under load every request gets its answer."""
    pair_up(pair)
    stop, statuses = threading.Event(), []

    def client():
        with httpx.Client(base_url=pair.url, timeout=20, trust_env=False) as http:
            while not stop.is_set():
                statuses.append(http.post("/v1/completions", json={"mode": "json"}).status_code)

    clients = [threading.Thread(target=client) for _ in range(4)]
    for each in clients:
        each.start()
    # Let it finish what it has begun, refuse the rest: what a gateway does that is told to stop.
    pair.gateways[0].server.stop(5).wait()
    assert asked(pair, 20) == {"two": 20}
    stop.set()
    for each in clients:
        each.join()
    assert set(statuses) == {200}


def test_gateway_that_reports_not_serving_gets_no_requests(pair, wait_until):
    """A draining gateway is passed over while another is healthy, and taken again afterwards."""
    pair_up(pair)
    pair.gateways[1].set_serving(False)
    wait_until(lambda: asked(pair, 6) == {"one": 6})
    pair.gateways[1].set_serving(True)
    wait_until(lambda: set(asked(pair, 6)) == {"one", "two"})


def test_health_is_503_when_no_gateway_serves(pair, wait_until):
    """/health is 503 once no gateway is healthy and 200 when one is again; /live stays 200 throughout."""
    for each in pair.gateways:
        each.set_serving(False)
    wait_until(lambda: pair.http.get("/health").status_code == 503)
    assert pair.http.get("/live").status_code == 200
    pair.gateways[0].set_serving(True)
    wait_until(lambda: pair.http.get("/health").status_code == 200)


def test_requests_without_any_gateway_are_503_in_openai_shape(
    running_edge, free_ports, start_gateway, wait_until
):
    """With no gateway up a request is 503 at once in OpenAI's shape; a gateway that starts later serves."""
    (port,) = free_ports(1)
    with running_edge(gateways=(f"127.0.0.1:{port}",), wait_path="/live") as edge:
        answer = edge.http.get(MODELS)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "unavailable"
        assert edge.http.get("/health").status_code == 503
        start_gateway(port)
        wait_until(lambda: edge.http.get("/health").status_code == 200)
        assert edge.http.get(MODELS).status_code == 200


def test_more_requests_than_envoys_default_limit_fit():
    """The circuit breaker allows far more than Envoy's default of 1024 requests under way."""
    from quire_envoy import EdgeSettings, render

    (gateways,) = render(EdgeSettings())["static_resources"]["clusters"]
    (thresholds,) = gateways["circuit_breakers"]["thresholds"]
    assert thresholds["max_requests"] >= 8192
    assert thresholds["max_pending_requests"] >= 8192


def test_request_limit_is_503(running_edge, gateway):
    """Beyond the set number of requests under way the edge answers 503, and serves again afterwards."""
    with running_edge(gateways=(gateway.address,), max_requests=1) as edge:
        with edge.http.stream("POST", "/v1/completions", json={"mode": "hold", "id": "one", "stream": True}):
            gateway.wait_for("started", "one")
            assert edge.http.get(MODELS).status_code == 503
        gateway.wait_for("ended", "one")
        assert edge.http.get(MODELS).status_code == 200


def test_connection_limit_closes_what_is_too_much(running_edge, gateway):
    """Beyond the set number of connections a further one is closed, and those that are open go on."""
    with running_edge(gateways=(gateway.address,), max_connections=2) as edge:
        assert edge.http.get(MODELS).status_code == 200
        with httpx.Client(base_url=edge.url, trust_env=False) as second:
            assert second.get(MODELS).status_code == 200
            with (
                httpx.Client(base_url=edge.url, trust_env=False) as third,
                pytest.raises(httpx.TransportError),
            ):
                third.get(MODELS)
            assert edge.http.get(MODELS).status_code == 200
