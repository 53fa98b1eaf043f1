"""What the simulated worker can be told."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode

from quire_servicekit.settings import ServiceSettings
from quire_worker.simulated.executor import LatencyModel, SimulatedModel
from quire_worker.simulated.runner import TokenRange


def _split(value: object) -> object:
    return [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value


#: Token ids that flags and environment write with commas.
TokenIds = Annotated[tuple[int, ...], NoDecode, BeforeValidator(_split)]


class SimulatedWorkerSettings(ServiceSettings):
    """A worker without a model: the real contract behind a latency model and deterministic tokens."""

    service: ClassVar[str] = "worker"

    listen: str = Field("127.0.0.1:8084", description="Address of the gRPC server: host:port or unix:/path.")
    model: str = Field(
        "simulated", description="Accepted for the real worker's sake; only shown, never opened."
    )
    served_model_name: str = Field("simulated", description="Name that clients use.")
    vocab_size: int = Field(49152, ge=1, description="Entries of the vocabulary.")
    eos_token_ids: TokenIds = Field((2,), description="Ids that end a sequence.")
    first_token_id: int = Field(1000, ge=0, description="Smallest id that is sampled.")
    num_token_ids: int = Field(8000, ge=1, description="How many ids from there on are sampled.")
    eos_after_tokens: int = Field(0, ge=0, description="End every sequence after this many tokens; 0: never.")
    max_model_len: int = Field(8192, ge=2, description="Longest sequence, tokens.")
    embedding_size: int = Field(64, ge=0, description="Values of an embedding; 0: it makes none.")
    num_blocks: int = Field(16384, ge=2, description="Blocks of the pool, null block included.")
    load_s: float = Field(0.0, ge=0, description="Seconds that the load takes.")
    step_base_ms: float = Field(
        0.0, ge=0, description="Milliseconds of every step; all three 0: no waiting at all."
    )
    prefill_token_ms: float = Field(0.0, ge=0, description="Milliseconds per prefill token of a step.")
    decode_sequence_ms: float = Field(0.0, ge=0, description="Milliseconds per decoding sequence of a step.")

    @model_validator(mode="after")
    def _check_tokens(self) -> SimulatedWorkerSettings:
        end = self.first_token_id + self.num_token_ids
        if end > self.vocab_size:
            raise ValueError(
                f"first_token_id + num_token_ids must be at most vocab_size {self.vocab_size}, got {end}"
            )
        sampled = [i for i in self.eos_token_ids if self.first_token_id <= i < end]
        if sampled:
            raise ValueError(f"eos_token_ids must not be in the range of sampled ids, got {sampled}")
        return self

    def simulated_model(self) -> SimulatedModel:
        """The settings as the executor takes them."""
        return SimulatedModel(
            served_model_name=self.served_model_name,
            vocab_size=self.vocab_size,
            eos_token_ids=self.eos_token_ids,
            max_model_len=self.max_model_len,
            num_blocks=self.num_blocks,
            embedding_size=self.embedding_size,
            load_s=self.load_s,
            latency=LatencyModel(self.step_base_ms, self.prefill_token_ms, self.decode_sequence_ms),
            tokens=TokenRange(
                self.first_token_id,
                self.num_token_ids,
                self.eos_token_ids[0] if self.eos_token_ids else 0,
                self.eos_after_tokens,
            ),
        )
