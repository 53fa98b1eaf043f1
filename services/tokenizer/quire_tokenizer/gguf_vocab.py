"""A tokenizer from the metadata of a GGUF file.

Two of llama.cpp's vocabulary kinds are served: `gpt2` (byte-level BPE with merges) and `llama` (SentencePiece BPE with
scores). Another kind is refused by its name: encoding a text in the wrong way gives tokens, only not the model's.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from quire_tokenizer.errors import ModelFormatError
from quire_tokenizer.gguf_metadata import read_metadata
from quire_tokenizer.pre_tokenizers import pre_tokenizer_spec
from quire_tokenizer.source import DEFAULT_TEMPLATE, TokenizerSource
from quire_tokenizer.vocabulary import METASPACE, SpecialTokens

PREFIX: Final = "tokenizer.ggml."
TEMPLATE_KEY: Final = "tokenizer.chat_template"
# Each of these, where present, ends a generation: end of sequence, of turn, of message.
EOS_KEYS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")


class TokenType(enum.IntEnum):
    """llama.cpp's kinds of token, as stored in `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def load_gguf(path: Path) -> TokenizerSource:
    """Return the tokenizer that `path` describes; raise ModelFormatError, naming what is missing or not known."""
    metadata = read_metadata(path, ("tokenizer.",))
    if f"{PREFIX}model" not in metadata:
        raise ModelFormatError(f"{path} has no {PREFIX}model: it holds no tokenizer")
    return tokenizer_from_metadata(metadata)


def tokenizer_from_metadata(metadata: dict[str, Any]) -> TokenizerSource:
    """As load_gguf, from the keys and values themselves."""
    fields = {key.removeprefix(PREFIX): value for key, value in metadata.items() if key.startswith(PREFIX)}
    kind = fields["model"]
    builders = {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe}
    if kind not in builders:
        raise ModelFormatError(f"{PREFIX}model is {kind!r}; served are {', '.join(sorted(builders))}")
    tokens: list[str] = _required(fields, "tokens")
    types: list[int] = fields.get("token_type") or [TokenType.NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ModelFormatError(f"{PREFIX}token_type has {len(types)} entries for {len(tokens)} tokens")
    special = _special_tokens(fields, len(tokens))
    backend, merges, adds_bos = builders[kind](fields, tokens, types)
    _add_tokens(backend, tokens, types, special)
    if fields.get("add_bos_token", adds_bos) or fields.get("add_eos_token", False):
        _add_template(backend, tokens, special, fields, adds_bos)
    return TokenizerSource(
        backend=backend,
        special=special,
        merges=merges,
        num_ids=len(tokens),
        chat_templates=_chat_templates(metadata),
    )


def _required(fields: dict[str, Any], key: str) -> Any:
    if key not in fields:
        raise ModelFormatError(f"the GGUF file has no {PREFIX}{key}")
    return fields[key]


def _special_tokens(fields: dict[str, Any], num_tokens: int) -> SpecialTokens:
    def token_id(key: str) -> int | None:
        value: int | None = fields.get(key)
        if value is not None and value >= num_tokens:
            raise ModelFormatError(f"{PREFIX}{key} is {value}, but there are only {num_tokens} tokens")
        return value

    eos_ids = [found for key in EOS_KEYS if (found := token_id(key)) is not None]
    return SpecialTokens(
        bos_id=token_id("bos_token_id"),
        eos_ids=tuple(dict.fromkeys(eos_ids)),
        unk_id=token_id("unknown_token_id"),
        pad_id=token_id("padding_token_id"),
    )


def _byte_level_bpe(
    fields: dict[str, Any], tokens: list[str], types: list[int]
) -> tuple[Tokenizer, list[str], bool]:
    spec = pre_tokenizer_spec(fields.get("pre"))
    merges: list[str] = _required(fields, "merges")
    try:
        pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    except ValueError as error:
        message = f"{PREFIX}merges has an entry that is not two tokens with one space between"
        raise ModelFormatError(message) from error
    backend = Tokenizer(_bpe(_vocab(tokens, types), pairs, ignore_merges=spec.ignore_merges))
    if spec.normalizer is not None:
        backend.normalizer = spec.normalizer()
    backend.pre_tokenizer = spec.build()
    backend.decoder = decoders.ByteLevel()
    return backend, merges, spec.adds_bos


def _sentencepiece_bpe(
    fields: dict[str, Any], tokens: list[str], types: list[int]
) -> tuple[Tokenizer, list[str], bool]:
    scores: list[float] = _required(fields, "scores")
    if len(scores) != len(tokens):
        raise ModelFormatError(f"{PREFIX}scores has {len(scores)} entries for {len(tokens)} tokens")
    vocab = _vocab(tokens, types)
    pairs = _merges_from_scores(vocab, scores, types)
    unk_id = fields.get("unknown_token_id", 0)
    backend = Tokenizer(_bpe(vocab, pairs, unk_token=tokens[unk_id], byte_fallback=True, fuse_unk=True))
    # A space is written as U+2581, and where the file says so (it does by default) one is put before the text; the
    # decoder takes it off again.
    adds_prefix = fields.get("add_space_prefix", True)
    replace = normalizers.Replace(" ", METASPACE)
    prefix = [normalizers.Prepend(METASPACE)] if adds_prefix else []
    backend.normalizer = normalizers.Sequence([*prefix, replace])
    strip = [decoders.Strip(" ", 1, 0)] if adds_prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(METASPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend, [" ".join(pair) for pair in pairs], True


def _vocab(tokens: list[str], types: list[int]) -> dict[str, int]:
    # Padding rows (UNUSED) name no token. Of two rows with the same string the first one is the token.
    vocab: dict[str, int] = {}
    for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind != TokenType.UNUSED:
            vocab.setdefault(token, token_id)
    return vocab


def _bpe(vocab: dict[str, int], pairs: list[tuple[str, str]], **options: Any) -> models.BPE:
    try:
        return models.BPE(vocab, pairs, **options)
    except Exception as error:  # the library raises plain Exception, above all for a merge of unknown tokens
        raise ModelFormatError(f"{PREFIX}tokens and {PREFIX}merges don't fit together: {error}") from error


def _merges_from_scores(
    vocab: dict[str, int], scores: list[float], types: list[int]
) -> list[tuple[str, str]]:
    """Derive merges, best first, from the scores: SentencePiece merges the neighbours whose union scores highest."""
    ranked: list[tuple[float, int, int, tuple[str, str]]] = []
    for token, token_id in vocab.items():
        if types[token_id] not in (TokenType.NORMAL, TokenType.USER_DEFINED):
            continue
        for cut in range(1, len(token)):
            left, right = vocab.get(token[:cut]), vocab.get(token[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[token_id], left, right, (token[:cut], token[cut:])))
    ranked.sort()
    return [pair for _, _, _, pair in ranked]


def _add_tokens(backend: Tokenizer, tokens: list[str], types: list[int], special: SpecialTokens) -> None:
    """Make control and user-defined tokens match as a whole; control tokens, BOS and EOS are the special ones."""
    special_ids = {token_id for token_id, kind in enumerate(types) if kind == TokenType.CONTROL}
    special_ids.update(token_id for token_id in (special.bos_id, *special.eos_ids) if token_id is not None)
    backend.add_special_tokens(
        [AddedToken(tokens[token_id], special=True, normalized=False) for token_id in sorted(special_ids)]
    )
    backend.add_tokens(
        [
            AddedToken(tokens[token_id], special=False, normalized=False)
            for token_id, kind in enumerate(types)
            if kind == TokenType.USER_DEFINED and token_id not in special_ids
        ]
    )


def _add_template(
    backend: Tokenizer, tokens: list[str], special: SpecialTokens, fields: dict[str, Any], adds_bos: bool
) -> None:
    around: list[tuple[str, int]] = []
    single = "$A"
    if fields.get("add_bos_token", adds_bos) and special.bos_id is not None:
        around.append((tokens[special.bos_id], special.bos_id))
        single = f"{tokens[special.bos_id]} {single}"
    if fields.get("add_eos_token", False) and special.eos_ids:
        around.append((tokens[special.eos_ids[0]], special.eos_ids[0]))
        single = f"{single} {tokens[special.eos_ids[0]]}"
    if around:
        backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=around)


def _chat_templates(metadata: dict[str, Any]) -> dict[str, str]:
    templates: dict[str, str] = {}
    for key, value in metadata.items():
        if key == TEMPLATE_KEY:
            templates[DEFAULT_TEMPLATE] = value
        elif key.startswith(f"{TEMPLATE_KEY}.") and isinstance(value, str):
            templates[key.removeprefix(f"{TEMPLATE_KEY}.")] = value
    return templates
