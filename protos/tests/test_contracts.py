"""The contracts as a whole: commented, linted, formatted, and broken for nobody."""

import importlib
import importlib.resources
import os
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

PROTOS = Path(__file__).resolve().parents[1]
DESCRIPTORS = PROTOS / "gen/quire/descriptors.binpb"
CONFIG = PROTOS / "buf.yaml"
BASELINES = sorted((PROTOS / "baseline").glob("*.txtpb"))


def buf(*arguments, **options):
    """Run buf of this environment; it needs no network."""
    program = Path(sys.executable).with_name("buf")
    environment = {**os.environ, "BUF_CACHE_DIR": str(options.pop("cache", "/nonexistent"))}
    return subprocess.run(
        [str(program), *map(str, arguments)], capture_output=True, text=True, check=False, env=environment
    )


@pytest.fixture(scope="module")
def descriptors():
    """The built descriptor set."""
    return descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes())


def ours(descriptors):
    """The files of our own packages."""
    return [file for file in descriptors.file if file.package.startswith("quire.")]


def elements(file):
    """(path, name) of everything in a file that a reader meets: paths as in SourceCodeInfo."""

    def of_message(path, message, prefix):
        name = f"{prefix}.{message.name}"
        yield path, name
        for index, field in enumerate(message.field):
            yield (*path, 2, index), f"{name}.{field.name}"
        for index, nested in enumerate(message.nested_type):
            if not nested.options.map_entry:
                yield from of_message((*path, 3, index), nested, name)
        for index, enum in enumerate(message.enum_type):
            yield from of_enum((*path, 4, index), enum, name)

    def of_enum(path, enum, prefix):
        name = f"{prefix}.{enum.name}"
        yield path, name
        for index, value in enumerate(enum.value):
            yield (*path, 2, index), f"{name}.{value.name}"

    for index, message in enumerate(file.message_type):
        yield from of_message((4, index), message, file.package)
    for index, enum in enumerate(file.enum_type):
        yield from of_enum((5, index), enum, file.package)
    for index, service in enumerate(file.service):
        yield (6, index), f"{file.package}.{service.name}"
        for number, method in enumerate(service.method):
            yield (6, index, 2, number), f"{file.package}.{service.name}.{method.name}"


def test_everything_is_commented(descriptors):
    """Every message, field, enum, value, service and RPC has a comment."""
    missing = []
    for file in ours(descriptors):
        comments = {tuple(place.path): place.leading_comments for place in file.source_code_info.location}
        missing += [name for path, name in elements(file) if not comments.get(path, "").strip()]
    assert missing == []


def test_zero_of_every_enum_is_unspecified(descriptors):
    """Proto3's zero never means something: each enum's zero ends in _UNSPECIFIED."""
    for file in ours(descriptors):
        for enum in file.enum_type:
            assert enum.value[0].number == 0
            assert enum.value[0].name.endswith("_UNSPECIFIED"), enum.name


def test_every_sampling_parameter_has_presence(descriptors):
    """Zero differs from unset for every sampling parameter that is a single number or switch."""
    (file,) = [file for file in ours(descriptors) if file.package == "quire.sampling.v1"]
    (message,) = [message for message in file.message_type if message.name == "SamplingParams"]
    field = descriptor_pb2.FieldDescriptorProto
    plain = [
        each.name
        for each in message.field
        if each.label != field.LABEL_REPEATED and each.type != field.TYPE_MESSAGE and not each.proto3_optional
    ]
    assert plain == []


def test_error_details_are_in_the_set(descriptors):
    """The edge renders an error's details only when their types are in the set; else its body would be empty."""
    names = {file.name for file in descriptors.file}
    assert {"google/rpc/status.proto", "google/rpc/error_details.proto"} <= names


def test_stubs_import_without_a_package_above(descriptors):
    """Each contract's stub imports as quire.<domain>.v1, and nothing hides a sibling domain."""
    for file in ours(descriptors):
        importlib.import_module(file.name.removesuffix(".proto").replace("/", ".") + "_pb2")
    assert importlib.import_module("quire").__file__ is None


def test_style(tmp_path):
    """buf finds nothing to object to."""
    done = buf("lint", DESCRIPTORS, "--config", CONFIG, cache=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_format(tmp_path):
    """The files are as buf would write them."""
    done = buf("format", PROTOS, "--path", PROTOS / "quire", "--diff", "--exit-code", cache=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("baseline", BASELINES, ids=lambda path: path.stem)
def test_no_released_client_is_broken(baseline, tmp_path):
    """Nothing that a released client relies on was removed or changed."""
    done = buf("breaking", DESCRIPTORS, "--config", CONFIG, "--against", baseline, cache=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_is_a_baseline():
    """A release is frozen, so that the check above has something to hold."""
    assert BASELINES


def remove_field(descriptors):
    """Take one field away from the public request."""
    for file in descriptors.file:
        for message in file.message_type:
            if file.package == "quire.inference.v1" and message.name == "GenerateRequest":
                del message.field[0]


def change_type(descriptors):
    """Make a number a text."""
    for file in descriptors.file:
        for message in file.message_type:
            if file.package == "quire.inference.v1" and message.name == "Usage":
                message.field[0].type = descriptor_pb2.FieldDescriptorProto.TYPE_STRING


def remove_rpc(descriptors):
    """Take one RPC away."""
    for file in descriptors.file:
        for service in file.service:
            if service.name == "Inference":
                del service.method[0]


@pytest.mark.parametrize("change", [remove_field, change_type, remove_rpc])
def test_a_breaking_change_is_caught(descriptors, change, tmp_path):
    """Frozen as a baseline, today's contracts refuse a removed field, a changed type and a removed RPC."""
    baseline = tmp_path / "today.txtpb"
    frozen = buf("build", DESCRIPTORS, "--exclude-source-info", "-o", baseline, cache=tmp_path)
    assert frozen.returncode == 0, frozen.stderr
    changed = descriptor_pb2.FileDescriptorSet()
    changed.CopyFrom(descriptors)
    change(changed)
    file = tmp_path / "changed.binpb"
    file.write_bytes(changed.SerializeToString())
    done = buf("breaking", file, "--config", CONFIG, "--against", baseline, cache=tmp_path)
    assert done.returncode != 0
    assert "quire/inference/v1" in done.stdout
    unchanged = buf("breaking", DESCRIPTORS, "--config", CONFIG, "--against", baseline, cache=tmp_path)
    assert unchanged.returncode == 0, unchanged.stdout
