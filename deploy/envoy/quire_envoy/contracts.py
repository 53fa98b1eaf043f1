"""What the edge publishes of the contracts: services, and the HTTP routes that their google.api.http rules name.

One job: read the descriptor set. It knows no configuration language of Envoy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

# Services for clients. Everything else (scheduler, tokenizer, worker, admin) stays inside: no route leads to it.
PUBLIC_SERVICES = (
    "quire.inference.v1.Inference",
    "quire.openai.v1.OpenAI",
    "quire.openai.v1.Responses",
    "quire.openai.v1.Files",
    "quire.openai.v1.Batches",
    "quire.anthropic.v1.Anthropic",
    "quire.management.v1.Management",
)
# Served by the gateway for clients as well, gRPC only.
HEALTH_SERVICE = "grpc.health.v1.Health"
REFLECTION_SERVICES = (
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)

_VERBS = ("get", "put", "post", "delete", "patch")


@dataclass(frozen=True)
class RestPath:
    """One path of the REST surface, with every method that some RPC gives it."""

    # The template of the contract, for example /v1/models/{model=**}.
    template: str
    # Upper case, sorted.
    methods: tuple[str, ...]

    @property
    def is_literal(self) -> bool:
        """Whether the template has no variables, so that it is the path itself."""
        return not re.search(r"[{*]", self.template)

    @property
    def regex(self) -> str:
        """A regular expression for the whole path (RE2)."""
        return "".join(_segments(self.template))


def descriptors_path() -> Path:
    """The descriptor set that is installed with the contracts."""
    import importlib.resources

    path = Path(str(importlib.resources.files("quire") / "descriptors.binpb"))
    if not path.is_file():
        raise FileNotFoundError(f"{path}: the contracts are not built (make protos)")
    return path


def load_descriptors() -> FileDescriptorSet:
    """The installed descriptor set, with the http annotations known."""
    # Registers the option that carries the rules; without it they stay unknown fields.
    from google.api import annotations_pb2  # noqa: F401
    from google.protobuf import descriptor_pb2

    return descriptor_pb2.FileDescriptorSet.FromString(descriptors_path().read_bytes())


def rest_paths(descriptors: FileDescriptorSet) -> list[RestPath]:
    """The REST surface of the public services: literal paths first, then templates, each sorted.

    Raises LookupError when a public service is missing from the set.
    """
    methods: dict[str, set[str]] = {}
    found = set()
    for file in descriptors.file:
        for service in file.service:
            name = f"{file.package}.{service.name}"
            if name in PUBLIC_SERVICES:
                found.add(name)
                for template, verb in _rules(service):
                    methods.setdefault(template, set()).add(verb)
    missing = set(PUBLIC_SERVICES) - found
    if missing:
        raise LookupError(f"the descriptor set lacks {', '.join(sorted(missing))}")
    paths = [RestPath(template, tuple(sorted(verbs))) for template, verbs in methods.items()]
    return sorted(paths, key=lambda path: (not path.is_literal, path.template))


def _rules(service: Any) -> Iterator[tuple[str, str]]:
    """(template, method) of each http rule of a service, additional bindings included."""
    from google.api import annotations_pb2

    for method in service.method:
        if not method.options.HasExtension(annotations_pb2.http):
            continue
        rule = method.options.Extensions[annotations_pb2.http]
        for binding in (rule, *rule.additional_bindings):
            pattern = binding.WhichOneof("pattern")
            if pattern in _VERBS:
                yield getattr(binding, pattern), pattern.upper()
            elif pattern == "custom":
                yield binding.custom.path, binding.custom.kind.upper()


def _segments(template: str) -> Iterator[str]:
    """Pieces of a template as regular expressions: `{a=**}` any rest, `{a}` and `*` one segment, else literal."""
    for piece in re.split(r"(\{[^}]*\}|\*\*|\*)", template):
        if piece.startswith("{"):
            pattern = piece[1:-1].partition("=")[2] or "*"
            yield from _segments(pattern)
        elif piece == "**":
            yield ".+"
        elif piece == "*":
            yield "[^/]+"
        else:
            yield re.escape(piece)
