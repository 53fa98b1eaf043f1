"""Maps `tokenizer.ggml.pre` names to pre-tokenizers, explicitly.

A GGUF file stores its pre-tokenizer only as a name. A wrong guess still encodes every text, but into other tokens than
the model was trained on, so a name that is not in this table is refused. The patterns are those of the models'
published `tokenizer.json` files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tokenizers import Regex, normalizers, pre_tokenizers

from quire_tokenizer.errors import ModelFormatError

CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN: Final = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + TAIL
QWEN2_PATTERN: Final = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + TAIL


@dataclass(frozen=True, slots=True)
class PreTokenizerSpec:
    """What a `tokenizer.ggml.pre` name stands for.

    `ignore_merges`: a word that is a token as a whole is that token, whatever its merges say (Llama 3).
    `adds_bos`: whether the BOS token leads a text when the file itself says nothing about it.
    """

    build: Callable[[], pre_tokenizers.PreTokenizer]
    normalizer: Callable[[], normalizers.Normalizer] | None = None
    ignore_merges: bool = False
    adds_bos: bool = False


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits_then_gpt2() -> pre_tokenizers.PreTokenizer:
    # The digits come first: the GPT-2 pattern alone would keep "2024" together and look up a token that the model
    # never saw in training.
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split_by(pattern: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    def build() -> pre_tokenizers.PreTokenizer:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        return pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )

    return build


GPT2: Final = PreTokenizerSpec(_gpt2)
SINGLE_DIGITS: Final = PreTokenizerSpec(_single_digits_then_gpt2)
LLAMA3: Final = PreTokenizerSpec(_split_by(LLAMA3_PATTERN), ignore_merges=True, adds_bos=True)
QWEN2: Final = PreTokenizerSpec(_split_by(QWEN2_PATTERN), normalizer=normalizers.NFC)

PRE_TOKENIZERS: Final[dict[str, PreTokenizerSpec]] = {
    "gpt-2": GPT2,
    "phi-2": GPT2,
    "smollm": SINGLE_DIGITS,
    "starcoder": SINGLE_DIGITS,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "qwen2": QWEN2,
}


def pre_tokenizer_spec(name: str | None) -> PreTokenizerSpec:
    """Return what `name` stands for; raise ModelFormatError, naming it, when it is not known."""
    if name is None:
        raise ModelFormatError("the GGUF file has no tokenizer.ggml.pre, so its pre-tokenizer is not known")
    spec = PRE_TOKENIZERS.get(name)
    if spec is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise ModelFormatError(f"tokenizer.ggml.pre is {name!r}, which is not known; known are: {known}")
    return spec
