"""A suite with keys and a rate limit at its edge: who may call, and that the gateway knows who called."""

import httpx
import openai
import pytest

pytestmark = pytest.mark.e2e

KEYS = [{"client": "alice", "key": "key-of-alice"}, {"client": "bob", "key": "key-of-bob"}]


@pytest.fixture(scope="module")
def suite(running_suite):
    """A simulated suite whose `envoy` section names keys and a limit."""
    edge = {"api_keys": KEYS, "rate_limit": {"burst": 4, "refill": 1, "interval_s": 60}}
    with running_suite("--simulate", envoy=edge) as running:
        yield running


def client_of(suite, key):
    """The real client with a key."""
    return openai.OpenAI(base_url=f"{suite.url}/v1", api_key=key, max_retries=0, timeout=30)


def test_unknown_key_is_an_authentication_error(suite):
    """Without a known key nothing but health answers, and the real client raises its own class."""
    with client_of(suite, "wrong-key") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    assert httpx.get(f"{suite.url}/health").status_code == 200
    for path in ("/tokenize", "/detokenize"):
        assert httpx.post(suite.url + path, json={}).status_code == 401


def test_limit_is_each_clients_own_and_the_tenant_is_known(suite):
    """One client over its limit gets RateLimitError while another is answered; the gateway's log names the tenant."""
    options = {"model": "smollm2-135m-instruct", "prompt": "x", "max_tokens": 2}
    with client_of(suite, "key-of-alice") as alice, client_of(suite, "key-of-bob") as bob:
        for _ in range(4):
            alice.completions.create(**options)
        with pytest.raises(openai.RateLimitError) as refused:
            alice.completions.create(**options)
        assert int(refused.value.response.headers["retry-after"]) >= 1
        bob.completions.create(**options)
    log = suite.command("logs").stdout
    assert "tenant=alice" in log
    assert "tenant=bob" in log
    assert "key-of" not in log
