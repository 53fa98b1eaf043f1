"""Settings, configuration and commands of the edge, without a running Envoy."""

import json
import stat
import subprocess
import sys

import pytest
from pydantic import ValidationError

from quire_envoy import ApiKey, EdgeSettings, RateLimit, render, validate, write_config
from quire_envoy.contracts import RestPath, load_descriptors, rest_paths
from quire_envoy.main import main
from quire_envoy.process import InvalidConfig
from quire_envoy.routes import route_config
from quire_envoy.settings import load_settings, read_api_keys


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"gateways": ("nowhere",)}, "host:port"),
        ({"gateways": ("host:70000",)}, "65535"),
        ({"gateways": ()}, "at least 1"),
        ({"admin": "0.0.0.0:9901"}, "loopback"),
        ({"port": 0}, "greater than or equal to 1"),
        ({"prot": 8080}, "prot"),
        ({"tls": {"certificate": "/no/such/file", "key": "/no/such/file"}}, "is not a file"),
        ({"api_keys": ({"client": "a", "key": "short"},)}, "at least 8"),
    ],
)
def test_bad_settings_are_refused_by_name(values, words):
    """A value that cannot be used fails the start with a message that says what is wrong."""
    with pytest.raises(ValidationError, match=words):
        EdgeSettings(**values)


def test_one_key_for_two_clients_is_refused():
    """The same key for two clients is ambiguous, and the message does not show it."""
    keys = (ApiKey(client="a", key="secret-123"), ApiKey(client="b", key="secret-123"))
    with pytest.raises(ValidationError, match="'a' and 'b' have the same key") as refused:
        EdgeSettings(api_keys=keys)
    assert "secret-123" not in str(refused.value)


def test_keys_come_from_a_file(tmp_path):
    """A key file has one client and key a line, comments and empty lines are skipped."""
    file = tmp_path / "keys"
    file.write_text("# ours\nalice key-of-alice\n\nbob   key-of-bob\n")
    assert [entry.client for entry in read_api_keys(file)] == ["alice", "bob"]


@pytest.mark.parametrize("line", ["alice", "alice key extra", "al!ce key-of-alice", "alice short"])
def test_bad_key_file_names_the_line_and_no_key(tmp_path, line):
    """A malformed line is named by file and number; the key is never printed."""
    file = tmp_path / "keys"
    file.write_text(f"# ours\n{line}\n")
    with pytest.raises(ValueError, match="keys:2") as refused:
        read_api_keys(file)
    assert "key-of-alice" not in str(refused.value)


def test_key_file_without_keys_is_refused(tmp_path):
    """An empty key file is an error, not an open door."""
    file = tmp_path / "keys"
    file.write_text("# none yet\n")
    with pytest.raises(ValueError, match="no keys"):
        read_api_keys(file)


def test_flags_win_over_the_file(tmp_path):
    """Settings come from a YAML file; flags that are given win."""
    file = tmp_path / "edge.yaml"
    file.write_text("port: 8181\nconcurrency: 2\nrate_limit: {burst: 3, refill: 1}\n")
    settings = load_settings(file, {"port": 8282, "host": None})
    assert (settings.port, settings.concurrency, settings.rate_limit.burst) == (8282, 2, 3)


def test_keys_are_not_in_the_settings_text():
    """Printing settings, as logs do, shows no key."""
    assert "secret-123" not in repr(EdgeSettings(api_keys=(ApiKey(client="a", key="secret-123"),)))


def test_configuration_is_readable_by_its_owner_alone(tmp_path):
    """The written file may hold keys: nobody else can read it."""
    file = tmp_path / "envoy.json"
    write_config(render(EdgeSettings()), file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_rest_surface_is_that_of_the_contracts():
    """The paths are those that the http rules of the public services name, with their methods."""
    found = {path.template: path.methods for path in rest_paths(load_descriptors())}
    assert found["/v1/chat/completions"] == ("POST",)
    assert found["/v1/models/{model=**}"] == ("GET",)
    assert found["/quire/v1/generate"] == ("POST",)
    assert found["/quire/v1/admin/drain"] == ("POST",)


def test_the_admin_service_of_each_process_is_not_published():
    """Operators come in by Management, which asks who they are; Admin asks nobody."""
    table = json.dumps(route_config(EdgeSettings(), rest_paths(load_descriptors())))
    assert "/quire.management.v1.Management/" in table
    assert "quire.admin" not in table


@pytest.mark.parametrize(
    ("template", "regex"),
    [
        ("/v1/a.b", r"/v1/a\.b"),
        ("/v1/{id}/x", "/v1/[^/]+/x"),
        ("/v1/{name=**}", "/v1/.+"),
        ("/v1/{name=models/*}:run", "/v1/models/[^/]+:run"),
    ],
)
def test_path_templates_become_regular_expressions(template, regex):
    """Every form of a path template of google.api.http is understood."""
    assert RestPath(template, ("GET",)).regex == regex


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"gateways": ("unix:/tmp/quire.sock",)},
        {"gateways": ("gateway.internal:8081", "127.0.0.1:9")},
        {"gateways": ("[::1]:8081",)},
        {"api_keys": (ApiKey(client="a", key="secret-123"),), "rate_limit": RateLimit(burst=1, refill=1)},
        {"cors_origins": ("*",), "otlp_endpoint": "127.0.0.1:4317", "access_log": "/dev/stdout"},
    ],
)
def test_envoy_accepts_the_configuration(tmp_path, values):
    """Envoy's own check passes for every kind of setting."""
    file = tmp_path / "envoy.json"
    write_config(render(EdgeSettings(**values)), file)
    validate(file)


def test_check_says_what_is_wrong(tmp_path):
    """A configuration with a misspelt key is refused with Envoy's words."""
    file = tmp_path / "envoy.json"
    write_config({**render(EdgeSettings()), "admn": {}}, file)
    with pytest.raises(InvalidConfig, match="admn"):
        validate(file)


def test_command_renders_and_validates(tmp_path, capsys):
    """`quire-envoy render` writes a file or prints, `validate` has Envoy check it."""
    out = tmp_path / "envoy.json"
    assert main(["render", "--port", "18080", "--out", str(out)]) == 0
    assert main(["render", "--port", "18080"]) == 0
    assert json.loads(out.read_text()) == json.loads(capsys.readouterr().out)
    assert main(["validate", "--gateway", "127.0.0.1:18081", "--gateway", "127.0.0.1:18082"]) == 0
    assert "is valid" in capsys.readouterr().out


def test_command_refuses_bad_settings(capsys):
    """A bad flag ends with code 2 and one message."""
    assert main(["render", "--admin", "0.0.0.0:1"]) == 2
    assert "loopback" in capsys.readouterr().err


def test_import_is_light():
    """Importing the package loads neither protobuf, grpc, YAML, the binary's package nor an HTTP client."""
    heavy = ("google.protobuf", "grpc", "yaml", "envoy", "urllib.request", "http.client")
    code = f"import sys, quire_envoy; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
