"""JSON schemas of protobuf messages, with the contract's comments, as the edge's transcoder reads and writes them.

One job: types. Field names stay as the contract writes them; 64-bit integers are strings in protobuf's JSON. Paths are
not its business: document.py has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2

Field = descriptor_pb2.FieldDescriptorProto

_SCALARS: dict[int, dict[str, Any]] = {
    Field.TYPE_DOUBLE: {"type": "number", "format": "double"},
    Field.TYPE_FLOAT: {"type": "number", "format": "float"},
    Field.TYPE_INT64: {"type": "string", "format": "int64"},
    Field.TYPE_UINT64: {"type": "string", "format": "uint64"},
    Field.TYPE_FIXED64: {"type": "string", "format": "uint64"},
    Field.TYPE_SINT64: {"type": "string", "format": "int64"},
    Field.TYPE_SFIXED64: {"type": "string", "format": "int64"},
    Field.TYPE_INT32: {"type": "integer", "format": "int32"},
    Field.TYPE_SINT32: {"type": "integer", "format": "int32"},
    Field.TYPE_SFIXED32: {"type": "integer", "format": "int32"},
    Field.TYPE_UINT32: {"type": "integer", "minimum": 0, "maximum": 4294967295},
    Field.TYPE_FIXED32: {"type": "integer", "minimum": 0, "maximum": 4294967295},
    Field.TYPE_BOOL: {"type": "boolean"},
    Field.TYPE_STRING: {"type": "string"},
    Field.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
}

#: Messages with a JSON form of their own (protobuf's well-known types).
_WELL_KNOWN: dict[str, dict[str, Any]] = {
    ".google.protobuf.Struct": {"type": "object"},
    ".google.protobuf.Value": {},
    ".google.protobuf.Duration": {"type": "string", "pattern": "^-?[0-9]+(\\.[0-9]+)?s$"},
    ".google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    ".google.protobuf.Any": {"type": "object", "properties": {"@type": {"type": "string"}}},
}

# Numbers of FileDescriptorProto's and DescriptorProto's fields, as paths of comments use them.
_MESSAGE, _ENUM, _SERVICE, _FIELD, _NESTED, _NESTED_ENUM, _METHOD, _VALUE = 4, 5, 6, 2, 3, 4, 2, 2


class Contracts:
    """Messages, enums and comments of a descriptor set, by full name with a leading dot."""

    def __init__(self, descriptors: descriptor_pb2.FileDescriptorSet) -> None:
        self.messages: dict[str, descriptor_pb2.DescriptorProto] = {}
        self.enums: dict[str, descriptor_pb2.EnumDescriptorProto] = {}
        self.comments: dict[str, str] = {}
        self.files = list(descriptors.file)
        for file in self.files:
            comments = {
                tuple(location.path): _joined(location.leading_comments)
                for location in file.source_code_info.location
                if location.leading_comments
            }
            for index, message in enumerate(file.message_type):
                self._add_message(f".{file.package}", message, (_MESSAGE, index), comments)
            for index, enum in enumerate(file.enum_type):
                self._add_enum(f".{file.package}", enum, (_ENUM, index), comments)
            for index, service in enumerate(file.service):
                name = f".{file.package}.{service.name}"
                self.comments[name] = comments.get((_SERVICE, index), "")
                for number, method in enumerate(service.method):
                    path = (_SERVICE, index, _METHOD, number)
                    self.comments[f"{name}.{method.name}"] = comments.get(path, "")

    def schema(self, name: str) -> dict[str, Any]:
        """A reference to a message or enum, or a well-known type's own schema."""
        return _WELL_KNOWN.get(name) or {"$ref": f"#/components/schemas/{name[1:]}"}

    def field_schema(self, message: str, field: Field) -> dict[str, Any]:
        """The schema of one field, repeated or map included."""
        if field.type == Field.TYPE_MESSAGE:
            entry = self.messages.get(field.type_name)
            if entry is not None and entry.options.map_entry:
                values = self.field_schema(field.type_name, entry.field[1])
                return self._described(message, field, {"type": "object", "additionalProperties": values})
            single = self.schema(field.type_name)
        elif field.type == Field.TYPE_ENUM:
            single = self.schema(field.type_name)
        else:
            single = dict(_SCALARS[field.type])
        if field.label == Field.LABEL_REPEATED:
            single = {"type": "array", "items": single}
        return self._described(message, field, single)

    def components(self, roots: set[str]) -> dict[str, Any]:
        """The schemas of `roots` and of everything they hold."""
        found: dict[str, Any] = {}
        waiting = sorted(roots)
        while waiting:
            name = waiting.pop()
            if name[1:] in found or name in _WELL_KNOWN:
                continue
            if name in self.enums:
                found[name[1:]] = self._enum(name)
            else:
                found[name[1:]] = self._message(name)
                waiting += self._types_in(name)
        return dict(sorted(found.items()))

    def _message(self, name: str) -> dict[str, Any]:
        message = self.messages[name]
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {field.name: self.field_schema(name, field) for field in message.field},
        }
        if self.comments.get(name):
            schema["description"] = self.comments[name]
        return schema

    def _enum(self, name: str) -> dict[str, Any]:
        values = [value.name for value in self.enums[name].value]
        notes = [f"{value}: {text}" for value in values if (text := self.comments.get(f"{name}.{value}"))]
        return {"type": "string", "enum": values, "description": "\n".join([self.comments[name], *notes])}

    def _types_in(self, name: str) -> Iterator[str]:
        for field in self.messages[name].field:
            if field.type not in (Field.TYPE_MESSAGE, Field.TYPE_ENUM):
                continue
            entry = self.messages.get(field.type_name)
            if entry is not None and entry.options.map_entry:
                yield from self._types_in(field.type_name)
            else:
                yield field.type_name

    def _described(self, message: str, field: Field, schema: dict[str, Any]) -> dict[str, Any]:
        text = self.comments.get(f"{message}.{field.name}", "")
        return {**schema, "description": text} if text else schema

    def _add_message(
        self,
        scope: str,
        message: descriptor_pb2.DescriptorProto,
        path: tuple[int, ...],
        comments: dict[tuple[int, ...], str],
    ) -> None:
        name = f"{scope}.{message.name}"
        self.messages[name] = message
        self.comments[name] = comments.get(path, "")
        for index, field in enumerate(message.field):
            self.comments[f"{name}.{field.name}"] = comments.get((*path, _FIELD, index), "")
        for index, nested in enumerate(message.nested_type):
            self._add_message(name, nested, (*path, _NESTED, index), comments)
        for index, enum in enumerate(message.enum_type):
            self._add_enum(name, enum, (*path, _NESTED_ENUM, index), comments)

    def _add_enum(
        self,
        scope: str,
        enum: descriptor_pb2.EnumDescriptorProto,
        path: tuple[int, ...],
        comments: dict[tuple[int, ...], str],
    ) -> None:
        name = f"{scope}.{enum.name}"
        self.enums[name] = enum
        self.comments[name] = comments.get(path, "")
        for index, value in enumerate(enum.value):
            self.comments[f"{name}.{value.name}"] = comments.get((*path, _VALUE, index), "")


def _joined(comment: str) -> str:
    """A comment's lines as paragraphs."""
    lines = [line.strip() for line in comment.strip().splitlines()]
    return "\n\n".join(
        " ".join(paragraph.split("\n")) for paragraph in "\n".join(lines).split("\n\n") if paragraph
    )
