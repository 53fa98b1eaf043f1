"""Finds an attention backend by name: built in, or from the entry-point group `quire.attention`.

An entry loads a class without constructor arguments that fulfils AttentionBackend.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Final

from quire_worker.attention.base import AttentionBackend
from quire_worker.attention.torch_backend import TorchAttention

ENTRY_POINT_GROUP: Final = "quire.attention"


def create_attention(name: str) -> AttentionBackend:
    """A backend by name. ValueError lists the names that exist."""
    if name == "torch":
        return TorchAttention()
    plugins = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in plugins:
        raise ValueError(f"attention backend {name!r} is none of {sorted({'torch', *plugins})}")
    backend: AttentionBackend = plugins[name].load()()
    return backend
