"""A GGUF model in Hugging Face terms: metadata to config, tensor names, and rows put back in Hugging Face's order.

GGUF stores the query and key rows of Llama-family files interleaved by pairs, for its own rotary embedding; the
decoder rotates two halves, so those rows are put back. Weights in Q4_1 and Q8_0 stay as they are; other quantised
types are expanded to float32.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from quire_kernels.linear.rows import WeightRows
from quire_worker.loading.gguf_file import GgufFile, GgufTensor
from quire_worker.loading.source import ModelFiles

# GGUF architecture -> (Hugging Face architecture, whether query and key rows are interleaved).
_ARCHITECTURES: Final[dict[str, tuple[str, bool]]] = {
    "llama": ("LlamaForCausalLM", True),
    "qwen2": ("Qwen2ForCausalLM", False),
    "qwen3": ("Qwen3ForCausalLM", False),
}
_GLOBAL_NAMES: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES: Final = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_ROPE_FACTORS = "rope_freqs.weight"
_KEPT_KINDS: Final = {"Q8_0": "q8_0", "Q4_1": "q4_1"}


def open_gguf(path: Path) -> ModelFiles:
    """Open a .gguf file. ValueError names an architecture, tensor or setting that isn't understood."""
    file = GgufFile(path)
    architecture = str(file.metadata.get("general.architecture", ""))
    if architecture not in _ARCHITECTURES:
        raise ValueError(f"{path}: GGUF architecture {architecture!r} is none of {sorted(_ARCHITECTURES)}")
    config = _config(file, architecture)
    source = GgufSource(file, config, interleaved=_ARCHITECTURES[architecture][1])
    return ModelFiles(
        path=str(path),
        config=config,
        generation_config={},
        source=source,
        identity=((path.name, path.stat().st_size),),
    )


def _config(file: GgufFile, architecture: str) -> dict[str, Any]:
    metadata = file.metadata

    def need(key: str) -> Any:
        value = metadata.get(f"{architecture}.{key}")
        if value is None:
            raise ValueError(f"{file.path}: the metadata lacks {architecture}.{key}")
        return value

    heads, hidden = int(need("attention.head_count")), int(need("embedding_length"))
    head_dim = int(metadata.get(f"{architecture}.attention.key_length", hidden // heads))
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[architecture][0]],
        "num_hidden_layers": int(need("block_count")),
        "hidden_size": hidden,
        "intermediate_size": int(need("feed_forward_length")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(metadata.get(f"{architecture}.attention.head_count_kv", heads)),
        "head_dim": head_dim,
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "max_position_embeddings": int(need("context_length")),
        "rms_norm_eps": float(need("attention.layer_norm_rms_epsilon")),
        "rope_theta": float(metadata.get(f"{architecture}.rope.freq_base", 10000.0)),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "eos_token_id": _eos_ids(metadata),
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
    }
    rotated = int(metadata.get(f"{architecture}.rope.dimension_count", head_dim))
    if rotated != head_dim:
        config["partial_rotary_factor"] = rotated / head_dim
    if metadata.get(f"{architecture}.attention.sliding_window"):
        config["sliding_window"] = int(metadata[f"{architecture}.attention.sliding_window"])
    config["rope_scaling"] = _rope_scaling(file, architecture)
    return config


def _eos_ids(metadata: dict[str, Any]) -> list[int]:
    keys = ("eos", "eot", "eom")
    ids = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in keys]
    return list(dict.fromkeys(int(token) for token in ids if token is not None))


def _rope_scaling(file: GgufFile, architecture: str) -> dict[str, Any] | None:
    kind = file.metadata.get(f"{architecture}.rope.scaling.type", "none")
    if _ROPE_FACTORS in file.tensors:
        return {"rope_type": "factors", "factors": _float32(file.tensors[_ROPE_FACTORS]).reshape(-1).tolist()}
    if kind == "none":
        return None
    return {"rope_type": kind, "factor": float(file.metadata.get(f"{architecture}.rope.scaling.factor", 1.0))}


class GgufSource:
    """The tensors of a GGUF file under their Hugging Face names."""

    def __init__(self, file: GgufFile, config: dict[str, Any], *, interleaved: bool) -> None:
        self._tensors = {
            _hugging_face_name(name): tensor for name, tensor in file.tensors.items() if name != _ROPE_FACTORS
        }
        self._heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        self._interleaved = interleaved

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.num_bytes for tensor in self._tensors.values())

    def names(self) -> Iterable[str]:
        """Hugging Face names of the tensors."""
        return self._tensors

    def num_bytes(self, name: str) -> int:
        """Bytes of a tensor."""
        return self._tensors[name].num_bytes

    def matrix(self, name: str) -> WeightRows:
        """See TensorSource."""
        tensor = self._tensors[name]
        rows = _rows(tensor)
        order = self._order(name, rows.num_outputs)
        return rows if order is None else rows.take(order)

    def vector(self, name: str) -> NDArray[np.float32]:
        """See TensorSource."""
        values = _float32(self._tensors[name]).reshape(-1)
        order = self._order(name, len(values))
        return values if order is None else values[order]

    def _order(self, name: str, num_rows: int) -> NDArray[np.int64] | None:
        """For interleaved query and key rows: which row of the file comes where."""
        projection = name.split(".")[-2]
        if not self._interleaved or projection not in self._heads:
            return None
        heads = self._heads[projection]
        return np.arange(num_rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _hugging_face_name(name: str) -> str:
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _LAYER_NAMES:
        raise ValueError(f"unknown tensor in the GGUF file: {name}")
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"


def _rows(tensor: GgufTensor) -> WeightRows:
    inputs = tensor.shape[-1]
    if tensor.type_name in _KEPT_KINDS:
        return WeightRows(_KEPT_KINDS[tensor.type_name], inputs, tensor.data)
    if tensor.type_name in ("F16", "BF16"):
        return WeightRows(tensor.type_name.lower(), inputs, tensor.data.view(np.uint16))
    return WeightRows("f32", inputs, _float32(tensor).reshape(-1, inputs))


def _float32(tensor: GgufTensor) -> NDArray[np.float32]:
    if tensor.type_name == "F32":
        return tensor.data.view(np.float32)
    # Rare types only: the package takes half a second to import.
    import gguf

    kind = gguf.GGMLQuantizationType[tensor.type_name]
    return np.ascontiguousarray(gguf.quants.dequantize(tensor.data, kind), dtype=np.float32)
