"""What the gateway knows of a served model. Plain data; wire.py makes it from the contract's ModelInfo."""

from __future__ import annotations

from dataclasses import dataclass

from quire_gateway.sampling import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that at least one connected engine serves."""

    id: str
    #: Longest prompt plus output, tokens: the smallest of its engines' limits.
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    default_sampling: Sampling
    created_unix_s: int
    fingerprint: str

    @property
    def system_fingerprint(self) -> str:
        """Short name of the exact model, for responses."""
        return f"fp_{self.fingerprint[:10]}"
