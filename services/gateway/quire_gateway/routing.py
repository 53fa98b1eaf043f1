"""Chooses the engine for a request.

One job: weigh prefix affinity against load. The engine whose prefix cache likely holds the prompt's first blocks is
preferred: rendezvous hashing over those blocks, so that every gateway chooses alike and nothing is remembered. Load
overrules it. Pure arithmetic: knows no connection.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replica:
    """What the choice needs to know of one engine."""

    address: str
    #: Sequences waiting and running there, by its last frame.
    num_reported: int
    #: Sequences that this gateway has submitted there and that have not ended; those of a moment ago are among them.
    num_dispatched: int
    #: Share of its KV blocks that running sequences hold, 0 to 1.
    block_pressure: float

    @property
    def load(self) -> int:
        """The larger view: the report lags behind our own dispatches, and doesn't lack other gateways'."""
        return max(self.num_reported, self.num_dispatched)


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """Limits of affinity."""

    #: Leading blocks of a prompt that decide its affinity.
    num_affinity_blocks: int = 4
    #: The preferred engine may have this many sequences more than the least loaded one.
    max_load_gap: int = 8
    #: ... or this multiple of its load, whichever is more.
    max_load_ratio: float = 1.5
    #: An engine above this pressure is preferred no longer.
    max_block_pressure: float = 0.9


def affinity_key(token_ids: Sequence[int], block_size: int, cache_salt: str, num_blocks: int) -> bytes | None:
    """What prompts that can share their first blocks have in common; None if the prompt fills no block."""
    num_tokens = min(len(token_ids) // block_size, num_blocks) * block_size
    if num_tokens == 0:
        return None
    digest = hashlib.blake2b(cache_salt.encode(), digest_size=16)
    digest.update(array("I", token_ids[:num_tokens]).tobytes())
    return digest.digest()


def session_key(session_id: str) -> bytes | None:
    """What all requests of a session have in common; None without one."""
    return (
        hashlib.blake2b(b"session\0" + session_id.encode(), digest_size=16).digest() if session_id else None
    )


def choose(
    replicas: Sequence[Replica],
    key: bytes | None,
    exclude: Collection[str] = (),
    policy: RoutingPolicy | None = None,
) -> str | None:
    """The address to submit to, or None if none is left. Never one of `exclude`."""
    rules = policy or RoutingPolicy()
    candidates = [replica for replica in replicas if replica.address not in exclude]
    if not candidates:
        return None
    idlest = min(candidates, key=lambda replica: (_cost(replica, rules), replica.address))
    if key is None:
        return idlest.address
    preferred = max(candidates, key=lambda replica: _weight(key, replica.address))
    limit = max(idlest.load + rules.max_load_gap, idlest.load * rules.max_load_ratio)
    is_pressed = preferred.block_pressure > rules.max_block_pressure > idlest.block_pressure
    return idlest.address if preferred.load > limit or is_pressed else preferred.address


def _cost(replica: Replica, rules: RoutingPolicy) -> tuple[bool, int, float]:
    return (replica.block_pressure > rules.max_block_pressure, replica.load, replica.block_pressure)


def _weight(key: bytes, address: str) -> bytes:
    return hashlib.blake2b(key + address.encode(), digest_size=8).digest()
