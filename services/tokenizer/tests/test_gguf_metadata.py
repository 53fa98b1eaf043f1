"""Reading the key/value section of GGUF files."""

from __future__ import annotations

import struct

import pytest

from quire_tokenizer.errors import ModelFormatError
from quire_tokenizer.gguf_metadata import read_metadata

VALUES = {
    "general.name": "x",
    "a.count": 7,
    "a.flag": True,
    "a.ids": [1, 2, 3],
    "a.words": ["\u00e9", ""],
    "b": "y",
}


def test_values_of_every_kind_are_read_back(write_gguf):
    """Strings, numbers, flags and arrays come back as they were written."""
    assert read_metadata(write_gguf(VALUES), ("",)) == VALUES


def test_only_wanted_keys_are_kept(write_gguf):
    """Keys with other prefixes are stepped over, whatever their type."""
    assert read_metadata(write_gguf(VALUES), ("b",)) == {"b": "y"}


def test_nested_arrays_are_read(tmp_path):
    """An array of arrays becomes a list of lists."""
    inner = struct.pack("<IQ2I", 4, 2, 5, 6)
    body = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 9, 1) + inner
    path = tmp_path / "nested.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + body)
    assert read_metadata(path, ("k",)) == {"k": [[5, 6]]}


def test_truncated_file_is_refused_at_every_length(write_gguf):
    """A file that ends anywhere inside the section is refused by name, never read past its end."""
    whole = write_gguf(VALUES).read_bytes()
    for length in range(len(whole)):
        path = write_gguf(VALUES, name="cut.gguf")
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFormatError, match=r"cut\.gguf"):
            read_metadata(path, ("",))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"NOPE" + bytes(40), "does not start with"),
        (b"GGUF" + (1).to_bytes(4, "little") + bytes(40), "version 1"),
        (b"GGUF" + (3).to_bytes(4, "big") + bytes(40), "version 50331648"),
    ],
)
def test_other_files_are_refused(tmp_path, data, message):
    """Files of another format, version or byte order are refused, saying which."""
    path = tmp_path / "other.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFormatError, match=message):
        read_metadata(path, ("",))


def test_absurd_count_is_refused_before_memory_is_taken(tmp_path):
    """A count that the file can't hold is refused at once."""
    path = tmp_path / "huge.gguf"
    body = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 4, 1 << 60)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + body)
    with pytest.raises(ModelFormatError, match="ends inside"):
        read_metadata(path, ("k",))


def test_text_that_is_not_utf8_is_refused(write_gguf):
    """A string that is no UTF-8 can't be a token or a template."""
    path = write_gguf({"key": "ab"})
    path.write_bytes(path.read_bytes().replace(b"ab", b"\xff\xfe"))
    with pytest.raises(ModelFormatError, match="not UTF-8"):
        read_metadata(path, ("key",))
