"""What the worker can be told."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from quire_servicekit.settings import ServiceSettings


class WorkerSettings(ServiceSettings):
    """Weights, the KV-block pool and the kernels of one device."""

    service: ClassVar[str] = "worker"

    listen: str = Field("127.0.0.1:8084", description="Address of the gRPC server: host:port or unix:/path.")
    model: Path | None = Field(
        None, description="Model to load at once: a .gguf file or a folder with config.json and safetensors."
    )
    profile_dir: Path | None = Field(
        None, description="Folder for recorded profiles (StartProfile); unset: recording is refused."
    )
    served_model_name: str = Field("", description="Name that clients use; empty: made from the path.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Type of weights and activations; auto: float32 on a CPU, bfloat16 on a GPU."
    )
    quantization: Literal["auto", "none", "fp8"] = Field(
        "auto",
        description="Weights of the layers. auto: as the checkpoint has them; none: an fp8 checkpoint is expanded; "
        "fp8: wider weights are rounded to e4m3 with a scale for each row (a CPU computes with the rounded values).",
    )
    kv_cache_dtype: Literal["auto", "fp8"] = Field(
        "auto",
        description="Keys and values in the pool. auto: as the activations; fp8: e4m3, with the checkpoint's scales "
        "or 1 (GPU only).",
    )
    device: str = Field("cpu", description="cpu, cuda or cuda:N.")
    num_threads: int = Field(0, ge=0, description="Threads of the CPU backend; 0: one per core.")
    attention: str = Field(
        "auto", description="Attention backend: auto, cpu, triton, torch, or one that is installed."
    )
    load_format: Literal["auto", "dummy"] = Field(
        "auto",
        description="dummy: random weights of the shape that the folder's config.json names, for measuring speed.",
    )
    logprobs_mode: Literal["raw", "processed"] = Field(
        "raw",
        description="Log-probabilities of sampled tokens: of the model's raw logits, or of what the token is drawn "
        "from, after biases, penalties, masks, temperature and filters (CPU only). A prompt's are always raw.",
    )
    task: Literal["auto", "embed", "all"] = Field(
        "auto",
        description="What the model is served for. auto: text of a generative model, vectors of an encoder; embed: "
        "vectors alone; all: both, of a generative model (CPU only).",
    )
    pooling: Literal["auto", "mean", "cls", "last"] = Field(
        "auto",
        description="Which hidden states make an embedding; auto: as the model's files say, else mean of an encoder "
        "and last of a generative model.",
    )
    pool_memory_bytes: int = Field(
        0, ge=0, description="What the block pool may take; 0: a share of what is free."
    )

    @field_validator("model")
    @classmethod
    def _absolute(cls, model: Path | None) -> Path | None:
        """Relative to where the worker was started, and there."""
        if model is None:
            return None
        if not model.exists():
            raise ValueError("no such file or folder")
        return model.absolute()

    @model_validator(mode="after")
    def _check_logprobs_mode(self) -> WorkerSettings:
        if self.logprobs_mode == "processed" and self.device != "cpu":
            raise ValueError("logprobs_mode: processed is served on the CPU only")
        return self
