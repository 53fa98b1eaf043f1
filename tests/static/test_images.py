"""The container files, read without a container engine: paths, packages and flags that they name exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = sorted((ROOT / "deploy/docker").glob("*.Dockerfile"))
COMPOSE = ROOT / "deploy/compose.yaml"
SERVICES = {"envoy", "gateway", "tokenizer", "scheduler", "worker"}


def test_every_service_has_an_image():
    """There is one Dockerfile for each service and the edge."""
    assert {path.name.removesuffix(".Dockerfile") for path in DOCKERFILES} == SERVICES


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_what_an_image_copies_exists(path):
    """Every COPY of a Dockerfile names files of the repository, and no service but its own."""
    service = path.name.removesuffix(".Dockerfile")
    copied = re.findall(r"^COPY (\S+) ", path.read_text(), flags=re.MULTILINE)
    assert [source for source in copied if not (ROOT / source).exists()] == []
    others = {f"services/{name}" for name in SERVICES - {service}}
    assert others.isdisjoint(copied)
    assert not {"gateway", "scheduler", "tokenizer", "envoy"} & {service} or "kernels" not in copied


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_an_image_runs_its_service_without_root(path):
    """The entry point is the service's own program, and it does not run as root."""
    service = path.name.removesuffix(".Dockerfile")
    text = path.read_text()
    assert f'ENTRYPOINT ["quire-{service}"]' in text
    assert re.search(r"^USER quire$", text, flags=re.MULTILINE)


def test_compose_file_is_whole():
    """The compose file has every service, and each builds from a Dockerfile that exists."""
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    assert set(services) == SERVICES
    for service in services.values():
        assert (ROOT / service["build"]["dockerfile"]).is_file()
        assert set(service.get("depends_on", [])) <= SERVICES


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_compose_flags_exist(name):
    """Every flag that the compose file gives is one that the program knows."""
    command = yaml.safe_load(COMPOSE.read_text())["services"][name]["command"]
    program = Path(sys.executable).with_name(f"quire-{name}")
    action = ["run"] if name == "envoy" else []
    known = subprocess.run([program, *action, "--help"], capture_output=True, text=True, check=True).stdout
    flags = [word for word in command if word.startswith("--")]
    assert flags
    assert [flag for flag in flags if not re.search(rf"{flag}\b", known)] == []
