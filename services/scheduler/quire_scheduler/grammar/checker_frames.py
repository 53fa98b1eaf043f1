"""What crosses between the scheduler and the processes that try constraints: four bytes of length, then a pickle."""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass

from quire_scheduler.grammar.vocabulary import Vocabulary

HEADER = struct.Struct(">I")
# Of the threads that compile, on both sides.
STACK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Setup:
    """What the compiler needs to know of the tokenizer and the model."""

    vocabulary: Vocabulary
    vocab_size: int
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Checked:
    """grammar: what compiled. Empty: `message` says why nothing did."""

    grammar: str = ""
    message: str = ""


def frame(value: object) -> bytes:
    """A value as a frame."""
    data = pickle.dumps(value)
    return HEADER.pack(len(data)) + data
