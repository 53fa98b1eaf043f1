"""What the gateway knows of a served model. Plain data; wire.py makes it from the contract's ModelInfo."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from quire_gateway.sampling import Sampling


class ModelTask(enum.Enum):
    """What a model can be asked for; the value is the word for clients."""

    GENERATE = "generate"
    EMBED = "embed"
    CLASSIFY = "classify"
    SCORE = "score"


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
    tasks: frozenset[ModelTask] = frozenset({ModelTask.GENERATE})
    #: Values of an embedding; 0 if it makes none.
    embedding_size: int = 0
    #: Names of a classifier's classes by index.
    labels: tuple[str, ...] = ()
    #: Its engines' tokenizer, as the settings name it; empty: the one that all engines without their own share.
    vocabulary: str = ""

    @property
    def system_fingerprint(self) -> str:
        """Short name of the exact model, for responses."""
        return f"fp_{self.fingerprint[:10]}"

    def inability(self, task: ModelTask) -> str:
        """Why the model can't be asked for that, as a sentence for the client; empty if it can."""
        if task in self.tasks:
            return ""
        able = ", ".join(sorted(known.value for known in self.tasks))
        return f"The model `{self.id}` does not support the task {task.value}; it supports: {able}"
