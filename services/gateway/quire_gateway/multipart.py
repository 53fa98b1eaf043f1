"""Reading multipart/form-data.

One job: bytes and their content type in, the form's fields out. Knows no endpoint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.message import Message

from quire_servicekit.errors import InvalidRequest

MAX_PARTS = 32


@dataclass(frozen=True, slots=True)
class FormField:
    """One field: its bytes, and the file's name if it is a file."""

    data: bytes
    filename: str | None = None

    @property
    def text(self) -> str:
        """The value of a field that is no file."""
        return self.data.decode("utf-8", "replace")


def read_form(content_type: str, body: bytes) -> dict[str, FormField]:
    """The fields by name; of a name that comes twice, the last. Raises InvalidRequest for what is no such form."""
    parsed = Message()
    parsed["content-type"] = content_type or "application/octet-stream"
    boundary = parsed.get_param("boundary")
    if parsed.get_content_type() != "multipart/form-data" or not isinstance(boundary, str) or not boundary:
        raise InvalidRequest("body", "multipart/form-data with a boundary", content_type)
    # Every delimiter stands at the beginning of a line; the first may stand at the beginning of the body.
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1", "replace"))
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise InvalidRequest("body", message="the form is cut short, or its boundary is another one")
    if len(pieces) - 2 > MAX_PARTS:
        raise InvalidRequest("body", f"at most {MAX_PARTS} fields", len(pieces) - 2)
    fields = {}
    for piece in pieces[1:-1]:
        head, separator, data = piece.partition(b"\r\n\r\n")
        if not separator:
            raise InvalidRequest("body", message="a field of the form has no end of its headers")
        name, filename = _disposition(head)
        fields[name] = FormField(data, filename)
    return fields


def _disposition(head: bytes) -> tuple[str, str | None]:
    """Name and file name of a field."""
    text = head.decode("utf-8", "replace")
    line = re.search(r"^content-disposition:[ \t]*form-data(.*)$", text, re.IGNORECASE | re.MULTILINE)
    parameters = dict(re.findall(r';\s*(\w+)="((?:[^"\\]|\\.)*)"', line.group(1))) if line else {}
    if "name" not in parameters:
        raise InvalidRequest("body", message="a field of the form has no name")
    return parameters["name"], parameters.get("filename")
