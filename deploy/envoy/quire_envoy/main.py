"""The `quire-envoy` command: render, validate or run the edge. Wiring only."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from quire_envoy.config import render
from quire_envoy.process import InvalidConfig, command, drain, validate, write_config
from quire_envoy.settings import EdgeSettings, load_settings


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit code is 0, or 2 for settings that cannot be used."""
    flags = _parser().parse_args(arguments)
    overrides = {
        name: getattr(flags, name) for name in ("host", "port", "admin", "gateways", "api_keys_file")
    }
    try:
        settings = load_settings(flags.config, overrides)
        return int(flags.action(settings, flags))
    except (ValueError, OSError) as error:
        print(f"quire-envoy: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="quire-envoy", description="Quire's edge.")
    actions = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, action, text in (
        ("render", _render, "write Envoy's configuration as JSON"),
        ("validate", _validate, "check the configuration with Envoy itself"),
        ("run", _run, "run Envoy in the foreground; SIGTERM drains it"),
    ):
        sub = actions.add_parser(name, help=text)
        sub.set_defaults(action=action)
        sub.add_argument("--config", type=Path, help="YAML file of settings (see EdgeSettings)")
        sub.add_argument("--host", help="address that clients connect to")
        sub.add_argument("--port", type=int, help="port that clients connect to")
        sub.add_argument("--admin", help="loopback host:port of Envoy's own interface")
        sub.add_argument(
            "--gateway", dest="gateways", action="append", help="host:port of a gateway; repeatable"
        )
        sub.add_argument("--api-keys-file", type=Path, help="file with one `client key` pair a line")
        if name == "render":
            sub.add_argument("--out", type=Path, help="the file to write; standard output if left out")
    return parser


def _render(settings: EdgeSettings, flags: argparse.Namespace) -> int:
    config = render(settings)
    if flags.out is None:
        print(json.dumps(config, indent=1))
    else:
        write_config(config, flags.out)
    return 0


def _validate(settings: EdgeSettings, flags: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="quire-envoy-") as folder:
        config = Path(folder) / "envoy.json"
        write_config(render(settings), config)
        try:
            validate(config)
        except InvalidConfig as error:
            print(error, file=sys.stderr)
            return 1
    print("quire-envoy: the configuration is valid")
    return 0


def _run(settings: EdgeSettings, flags: argparse.Namespace) -> int:
    """Run until Envoy ends. The first SIGTERM or SIGINT drains, a second one ends it at once."""
    with tempfile.TemporaryDirectory(prefix="quire-envoy-") as folder:
        config = Path(folder) / "envoy.json"
        write_config(render(settings), config)
        # A group of its own: Ctrl-C of the terminal must not reach Envoy before the drain.
        process = subprocess.Popen(command(settings, config), start_new_session=True)
        stopping = False

        def stop(signal_number: int, frame: object) -> None:
            nonlocal stopping
            if stopping:
                process.kill()
                return
            stopping = True
            raise KeyboardInterrupt

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        try:
            return process.wait()
        except KeyboardInterrupt:
            return _stop(settings, process)


def _stop(settings: EdgeSettings, process: subprocess.Popen[bytes]) -> int:
    try:
        left = drain(settings)
        if left:
            print(f"quire-envoy: {left} requests cut after {settings.drain_timeout_s} s", file=sys.stderr)
    finally:
        process.terminate()
        process.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
