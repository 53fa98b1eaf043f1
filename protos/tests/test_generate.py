"""Generation of stubs: what comes out, and that a mistake in a contract breaks nothing that worked."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

PROTOS = Path(__file__).resolve().parents[1]

CONTRACT = """
syntax = "proto3";
package quire.sample.v1;
import "google/api/annotations.proto";
import "google/api/httpbody.proto";
// A question.
message AskRequest { string text = 1; }
// An answer.
message AskResponse { string text = 1; }
// Asks.
service Sample {
  // One answer.
  rpc Ask(AskRequest) returns (AskResponse);
  // Bytes.
  rpc Raw(google.api.HttpBody) returns (stream google.api.HttpBody) {
    option (google.api.http) = {post: "/v1/raw" body: "*"};
  }
}
"""


@pytest.fixture(scope="module")
def generator():
    """protos/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("quire_protos_generate", PROTOS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A protos folder with one contract."""
    file = tmp_path / "quire" / "sample" / "v1" / "sample_service.proto"
    file.parent.mkdir(parents=True)
    file.write_text(CONTRACT)
    return tmp_path


def test_stubs_types_and_descriptors_are_made(generator, root):
    """Messages, stubs and their types are there, and no __init__.py closes the namespace."""
    assert generator.generate(root) == ["quire/sample/v1/sample_service.proto"]
    made = {path.name for path in (root / "gen" / "quire" / "sample" / "v1").iterdir()}
    stem = "sample_service_pb2"
    assert made == {f"{stem}.py", f"{stem}.pyi", f"{stem}_grpc.py", f"{stem}_grpc.pyi", "py.typed"}
    assert not list((root / "gen").rglob("__init__.py"))


def test_descriptor_set_has_error_details_and_comments(generator, root):
    """Envoy finds the types of error details in the set, and tools find the comments."""
    generator.generate(root)
    content = (root / "gen" / "quire" / "descriptors.binpb").read_bytes()
    files = {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(content).file}
    assert {"google/rpc/error_details.proto", "google/rpc/status.proto", "google/api/httpbody.proto"} <= set(
        files
    )
    comments = [
        place.leading_comments
        for place in files["quire/sample/v1/sample_service.proto"].source_code_info.location
    ]
    assert " A question.\n" in comments


def test_types_of_a_stub_name_its_messages(generator, root):
    """The typed stub knows each method's kind and messages."""
    generator.generate(root)
    text = (root / "gen" / "quire" / "sample" / "v1" / "sample_service_pb2_grpc.pyi").read_text()
    assert "class SampleStub:" in text
    assert "Ask: grpc.aio.UnaryUnaryMultiCallable[" in text
    assert "Raw: grpc.aio.UnaryStreamMultiCallable[google.api.httpbody_pb2.HttpBody" in text


def test_a_contract_that_does_not_compile_leaves_the_last_stubs(generator, root, capfd):
    """A mistake fails the generation and keeps what was there."""
    generator.generate(root)
    (root / "quire" / "sample" / "v1" / "sample_service.proto").write_text("syntax = 'proto3'; message {")
    with pytest.raises(RuntimeError, match="protoc"):
        generator.generate(root)
    assert "sample_service.proto" in capfd.readouterr().err
    assert (root / "gen" / "quire" / "sample" / "v1" / "sample_service_pb2.py").exists()
    assert [path.name for path in root.iterdir() if path.name.startswith(".gen")] == []


def test_no_contract_is_no_failure(generator, tmp_path):
    """A tree without contracts can still be installed."""
    assert generator.generate(tmp_path) == []
    assert (tmp_path / "gen" / "quire").is_dir()


def test_removed_contract_leaves_no_stub(generator, root):
    """Stubs of a contract that is gone are gone too."""
    generator.generate(root)
    other = root / "quire" / "other" / "v1" / "other.proto"
    other.parent.mkdir(parents=True)
    (root / "quire" / "sample" / "v1" / "sample_service.proto").unlink()
    other.write_text('syntax = "proto3"; package quire.other.v1; message A {}')
    generator.generate(root)
    assert not (root / "gen" / "quire" / "sample").exists()
