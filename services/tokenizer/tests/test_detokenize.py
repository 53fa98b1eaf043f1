"""Incremental detokenisation: however a sequence is cut up, the pieces join to the one-shot decode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_servicekit.errors import InvalidRequest
from quire_tokenizer.detokenize import Detokenizer, TextStream

# Text that is spread over tokens in every way: joined emoji, flags, combining marks, CJK, surrogate-range edges.
HARD_TEXTS = [
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 family",
    "\U0001f1eb\U0001f1f7 \U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "\u4f60\u597d\uff0c\u4e16\u754c \u3053\u3093\u306b\u3061\u306f \uc548\ub155",
    "e\u0301 n\u0303 \u0915\u094d\u0937 \u0e19\u0e49\u0e33",
    "literal \ufffd stays",
    "\ud7ff\ue000\U0010ffff\x00\x7f\u0080",
]
texts = st.one_of(st.sampled_from(HARD_TEXTS), st.text(max_size=40))
chunk_sizes = st.lists(st.integers(0, 5), max_size=60)


def chunks(ids: list[int], sizes: list[int]) -> list[list[int]]:
    """Cut `ids` into chunks of the given sizes; what is left over comes one by one."""
    cut = []
    for size in sizes:
        cut.append(ids[:size])
        ids = ids[size:]
    return cut + [[token_id] for token_id in ids]


def streamed(stream: TextStream, parts: list[list[int]]) -> list[str]:
    """The texts that a stream gives for `parts`, the flush at the end included."""
    return [stream.push(part) for part in parts] + [stream.flush()]


def ids_of(vocab_size: int) -> st.SearchStrategy[list[int]]:
    """Any sequence of token ids."""
    return st.lists(st.integers(0, vocab_size - 1), max_size=40)


@given(ids=ids_of(49152), sizes=chunk_sizes, skip=st.booleans())
def test_random_tokens_equal_the_librarys_decode(smollm2, ids, sizes, skip):
    """For any tokens and chunks the stream is exactly the tokenizers library's decode, invalid bytes included."""
    stream = Detokenizer(smollm2.backend, smollm2.vocabulary).open(skip_special_tokens=skip)
    assert "".join(streamed(stream, chunks(ids, sizes))) == smollm2.backend.decode(
        ids, skip_special_tokens=skip
    )


@given(data=st.data(), sizes=chunk_sizes)
def test_random_bytes_equal_the_librarys_decode(smollm2, data, sizes):
    """So it is for sequences of single bytes, where every way to be no UTF-8 turns up."""
    single = [token_id for token_id, piece in enumerate(smollm2.vocabulary.token_bytes) if len(piece) == 1]
    leads = [token_id for token_id in single if smollm2.vocabulary.token_bytes[token_id][0] >= 0x80]
    ids = data.draw(st.lists(st.sampled_from(leads * 2 + single + [0, 1]), max_size=30))
    stream = Detokenizer(smollm2.backend, smollm2.vocabulary).open()
    assert "".join(streamed(stream, chunks(ids, sizes))) == smollm2.backend.decode(
        ids, skip_special_tokens=True
    )


@given(text=texts, sizes=chunk_sizes)
def test_text_streams_back_without_replacement_characters(smollm2, text, sizes):
    """A text comes back whole, and no piece has a U+FFFD that the text has not."""
    # A few control characters have no token in this vocabulary: it drops them, here as in every other engine.
    spelled = {piece[0] for piece in smollm2.vocabulary.token_bytes if len(piece) == 1}
    text = "".join(character for character in text if spelled.issuperset(character.encode()))
    ids = smollm2.backend.encode(text).ids
    stream = Detokenizer(smollm2.backend, smollm2.vocabulary).open(skip_special_tokens=False)
    pieces = streamed(stream, chunks(ids, sizes))
    assert "".join(pieces) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@given(data=st.data(), text=texts, context=st.integers(16, 60))
def test_another_replica_goes_on_from_the_last_tokens(smollm2, data, text, context):
    """A stream that is rebuilt from its last 16 or more tokens neither repeats nor loses text, wherever it is cut."""
    detokenizer = Detokenizer(smollm2.backend, smollm2.vocabulary)
    ids = smollm2.backend.encode(text).ids + data.draw(ids_of(49152))
    cut = data.draw(st.integers(0, len(ids)))
    first = detokenizer.open()
    delivered = "".join(first.push([token_id]) for token_id in ids[:cut])
    second = detokenizer.open(context_ids=ids[:cut][-context:])
    assert delivered + "".join(streamed(second, [[i] for i in ids[cut:]])) == detokenizer.decode(ids)


def test_half_a_character_is_held_back_and_flushed(smollm2):
    """The first bytes of an emoji give no text; the rest gives it; an end in between gives one U+FFFD."""
    ids = smollm2.backend.encode("\U0001fae8").ids
    assert len(ids) > 1, "the test needs an emoji of several tokens"
    detokenizer = Detokenizer(smollm2.backend, smollm2.vocabulary)
    stream = detokenizer.open()
    assert [stream.push([token_id]) for token_id in ids] == [""] * (len(ids) - 1) + ["\U0001fae8"]
    cut = detokenizer.open()
    assert cut.push(ids[:-1]) == ""
    assert cut.flush() == "\ufffd" == detokenizer.decode(ids[:-1])
    assert cut.flush() == ""


def test_golden_outputs_decode_to_the_reference_text(smollm2, golden):
    """Every golden output gives the reference's text, streamed and at once."""
    detokenizer = Detokenizer(smollm2.backend, smollm2.vocabulary)
    for item in golden:
        assert detokenizer.decode(item["output_ids"]) == item["output_text"]
        stream = detokenizer.open()
        assert "".join(streamed(stream, chunks(item["output_ids"], []))) == item["output_text"]


def test_special_tokens_are_left_out_or_shown(smollm2):
    """skip_special_tokens decides, also in the middle of a character's bytes."""
    detokenizer = Detokenizer(smollm2.backend, smollm2.vocabulary)
    ids = smollm2.backend.encode("<|im_start|>hi<|im_end|>").ids
    assert detokenizer.decode(ids) == "hi"
    assert detokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>hi<|im_end|>"
    first, second = smollm2.backend.encode("\u0160").ids
    assert detokenizer.decode([first, 2, second]) == "\u0160"
    assert detokenizer.decode([first, 2, second], skip_special_tokens=False) == "\ufffd<|im_end|>\ufffd"


@given(data=st.data(), sizes=chunk_sizes, skip=st.booleans())
def test_sentencepiece_tokens_equal_their_bytes(sentencepiece, data, sizes, skip):
    """Byte tokens join to characters, and only the invalid part of a run of bytes is replaced."""
    vocabulary = sentencepiece.vocabulary
    ids = data.draw(ids_of(vocabulary.size))
    shown = [i for i in ids if not (skip and i in vocabulary.special_ids)]
    expected = b"".join(vocabulary.token_bytes[i] for i in shown).removeprefix(b" ").decode(errors="replace")
    detokenizer = Detokenizer(sentencepiece.backend, vocabulary)
    assert detokenizer.decode(ids, skip_special_tokens=skip) == expected
    stream = detokenizer.open(skip_special_tokens=skip)
    assert "".join(streamed(stream, chunks(ids, sizes))) == expected


@given(text=st.one_of(texts, st.text(alphabet="ab \u00e9\u4e2d\U0001f600", max_size=30)), sizes=chunk_sizes)
def test_sentencepiece_texts_equal_the_librarys_decode(sentencepiece, text, sizes):
    """For tokens of real text the stream is the library's decode, whose leading space is taken off once."""
    ids = sentencepiece.backend.encode(text).ids
    stream = Detokenizer(sentencepiece.backend, sentencepiece.vocabulary).open()
    pieces = streamed(stream, chunks(ids, sizes))
    assert "".join(pieces) == sentencepiece.backend.decode(ids)
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("name", ["wordpiece", "metaspace"])
@given(data=st.data(), sizes=chunk_sizes, skip=st.booleans())
def test_other_decoders_equal_the_librarys_decode(request, name, data, sizes, skip):
    """Where a token's text depends on the one before it, the stream is still exactly the library's decode."""
    tokenizer = request.getfixturevalue(name)
    ids = data.draw(ids_of(tokenizer.vocabulary.size))
    detokenizer = Detokenizer(tokenizer.backend, tokenizer.vocabulary)
    expected = tokenizer.backend.decode(ids, skip_special_tokens=skip)
    assert detokenizer.decode(ids, skip_special_tokens=skip) == expected
    stream = detokenizer.open(skip_special_tokens=skip)
    assert "".join(streamed(stream, chunks(ids, sizes))) == expected


@given(data=st.data(), cut=st.integers(0, 40))
def test_other_decoders_go_on_from_the_last_tokens(wordpiece, data, cut):
    """Rebuilding a generic stream keeps the space between words."""
    ids = data.draw(ids_of(wordpiece.vocabulary.size))
    detokenizer = Detokenizer(wordpiece.backend, wordpiece.vocabulary)
    first = detokenizer.open()
    delivered = "".join(first.push([token_id]) for token_id in ids[:cut])
    second = detokenizer.open(context_ids=ids[:cut])
    assert delivered + "".join(streamed(second, [[i] for i in ids[cut:]])) == detokenizer.decode(ids)


@pytest.mark.parametrize("name", ["smollm2", "sentencepiece", "wordpiece"])
def test_unknown_id_is_refused_by_value(request, name):
    """An id beyond the vocabulary names the limit and the value, alone or among others."""
    tokenizer = request.getfixturevalue(name)
    size = tokenizer.vocabulary.size
    detokenizer = Detokenizer(tokenizer.backend, tokenizer.vocabulary)
    for ids in ([size], [0, size, 1]):
        with pytest.raises(InvalidRequest, match=f"{size}, got {size}"):
            detokenizer.open().push(ids)


def test_no_tokens_give_no_text(smollm2):
    """An empty chunk, an empty stream and an empty sequence are fine."""
    detokenizer = Detokenizer(smollm2.backend, smollm2.vocabulary)
    stream = detokenizer.open()
    assert stream.push([]) == "" and stream.flush() == "" and detokenizer.decode([]) == ""
