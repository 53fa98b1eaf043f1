"""Generate Python stubs and the descriptor set from protos/quire/**/*.proto.

One job: turn the contracts into `gen/`. Used by the wheel's build hook and by `make protos`; knows no service.

`gen/quire/<domain>/v1/` gets `*_pb2.py`, `*_pb2.pyi`, `*_pb2_grpc.py`, `*_pb2_grpc.pyi` and `py.typed`. `quire` itself
stays a namespace without `__init__.py`, so that nothing can hide a sibling domain. `gen/quire/descriptors.binpb` holds
every contract with its imports, the google.rpc error details (Envoy renders errors with them) and the comments.
"""

from __future__ import annotations

import importlib.resources
import shutil
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
DESCRIPTORS = "quire/descriptors.binpb"

# Compiled into the descriptor set beside our own files: Envoy's transcoder answers an empty body when the types of
# an error's details are missing from it.
GOOGLE_PROTOS = (
    "google/api/annotations.proto",
    "google/api/httpbody.proto",
    "google/rpc/status.proto",
    "google/rpc/error_details.proto",
)


def google_include() -> Path:
    """The folder that holds google/api and google/rpc: googleapis-common-protos' install folder."""
    import google.rpc.status_pb2

    return Path(google.rpc.status_pb2.__file__).resolve().parents[2]


def contract_files(root: Path) -> list[str]:
    """Every contract, as paths relative to `root`, sorted, so that the output is reproducible."""
    return sorted(str(path.relative_to(root)) for path in (root / "quire").glob("**/*.proto"))


def generate(root: Path = ROOT) -> list[str]:
    """Write `root`/gen anew and return the contracts compiled; an empty list when there is none yet.

    The old folder is replaced only after the new one is whole: a contract that does not compile leaves the last good
    stubs in place. Raises RuntimeError with protoc's exit code (protoc has printed why).
    """
    target = root / "gen"
    files = contract_files(root)
    if not files:
        (target / "quire").mkdir(parents=True, exist_ok=True)
        return []
    with tempfile.TemporaryDirectory(dir=root, prefix=".gen-") as scratch:
        out = Path(scratch) / "gen"
        (out / "quire").mkdir(parents=True)
        _run_protoc(root, out, files)
        _write_grpc_types(out, files)
        for folder in {(out / file).parent for file in files}:
            (folder / "py.typed").touch()
        _replace(target, out)
    return files


def _run_protoc(root: Path, out: Path, files: list[str]) -> None:
    """Compile `files` of `root` into `out`: messages, stubs and the descriptor set."""
    from grpc_tools import protoc

    well_known = str(importlib.resources.files("grpc_tools") / "_proto")
    includes = [f"-I{root}", f"-I{google_include()}", f"-I{well_known}"]
    python = [f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}"]
    descriptors = ["--include_imports", "--include_source_info", f"--descriptor_set_out={out / DESCRIPTORS}"]
    for arguments in ([*python, *files], [*descriptors, *files, *GOOGLE_PROTOS]):
        code = protoc.main(["protoc", *includes, *arguments])
        if code != 0:
            raise RuntimeError(f"protoc failed with exit code {code}")


def _replace(target: Path, new: Path) -> None:
    """Put the folder `new` in the place of `target`."""
    old = new.parent / "old"
    if target.exists():
        target.rename(old)
    new.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _write_grpc_types(out: Path, files: list[str]) -> None:
    """Write a `_pb2_grpc.pyi` for each file with a service: protoc has types for messages only.

    The types are grpc.aio's, since every service and client here is asyncio.
    """
    from google.protobuf import descriptor_pb2

    descriptor_set = descriptor_pb2.FileDescriptorSet.FromString((out / DESCRIPTORS).read_bytes())
    modules = {
        f".{file.package}.{message.name}": _module_of(file.name)
        for file in descriptor_set.file
        for message in file.message_type
    }
    for file in descriptor_set.file:
        if file.name in files:
            text = _grpc_types(file, modules)
            (out / file.name).with_name(Path(file.name).stem + "_pb2_grpc.pyi").write_text(text)


def _module_of(proto: str) -> str:
    return proto.removesuffix(".proto").replace("/", ".") + "_pb2"


def _grpc_types(file: object, modules: dict[str, str]) -> str:
    """The stub file of one contract; `file` is its FileDescriptorProto."""

    def python(message: str) -> str:
        return f"{modules[message]}.{message.rsplit('.', 1)[1]}"

    lines: list[str] = []
    used: set[str] = set()
    for service in file.service:  # type: ignore[attr-defined]
        stub, servicer = [f"class {service.name}Stub:"], [f"class {service.name}Servicer:"]
        stub.append("    def __init__(self, channel: grpc.aio.Channel) -> None: ...")
        for method in service.method:
            used |= {modules[method.input_type], modules[method.output_type]}
            request, response = python(method.input_type), python(method.output_type)
            shape = ("Stream" if method.client_streaming else "Unary") + (
                "Stream" if method.server_streaming else "Unary"
            )
            stub.append(f"    {method.name}: grpc.aio.{shape}MultiCallable[{request}, {response}]")
            taken = f"AsyncIterator[{request}]" if method.client_streaming else request
            # A streaming handler yields its answers, or writes them with context.write and returns nothing.
            given = f"Awaitable[{response}]"
            if method.server_streaming:
                given = f"AsyncIterator[{response}] | Awaitable[None]"
            context = f"grpc.aio.ServicerContext[{request}, {response}]"
            servicer.append(
                f"    def {method.name}(self, request: {taken}, context: {context}) -> {given}: ..."
            )
        lines += ["", "", *stub, "", "", *servicer, "", ""]
        lines.append(
            f"def add_{service.name}Servicer_to_server(servicer: {service.name}Servicer, server: grpc.aio.Server)"
            " -> None: ..."
        )
    imports = ["from collections.abc import AsyncIterator, Awaitable", "", "import grpc.aio"] if lines else []
    return "\n".join([*imports, *(f"import {module}" for module in sorted(used)), *lines, ""])


if __name__ == "__main__":
    print(f"protos: {len(generate())} contracts compiled")
