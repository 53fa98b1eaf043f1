"""One hash that says whether two processes turn text into the same token ids and back.

It covers the token strings, which ids are special, the merges, the chat template, and the ids of a few probe texts:
the probes see what the tables do not, above all a different pre-tokenizer. It reads nothing that only one of the file
formats has (padding rows, for one), so a folder and a GGUF file of the same model agree if their contents do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Final

from tokenizers import Tokenizer

from quire_tokenizer.vocabulary import Vocabulary

PROBES: Final = (
    "Hello world, it's 2024: I'VE got 12345 apples!",
    "  leading\t\ttabs\r\n\n  and   trailing  ",
    "na\u00efve caf\u00e9 e\u0301 \u4e2d\u6587\u5b57\u7b26 \u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f \u00bd \u2167 \u0663",
    "def f(x):\n        return x**2  # snake_case camelCase\n",
)


def fingerprint(backend: Tokenizer, vocabulary: Vocabulary, merges: Iterable[str], chat_template: str) -> str:
    """Return the SHA-256 hex digest. `merges` are pairs joined by one space, in order of priority."""
    digest = hashlib.sha256(b"quire tokenizer fingerprint 1\n")
    special = vocabulary.special
    parts: tuple[tuple[str, list[str]], ...] = (
        ("tokens", vocabulary.tokens[: vocabulary.num_named]),
        ("special", [str(token_id) for token_id in sorted(vocabulary.special_ids)]),
        ("ends", [str(special.bos_id), *(str(token_id) for token_id in sorted(special.eos_ids))]),
        ("merges", list(merges)),
        ("template", [chat_template]),
        ("probes", [json.dumps(encoding.ids) for encoding in backend.encode_batch_fast(list(PROBES))]),
    )
    for name, strings in parts:
        # Count and lengths are hashed too, so that no two different tables run together into the same bytes.
        lengths = ",".join(map(str, map(len, strings)))
        digest.update(f"{name}:{len(strings)}:{lengths}:".encode())
        digest.update("".join(strings).encode())
    return digest.hexdigest()
