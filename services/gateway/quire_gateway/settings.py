"""What the gateway can be told."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from quire_gateway.detokenizing import DetokenizeMode
from quire_gateway.mcp_servers import McpLimits, McpServer, McpServers
from quire_gateway.parsing.registry import AUTO, FormatSettings
from quire_gateway.rules import RequestRules
from quire_gateway.sampling import MAX_LOGPROBS, sampling_defaults
from quire_gateway.vocabularies import parse_engine_tokenizers
from quire_servicekit.errors import InvalidRequest
from quire_servicekit.settings import CommaList, ServiceSettings


class GatewaySettings(ServiceSettings):
    """The public API of a suite."""

    service: ClassVar[str] = "gateway"

    listen: str = Field("127.0.0.1:8081", description="Address of the gRPC server: host:port or unix:/path.")
    tokenizers: CommaList = Field(
        ("127.0.0.1:8082",), min_length=1, description="Addresses of the tokenizer's replicas, with commas."
    )
    schedulers: CommaList = Field(
        ("127.0.0.1:8083",), min_length=1, description="Addresses of the schedulers, with commas."
    )
    engine_tokenizers: CommaList = Field(
        (),
        description="Tokenizers of engines with a vocabulary of their own, as scheduler=tokenizer, with commas; the "
        "others share `tokenizers`.",
    )
    gateway_id: str = Field(
        default_factory=socket.gethostname,
        description="Name of this process in the schedulers' logs and metrics.",
    )
    max_in_flight: int = Field(
        4096, ge=1, description="Sequences under way at most; beyond it clients get 429."
    )
    max_in_flight_per_tenant: int | None = Field(
        None, ge=1, description="The same for each tenant (metadata x-client-id); unset: no such limit."
    )
    accept_grace_s: float = Field(
        0.2,
        ge=0,
        description="How long a stream's first byte waits for the engine to take or refuse the request.",
    )
    resume_timeout_s: float = Field(
        30.0,
        ge=0,
        description="How long a request waits for an engine or tokenizer when there is none, in seconds.",
    )
    tokenize_timeout_s: float = Field(
        60.0, gt=0, description="How long one tokenizer replica may take for one call, in seconds."
    )
    detokenize: DetokenizeMode = Field(
        "auto",
        description="Who joins text: gateway (vocabularies of bytes only), tokenizer, or auto (the gateway if it can).",
    )
    unready_after_s: float = Field(
        2.0, ge=0, description="How long an engine or tokenizer may be gone before this reports NOT_SERVING."
    )
    max_logprobs: int = Field(
        MAX_LOGPROBS,
        ge=-1,
        description="Alternatives per token whose log-probabilities a request may ask for; -1: the whole vocabulary.",
    )
    generation_config: Literal["model", "none"] = Field(
        "model", description="Whether the model's generation_config gives defaults for sampling parameters."
    )
    default_sampling: CommaList = Field(
        (),
        description="Sampling defaults that go before the model's: name=value pairs with commas, for example "
        "temperature=0.6,top_p=0.95.",
    )
    trust_request_chat_template: bool = Field(
        False,
        description="Requests may bring a chat template of their own; it runs in the tokenizer's sandbox.",
    )
    management_clients: CommaList = Field(
        (),
        description="Clients (names of the edge's API keys) that may operate the suite: drain, pause, abort, ... Where "
        "the edge has no keys, everyone may.",
    )
    tool_parser: str = Field(
        AUTO,
        description="How the model writes calls of tools: hermes, llama3_json, mistral, pythonic, qwen3_xml, deepseek, "
        "harmony, a plug-in's name, none, or auto (by its chat template).",
    )
    reasoning_parser: str = Field(
        AUTO,
        description="How the model marks its reasoning: qwen3, deepseek_r1, gpt_oss, tags:START|END, a plug-in's name, "
        "none, or auto (by its chat template).",
    )
    max_stored_responses: int = Field(
        0,
        ge=0,
        description="Responses (/v1/responses) kept for clients that come back to them, the oldest goes first; 0: "
        "none, and `store`, `background` and `previous_response_id` are refused.",
    )
    max_stored_response_bytes: int = Field(
        256 << 20, ge=1 << 10, description="Size of those together, in bytes."
    )
    mcp_servers: dict[str, McpServer] = Field(
        default_factory=dict,
        description="MCP servers whose tools /v1/responses may use, by the label that requests name: a url (with "
        "headers) or a command (with env).",
    )
    mcp_allowed_urls: CommaList = Field(
        (), description="Addresses of MCP servers that requests may name themselves, with commas."
    )
    mcp_connect_timeout_s: float = Field(
        10.0, gt=0, description="How long an MCP server may take to connect and list its tools, in seconds."
    )
    mcp_call_timeout_s: float = Field(
        60.0, gt=0, description="How long one call of its tools may take, in seconds."
    )
    mcp_max_result_bytes: int = Field(
        256 << 10, ge=1, description="What is longer of a tool's result is cut, in bytes."
    )
    reasoning_content_alias: bool = Field(
        False,
        description="Chat completions give the reasoning under its old name reasoning_content too.",
    )
    batch_folder: Path | None = Field(
        None,
        description="Folder for uploaded files and batch jobs, used by one gateway at a time; unset: both are refused.",
    )
    batch_concurrency: int = Field(8, ge=1, description="Requests of batch jobs under way at most.")
    batch_priority: int = Field(
        100,
        description="Priority of a batch's requests that name none; greater is later, where the scheduler's policy "
        "looks at it.",
    )
    max_file_bytes: int = Field(4 << 30, ge=1, description="Size of all uploaded files together, in bytes.")
    coalesce_duty: float = Field(
        1.0,
        ge=0,
        description="Seconds that streams wait per second of writing, so that messages grow under load.",
    )
    coalesce_max_wait_ms: float = Field(20.0, ge=0, description="That wait is never longer, milliseconds.")

    @field_validator("default_sampling")
    @classmethod
    def _check_default_sampling(cls, pairs: tuple[str, ...]) -> tuple[str, ...]:
        try:
            sampling_defaults(pairs)
        except InvalidRequest as error:
            raise ValueError(str(error)) from error
        return pairs

    @model_validator(mode="after")
    def _check_formats(self) -> Self:
        self.formats()
        return self

    def formats(self) -> FormatSettings:
        """What they say about the model's formats."""
        return FormatSettings(self.tool_parser, self.reasoning_parser)

    @model_validator(mode="after")
    def _check_engine_tokenizers(self) -> GatewaySettings:
        for scheduler in parse_engine_tokenizers(self.engine_tokenizers):
            if scheduler not in self.schedulers:
                raise ValueError(f"engine_tokenizers names {scheduler}, which is none of the schedulers")
        return self

    def mcp(self) -> McpServers:
        """What they say about MCP servers. Raises ValueError where the package for them is not installed."""
        limits = McpLimits(
            connect_timeout_s=self.mcp_connect_timeout_s,
            call_timeout_s=self.mcp_call_timeout_s,
            max_result_bytes=self.mcp_max_result_bytes,
        )
        return McpServers(self.mcp_servers, self.mcp_allowed_urls, limits)

    @model_validator(mode="after")
    def _check_mcp(self) -> Self:
        self.mcp()
        return self

    def rules(self) -> RequestRules:
        """What they say about requests."""
        return RequestRules(
            max_logprobs=self.max_logprobs,
            default_sampling=sampling_defaults(self.default_sampling),
            uses_generation_config=self.generation_config == "model",
            trusts_chat_template=self.trust_request_chat_template,
        )
