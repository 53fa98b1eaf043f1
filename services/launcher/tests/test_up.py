"""The course of `quire up`, `down` and `status`, with small programs in the services' place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quire_launcher import detach, plan, readiness
from quire_launcher.down import stop_suite
from quire_launcher.layout import StateFolder
from quire_launcher.logs import show_logs
from quire_launcher.options import UpOptions
from quire_launcher.status import show_status

PORT = 23060

#: Runs a suite whose processes are small programs, ready when they have said hello.
LAUNCHER = """
import asyncio, json, sys
from quire_launcher import plan, up
from quire_launcher.child import Command
from quire_launcher.layout import StateFolder
from quire_launcher.options import UpOptions
from quire_launcher.supervisor import Spec

programs = json.loads(sys.argv[1])

def spec(name):
    async def until_said():
        log = StateFolder.create({port}).logs / f"{{name}}.log"
        while not log.exists() or "hello" not in log.read_text():
            await asyncio.sleep(0.01)

    return Spec(Command(name, [sys.executable, "-c", programs[name]]), until_said, stop_timeout_s=5)

plan.services = lambda options, folder: [spec(name) for name in programs if name != "envoy"]
plan.edge = lambda options, folder: spec("envoy")
sys.exit(up.run_suite(UpOptions(port={port}), show_services=True))
"""

STEADY = "import time; print('hello', flush=True); time.sleep(600)"


def start(programs: dict[str, str]) -> subprocess.Popen:
    code = LAUNCHER.format(port=PORT)
    return subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(programs)], stderr=subprocess.PIPE, text=True
    )


def until_said(launcher: subprocess.Popen, text: str) -> list[str]:
    lines = []
    watchdog = threading.Timer(30, launcher.kill)
    watchdog.start()
    try:
        for line in launcher.stderr:
            lines.append(line)
            if text in line:
                return lines
    finally:
        watchdog.cancel()
    raise AssertionError("".join(lines))


@pytest.fixture
def suite():
    """A running suite of small programs."""
    launcher = start({"worker": STEADY, "gateway": STEADY, "envoy": STEADY})
    until_said(launcher, "ready in")
    yield launcher
    launcher.kill()
    launcher.communicate()


def test_down_stops_what_up_started(suite, capsys):
    """`down` ends every process, returns when they have ended, and can be said again."""
    state = StateFolder.find(PORT).read()
    pids = [process["pid"] for process in state["processes"].values()]
    assert len(pids) == 3
    assert stop_suite(PORT, timeout_s=20, now=False) == 0
    assert suite.wait(10) == 0
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert stop_suite(PORT, timeout_s=20, now=False) == 0
    shown = capsys.readouterr().err
    assert f"stopped the suite on port {PORT}" in shown
    assert f"no suite runs on port {PORT}" in shown


def test_ctrl_c_stops_in_order(suite):
    """An interrupt of the launcher is an orderly stop with status 0."""
    suite.send_signal(signal.SIGINT)
    until_said(suite, "stopped")
    assert suite.wait(10) == 0


def test_lines_carry_the_name_of_who_said_them():
    """The services' lines are shown with a prefix."""
    launcher = start({"worker": STEADY, "envoy": STEADY})
    lines = until_said(launcher, "ready in")
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=20)
    assert any(line.strip() == "worker | hello" for line in lines)


def test_a_failing_service_fails_the_start_with_the_reason_and_its_lines():
    """The launcher exits non-zero, names the process and shows what it said last; nothing is left running."""
    bad = "print('weights: file is cut short', flush=True); raise SystemExit(1)"
    launcher = start({"worker": bad, "gateway": STEADY, "envoy": STEADY.replace("hello", "")})
    _, shown = launcher.communicate(timeout=30)
    assert launcher.returncode == 1
    assert "failed: worker exited with status 1 before it was ready" in shown
    assert "    weights: file is cut short" in shown
    assert not StateFolder.find(PORT).is_running()


def test_logs_are_kept_after_the_end(suite, capsys):
    """`quire logs` shows what a suite said, also when it has ended."""
    suite.send_signal(signal.SIGTERM)
    suite.communicate(timeout=20)
    assert show_logs(PORT, names=["worker"], lines=10, follow=False) == 0
    assert "worker | hello" in capsys.readouterr().out
    assert show_logs(PORT, names=["wroker"], lines=10, follow=False) == 1
    assert "wroker" in capsys.readouterr().err


def test_status_of_nothing(capsys):
    """Where nothing runs, `status --json` says so in the same form, and exits with status 3."""
    assert show_status(PORT + 1, as_json=True) == 3
    status = json.loads(capsys.readouterr().out)
    assert (status["running"], status["healthy"]) == (False, False)
    assert {entry["health"] for entry in status["services"].values()} == {"down"}


def test_status_of_a_suite_names_processes_and_health(suite, capsys):
    """`status --json` has an entry a service with its health, process id and restarts."""
    assert show_status(PORT, as_json=True) == 1  # the small programs serve nothing
    status = json.loads(capsys.readouterr().out)
    assert status["running"]
    assert status["services"]["worker"]["pid"] == StateFolder.find(PORT).read()["processes"]["worker"]["pid"]
    assert status["services"]["worker"]["restarts"] == 0
    assert status["envoy"]["health"] == "down"


def test_detached_start_reports_a_refusal(capfd):
    """`up --detach` fails with the reason when the launcher in the background cannot start."""
    arguments = ["up", "--model", "no-such-model", "--port", str(PORT)]
    assert detach.start_detached(UpOptions(port=PORT), arguments) == 1
    assert "no-such-model" in capfd.readouterr().err


def test_detached_start_reports_a_launcher_that_dies(capfd):
    """`up --detach` fails when the launcher ends without a word, and shows its log."""
    assert detach.start_detached(UpOptions(port=PORT), ["no-such-command"]) == 1
    shown = capfd.readouterr().err
    assert "ended without a word" in shown
    assert "no-such-command" in shown


def test_plan_starts_the_slowest_first_and_passes_the_model_to_both(tmp_path):
    """Worker and tokenizer get the same absolute path; the worker is first."""
    options = UpOptions(port=PORT, device="cpu", sections={"scheduler": {"max_num_seqs": 8}})
    specs = {
        spec.command.name: list(spec.command.arguments)
        for spec in plan.services(options, StateFolder(tmp_path))
    }
    assert next(iter(specs)) == "worker"
    assert set(specs) == {"worker", "tokenizer", "scheduler", "gateway"}
    path = specs["worker"][specs["worker"].index("--model") + 1]
    assert path == specs["tokenizer"][specs["tokenizer"].index("--model") + 1]
    assert specs["worker"][specs["worker"].index("--device") + 1] == "cpu"
    config = specs["scheduler"][specs["scheduler"].index("--config") + 1]
    assert "max_num_seqs: 8" in Path(config).read_text()


def test_plan_of_a_simulated_suite(tmp_path):
    """--simulate runs the worker that needs no model files, with the step time given."""
    options = UpOptions(port=PORT, simulate=True, step_ms=10)
    (worker, *_) = plan.services(options, StateFolder(tmp_path))
    assert worker.command.arguments[0].endswith("quire-worker-sim")
    assert worker.command.arguments[worker.command.arguments.index("--step-base-ms") + 1] == "10"


def test_edge_gets_the_suites_ports_and_its_section():
    """Envoy's settings are the config file's section, on this suite's ports."""
    options = UpOptions(port=PORT, host="0.0.0.0", sections={"envoy": {"concurrency": 2}})
    settings = plan.edge_settings(options)
    assert (settings.port, settings.host, settings.concurrency) == (PORT, "0.0.0.0", 2)
    assert settings.gateways == (f"127.0.0.1:{PORT + 1}",)
    assert settings.admin == f"127.0.0.1:{PORT + 5}"
    assert settings.health_service == "quire.inference.v1.Inference"


def test_unknown_program_is_named():
    """A service that is not installed is an error with its name."""
    with pytest.raises(ValueError, match="quire-nothing"):
        plan.executable("quire-nothing")


@pytest.mark.parametrize("arguments", [["up", "--port", "65535"], ["up", "--config", "/no/such/file.yaml"]])
def test_bad_options_are_refused_by_the_command(arguments):
    """Options that cannot work end the command with its usage status and the reason."""
    from quire_launcher.main import app

    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2


async def test_http_status_of_nobody_is_none():
    """A port where nothing listens has no status."""
    started = time.monotonic()
    assert await readiness.http_status("127.0.0.1:1", "/health") is None
    assert time.monotonic() - started < 30
