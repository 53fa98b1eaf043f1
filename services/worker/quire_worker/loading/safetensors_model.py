"""A Hugging Face folder: config.json, generation_config.json and safetensors, in one file or in shards."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open

from quire_kernels.linear.rows import WeightRows
from quire_worker.loading.fp8 import Fp8Rows
from quire_worker.loading.source import ModelFiles

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_KINDS: Final = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def open_folder(path: Path) -> ModelFiles:
    """Open a folder. FileNotFoundError or ValueError names the file that is missing or wrong."""
    config = _read_json(path / "config.json")
    generation = path / "generation_config.json"
    shards = _shards(path)
    return ModelFiles(
        path=str(path),
        config=config,
        generation_config=_read_json(generation) if generation.exists() else {},
        source=SafetensorsSource(shards),
        identity=tuple((shard.name, shard.stat().st_size) for shard in shards),
    )


def _read_json(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {type(value).__name__}, not an object")
    return value


def _shards(path: Path) -> list[Path]:
    if (path / _INDEX).exists():
        names = sorted(set(_read_json(path / _INDEX)["weight_map"].values()))
        shards = [path / name for name in names]
    else:
        shards = [path / _SINGLE]
    for shard in shards:
        if not shard.exists():
            raise FileNotFoundError(f"{shard} does not exist")
    return shards


class SafetensorsSource:
    """The tensors of all shards. Files stay mapped; a tensor is read when it is asked for."""

    def __init__(self, shards: list[Path]) -> None:
        self._home: dict[str, Any] = {}
        self.total_bytes = sum(shard.stat().st_size for shard in shards)
        for shard in shards:
            handle = safe_open(str(shard), framework="pt", device="cpu")
            self._home.update(dict.fromkeys(handle.keys(), handle))

    def names(self) -> Iterable[str]:
        """Names of the tensors."""
        return self._home

    def num_bytes(self, name: str) -> int:
        """Bytes of a tensor."""
        view = self._home[name].get_slice(name)
        size = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1}.get(view.get_dtype(), 0)
        return size * int(np.prod(view.get_shape(), dtype=np.int64))

    def matrix(self, name: str) -> WeightRows:
        """See TensorSource. fp8 comes without its scales: see loading/fp8.py."""
        if self._home[name].get_slice(name).get_dtype() == "F8_E4M3":
            bits = self._home[name].get_tensor(name).contiguous().view(torch.uint8).numpy()
            return Fp8Rows(bits, np.ones(len(bits), dtype=np.float32))
        tensor = self._tensor(name)
        kind = _KINDS[tensor.dtype]
        data = tensor.numpy() if kind == "f32" else tensor.view(torch.int16).numpy().view(np.uint16)
        return WeightRows(kind, tensor.shape[-1], data)

    def vector(self, name: str) -> NDArray[np.float32]:
        """See TensorSource."""
        return self._tensor(name).float().numpy()

    def _tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._home[name].get_tensor(name)
        if tensor.dtype not in _KINDS:
            raise ValueError(f"tensor {name} is {tensor.dtype}; {sorted(map(str, _KINDS))} are read")
        return tensor.contiguous()
