"""Typed settings of a service, read once at start.

One job: flags over environment over one YAML file over defaults, with unknown keys and bad values refused by name. It
knows no service: each has a subclass of ServiceSettings in its own settings.py. Constructing a settings object reads
nothing but its arguments, so that tests and other modules can never pick up the machine's environment; only `load`
reads, and only `main.py` calls it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self

import yaml
from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

NESTED_DELIMITER = "__"


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


#: A list that flags and environment write with commas: `--workers 127.0.0.1:9004,127.0.0.1:9104`.
CommaList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]


class SettingsError(ValueError):
    """Settings that cannot be used; the message names every key, its value and where it came from."""


class ServiceSettings(BaseSettings):
    """What every service can be told. A subclass names its service and adds its own fields, all with descriptions."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_nested_delimiter=NESTED_DELIMITER, protected_namespaces=()
    )

    #: The service's word in `QUIRE_<SERVICE>_<FIELD>`, its logs and its metrics.
    service: ClassVar[str] = "service"

    config: Path | None = Field(
        None, description="YAML file with settings, overridden by environment and flags."
    )
    listen: str = Field("127.0.0.1:0", description="Address of the gRPC server: host:port or unix:/path.")
    metrics_listen: str | None = Field(
        None, description="host:port for Prometheus metrics; unset: no metrics server."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level that is logged."
    )
    log_format: Literal["auto", "console", "json"] = Field(
        "auto",
        description="console for people, json for machines; auto: console on a terminal, json elsewhere.",
    )
    drain_timeout_s: float = Field(
        30.0, ge=0, description="Longest time in seconds to finish running requests after SIGTERM."
    )
    max_message_bytes: int = Field(
        64 << 20, ge=1 << 10, description="Largest gRPC message accepted, in bytes."
    )
    max_connection_age_s: float | None = Field(
        None,
        gt=0,
        description="Close connections after about this many seconds, so that clients see new replicas.",
    )
    otlp_endpoint: str | None = Field(
        None, description="OTLP gRPC endpoint for traces, for instance host:4317."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Constructing reads its arguments only; see `load`."""
        return (init_settings,)

    @classmethod
    def env_prefix(cls) -> str:
        """The start of the names of this service's environment variables: QUIRE_GATEWAY_."""
        return f"QUIRE_{cls.service.upper()}_"

    @classmethod
    def load(cls, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Self:
        """Read flags `argv`, then the environment, then the YAML file they name, then defaults.

        Raises SettingsError for an unknown environment variable with our prefix, an unknown key in the file, or a bad
        value. Unknown flags and --help end the process, as argparse does.
        """
        environ = os.environ if environ is None else environ
        flags = _read_flags(cls, argv)
        variables = _read_environment(cls, environ)
        path = flags.get("config") or variables.get("config")
        file = _read_file(Path(path)) if path else {}
        try:
            return cls(**_merge(file, variables, flags))
        except ValidationError as error:
            origins = {"flag": flags, "environment": variables, f"file {path}": file}
            raise SettingsError(_explain(error, origins)) from error

    @classmethod
    def load_or_exit(cls, argv: Sequence[str] | None = None) -> Self:
        """`load`, but print what is wrong and exit with status 2 instead of raising: for main.py."""
        try:
            return cls.load(sys.argv[1:] if argv is None else argv)
        except SettingsError as error:
            _exit(f"quire-{cls.service}: {error}")


def _exit(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    raise SystemExit(2)


def _read_flags(cls: type[ServiceSettings], argv: Sequence[str]) -> dict[str, Any]:
    # No abbreviations: --max-num would change its meaning when a second such flag is added.
    parser = argparse.ArgumentParser(prog=f"quire-{cls.service}", description=cls.__doc__, allow_abbrev=False)
    source: CliSettingsSource[Any] = CliSettingsSource(
        cls,
        cli_parse_args=list(argv),
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_avoid_json=True,
        root_parser=parser,
        parse_args_method=argparse.ArgumentParser.parse_args,
    )
    return source()


def _read_environment(cls: type[ServiceSettings], environ: Mapping[str, str]) -> dict[str, Any]:
    prefix = cls.env_prefix()
    for name in environ:
        field = name.removeprefix(prefix).split(NESTED_DELIMITER)[0].lower()
        if name.startswith(prefix) and field not in cls.model_fields:
            raise SettingsError(f"unknown setting {field!r} (environment variable {name})")
    source = EnvSettingsSource(cls, env_prefix=prefix)
    source.env_vars = {name.lower(): value for name, value in environ.items() if name.startswith(prefix)}
    return source()


def _read_file(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise SettingsError(f"config: cannot read {path}: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"config: {path} holds a {type(content).__name__}, expected keys and values")
    return {str(key): value for key, value in content.items()}


def _merge(*sources: Mapping[str, Any]) -> dict[str, Any]:
    """Later sources win, key by key, also inside nested groups."""
    merged: dict[str, Any] = {}
    for source in sources:
        for key, value in source.items():
            old = merged.get(key)
            nested = isinstance(old, Mapping) and isinstance(value, Mapping)
            merged[key] = _merge(old, value) if nested else value  # type: ignore[arg-type]
    return merged


def _explain(error: ValidationError, origins: Mapping[str, Mapping[str, Any]]) -> str:
    return "; ".join(_explain_one(detail, origins) for detail in error.errors(include_url=False))


def _explain_one(detail: Any, origins: Mapping[str, Mapping[str, Any]]) -> str:
    name = ".".join(str(part) for part in detail["loc"]) or "settings"
    # Flags come first in `origins`: the strongest source that has the key is the one whose value was used.
    origin = next((where for where, values in origins.items() if _has(values, detail["loc"])), None)
    place = f" (from {origin})" if origin else ""
    if detail["type"] == "extra_forbidden":
        return f"unknown setting {name!r}{place}"
    return f"{name}: {detail['msg']}, got {detail['input']!r}{place}"


def _has(values: Mapping[str, Any], location: tuple[Any, ...]) -> bool:
    node: Any = values
    for part in location:
        if not isinstance(node, Mapping) or part not in node:
            return node is not values and not isinstance(node, Mapping)
        node = node[part]
    return True
