"""Tokenizers from GGUF metadata: the real model, the traps of `pre` names, and SentencePiece scores."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from quire_tokenizer.errors import ModelFormatError
from quire_tokenizer.gguf_vocab import tokenizer_from_metadata
from quire_tokenizer.loading import load_tokenizer, ready
from quire_tokenizer.pre_tokenizers import PRE_TOKENIZERS, pre_tokenizer_spec
from quire_tokenizer.vocabulary import Scheme

GGML = "tokenizer.ggml."


def pieces(name: str, text: str) -> list[str]:
    """How the pre-tokenizer `name` cuts `text`, as plain text."""
    cut = pre_tokenizer_spec(name).build().pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in cut]


def byte_level_fields(**changes):
    """Metadata of a small byte-level BPE: all bytes, two merges, a control, a user-defined and a padding token."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "12", "ab", "<|end|>", "<tool>", "[PAD260]"]
    fields = {
        f"{GGML}model": "gpt2",
        f"{GGML}pre": "smollm",
        f"{GGML}tokens": tokens,
        f"{GGML}token_type": [1] * 258 + [3, 4, 5],
        f"{GGML}merges": ["1 2", "a b"],
        f"{GGML}eos_token_id": 258,
    }
    return {key: value for key, value in {**fields, **changes}.items() if value is not None}


def test_golden_prompts_encode_to_the_reference_ids(smollm2, golden):
    """Every golden prompt gives the ids that transformers gave."""
    for item in golden:
        assert smollm2.backend.encode(item["prompt_text"]).ids == item["prompt_ids"], item["name"]


def test_digits_are_isolated_before_the_gpt2_pattern(smollm2):
    """`smollm` splits numbers into single digits, as the model was trained; the plain GPT-2 pattern would not."""
    ids = smollm2.backend.encode("In 2024 it cost 12345").ids
    digits = [
        smollm2.vocabulary.tokens[token_id]
        for token_id in ids
        if smollm2.vocabulary.tokens[token_id].isdigit()
    ]
    assert digits == list("202412345")
    assert pieces("smollm", "a 2024") == ["a", " ", "2", "0", "2", "4"]
    assert pieces("gpt-2", "a 2024") == ["a", " 2024"]


def test_facts_of_the_real_file(smollm2):
    """Ends, specials and the template come from the file's metadata."""
    assert smollm2.vocabulary.scheme is Scheme.BYTE_LEVEL
    assert smollm2.vocabulary.size == 49152
    assert smollm2.vocabulary.special.bos_id == 1
    assert smollm2.vocabulary.special.eos_ids == (2,)
    assert smollm2.vocabulary.special_ids == frozenset(range(17))
    assert "SmolLM, trained by Hugging Face" in smollm2.chat_templates["default"]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("llama-bpe", "I'LL pay 12345", ["I", "'LL", " pay", " ", "123", "45"]),
        ("qwen2", "I'LL pay 123", ["I", "'LL", " pay", " ", "1", "2", "3"]),
        ("qwen2", "x\n\n  y", ["x", "\n\n", " ", " y"]),
        ("gpt-2", "I'LL pay 123", ["I", "'", "LL", " pay", " 123"]),
        ("smollm", "don't", ["don", "'t"]),
    ],
)
def test_pre_tokenizers_cut_as_published(name, text, expected):
    """Contractions, numbers and line ends are cut as the models' own tokenizer.json does."""
    assert pieces(name, text) == expected


def test_every_known_name_builds():
    """No entry of the table is broken."""
    for name in PRE_TOKENIZERS:
        assert "".join(pieces(name, "Hello 123!")) == "Hello 123!"


@pytest.mark.parametrize("name", ["default", "tekken", "GPT-2"])
def test_unknown_pre_tokenizer_is_refused_by_name(name):
    """Guessing would tokenise wrongly without a sign, so the name is in the error."""
    with pytest.raises(ModelFormatError, match=name):
        tokenizer_from_metadata(byte_level_fields(**{f"{GGML}pre": name}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{GGML}pre": None}, "no tokenizer.ggml.pre"),
        ({f"{GGML}model": "t5"}, "'t5'"),
        ({f"{GGML}merges": None}, "no tokenizer.ggml.merges"),
        ({f"{GGML}merges": ["a b c"]}, "merges has an entry"),
        ({f"{GGML}merges": ["a zz"]}, "don't fit together"),
        ({f"{GGML}token_type": [1]}, "token_type has 1 entries"),
        ({f"{GGML}eos_token_id": 99999}, "eos_token_id is 99999"),
    ],
)
def test_metadata_that_cannot_be_right_is_refused(changes, message):
    """What is missing or contradictory is named."""
    with pytest.raises(ModelFormatError, match=message):
        tokenizer_from_metadata(byte_level_fields(**changes))


def test_file_without_a_tokenizer_is_refused(write_gguf):
    """A GGUF file of tensors alone says so."""
    with pytest.raises(ModelFormatError, match="holds no tokenizer"):
        load_tokenizer(write_gguf({"general.name": "x"}))


def test_token_types_decide_what_is_special(write_gguf):
    """Control tokens are special, user-defined ones only match as a whole, padding rows stand for nothing."""
    tokenizer = load_tokenizer(write_gguf(byte_level_fields()))
    assert tokenizer.vocabulary.special_ids == {258}
    assert tokenizer.vocabulary.added_ids == {258, 259}
    assert tokenizer.vocabulary.tokens[260] == "" and tokenizer.vocabulary.size == 261
    assert tokenizer.backend.encode("x<tool><|end|>12").ids[1:3] == [259, 258]
    assert tokenizer.backend.encode("[PAD260]").ids != [260]


def test_bos_is_added_when_the_file_says_so():
    """add_bos_token puts BOS in front, and only where special tokens are wanted."""
    fields = byte_level_fields(**{f"{GGML}bos_token_id": 258, f"{GGML}add_bos_token": True})
    backend = tokenizer_from_metadata(fields).backend
    assert backend.encode("ab").ids == [258, 257]
    assert backend.encode("ab", add_special_tokens=False).ids == [257]
    quiet = tokenizer_from_metadata(byte_level_fields(**{f"{GGML}bos_token_id": 258})).backend
    assert quiet.encode("ab").ids == [257]


def test_eos_is_added_when_the_file_says_so():
    """add_eos_token puts EOS behind."""
    backend = tokenizer_from_metadata(byte_level_fields(**{f"{GGML}add_eos_token": True})).backend
    assert backend.encode("ab").ids == [257, 258]


def test_every_end_token_of_the_file_ends_a_generation():
    """End of turn and end of message count beside end of sequence, each once."""
    source = tokenizer_from_metadata(
        byte_level_fields(
            **{f"{GGML}eot_token_id": 259, f"{GGML}eom_token_id": 258, f"{GGML}eos_token_id": 258}
        )
    )
    assert source.special.eos_ids == (258, 259)


def test_named_chat_templates_are_kept():
    """A file may carry another template for requests with tools."""
    fields = byte_level_fields(
        **{
            "tokenizer.chat_template": "A",
            "tokenizer.chat_template.tool_use": "B",
            "tokenizer.chat_templates": ["x"],
        }
    )
    assert tokenizer_from_metadata(fields).chat_templates == {"default": "A", "tool_use": "B"}


def merge_by_score(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's rule by brute force: merge the neighbours whose union scores highest, the leftmost first."""
    symbols = list(text)
    while True:
        unions = [
            (scores[a + b], -i) for i, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in scores
        ]
        if not unions:
            return symbols
        index = -max(unions)[1]
        symbols[index : index + 2] = [symbols[index] + symbols[index + 1]]


@given(text=st.text(alphabet="abc \u00e9\u4e2d", max_size=24))
def test_sentencepiece_merges_by_score(sentencepiece, text):
    """A text is cut as merging by highest score cuts it."""
    vocabulary = sentencepiece.vocabulary
    scores = {token: -float(i) for i, token in enumerate(vocabulary.tokens[259:-1])}
    marked = "\u2581" + text.replace(" ", "\u2581") if text else ""
    ids = sentencepiece.backend.encode(text, add_special_tokens=False).ids
    assert [vocabulary.tokens[token_id] for token_id in ids] == merge_by_score(marked, scores)


def test_sentencepiece_falls_back_to_bytes(sentencepiece):
    """A character that is no token becomes its bytes, and comes back."""
    ids = sentencepiece.backend.encode("a\U0001f600").ids
    tokens = [sentencepiece.vocabulary.tokens[token_id] for token_id in ids]
    assert tokens == ["<s>", "\u2581a", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]
    assert sentencepiece.vocabulary.scheme is Scheme.METASPACE_BYTES
    assert sentencepiece.vocabulary.num_leading_spaces_stripped == 1


def test_sentencepiece_without_a_space_in_front(sentencepiece_fields):
    """add_space_prefix false: no space is added, and none is taken off."""
    tokenizer = ready(tokenizer_from_metadata({**sentencepiece_fields, f"{GGML}add_space_prefix": False}))
    assert tokenizer.backend.decode(tokenizer.backend.encode(" ab").ids) == " ab"
    assert tokenizer.vocabulary.num_leading_spaces_stripped == 0


def test_sentencepiece_scores_must_match_the_tokens(sentencepiece_fields):
    """A file with too few scores is refused."""
    with pytest.raises(ModelFormatError, match="scores has 1 entries"):
        tokenizer_from_metadata({**sentencepiece_fields, f"{GGML}scores": [0.0]})
