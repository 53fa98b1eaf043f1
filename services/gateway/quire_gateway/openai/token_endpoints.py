"""The endpoints that run nothing: tokenize, detokenize, and the prompts that completions would run.

One job: bytes of a request in, a head and the bytes of its answer out, in vLLM's shapes. Knows no gRPC.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from quire_gateway.chat.call import validate_tools
from quire_gateway.chat.runner import ChatRunner
from quire_gateway.http_answer import JSON, Head, Pieces
from quire_gateway.models import ModelTask, ServedModel
from quire_gateway.openai.answers import error_pieces
from quire_gateway.openai.chat_request import ChatRequest
from quire_gateway.openai.completion_request import CompletionRequest
from quire_gateway.openai.parameters import parse as parse_completion
from quire_gateway.openai.token_requests import CHAT_NAMES, DetokenizeRequest, TokenizeRequest, parse
from quire_gateway.prompts import EncodedPrompt, Tokenizer, encode_prompts
from quire_gateway.requests import CallInfo, ChatPrompt, TextPrompt
from quire_servicekit.errors import InvalidRequest

Document = dict[str, Any]


class TokenEndpoints:
    """Serves them on a ChatRunner and the models' tokenizers."""

    def __init__(self, runner: ChatRunner, tokenizer_of: Callable[[ServedModel], Tokenizer]) -> None:
        self._runner, self._generator, self._tokenizer_of = runner, runner.generator, tokenizer_of

    def tokenize(self, body: bytes, call: CallInfo) -> Pieces:
        """POST /tokenize."""
        return self._answer(self._tokenize, body, call, "tokenize")

    def detokenize(self, body: bytes, call: CallInfo) -> Pieces:
        """POST /detokenize."""
        return self._answer(self._detokenize, body, call, "detokenize")

    def render_chat(self, body: bytes, call: CallInfo) -> Pieces:
        """POST /v1/chat/completions/render."""
        return self._answer(self._render_chat, body, call, "render_chat")

    def render_completion(self, body: bytes, call: CallInfo) -> Pieces:
        """POST /v1/completions/render."""
        return self._answer(self._render_completion, body, call, "render_completion")

    async def _answer(
        self,
        endpoint: Callable[[bytes], Awaitable[Document | list[Document]]],
        body: bytes,
        call: CallInfo,
        route: str,
    ) -> Pieces:
        try:
            with self._generator.reading(route, call):
                answer = orjson.dumps(await endpoint(body))
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer in its dialect
            for piece in error_pieces(error):
                yield piece
        else:
            yield Head(200, JSON)
            yield answer

    async def _tokenize(self, body: bytes) -> Document:
        request = parse(body, TokenizeRequest)
        model = self._generator.engines.model(request.model, None)
        tokenizer = self._tokenizer_of(model)
        token_ids = await self._token_ids(request, model, tokenizer)
        return {
            "count": len(token_ids),
            "max_model_len": model.max_model_len,
            "tokens": token_ids,
            "token_strs": _texts(token_ids, tokenizer) if request.return_token_strs else None,
        }

    async def _token_ids(
        self, request: TokenizeRequest, model: ServedModel, tokenizer: Tokenizer
    ) -> list[int]:
        if request.prompt is not None:
            prompt = TextPrompt(request.prompt, request.add_special_tokens is not False)
            return (await encode_prompts(tokenizer, [prompt], {}))[0].token_ids
        chat = await self._chat_prompt(request, model)
        rendered = (await encode_prompts(tokenizer, [chat], CHAT_NAMES))[0]
        if not request.add_special_tokens:
            return rendered.token_ids
        text = TextPrompt(rendered.text or "", add_special_tokens=True)
        return (await encode_prompts(tokenizer, [text], CHAT_NAMES))[0].token_ids

    async def _chat_prompt(self, request: TokenizeRequest, model: ServedModel) -> ChatPrompt:
        """The conversation as the model is given it."""
        call = request.to_call()
        self._generator.check_template(call.prompt)
        if ModelTask.GENERATE not in model.tasks:
            # Nothing answers there: the template gets what was written.
            validate_tools(call)
            return dataclasses.replace(call.prompt, tools=tuple(tool.definition() for tool in call.tools))
        prompt = (await self._runner.request(call, names=CHAT_NAMES)).prompt
        assert isinstance(prompt, ChatPrompt), "a chat is a conversation"
        return prompt

    async def _detokenize(self, body: bytes) -> Document:
        request = parse(body, DetokenizeRequest)
        model = self._generator.engines.model(request.model, None)
        for token_id in request.tokens:
            if not 0 <= token_id < model.vocab_size:
                raise InvalidRequest("tokens", f"token ids from 0 to {model.vocab_size - 1}", token_id)
        try:
            # With its special tokens a text makes the same tokens again.
            text = await self._tokenizer_of(model).decode(request.tokens, skip_special_tokens=False)
        except InvalidRequest as error:
            raise InvalidRequest("tokens", error.limit, error.value) from error
        return {"prompt": text}

    async def _render_chat(self, body: bytes) -> Document:
        request = parse_completion(body, ChatRequest)
        generation = await self._runner.request(request.to_call(), names=request.names)
        model, prompts = await self._generator.render([generation], names=request.names)
        return await self._rendered(model, prompts[0])

    async def _render_completion(self, body: bytes) -> list[Document]:
        request = parse_completion(body, CompletionRequest)
        model, prompts = await self._generator.render(request.to_generations(), names=request.names)
        return [await self._rendered(model, prompt) for prompt in prompts]

    async def _rendered(self, model: ServedModel, prompt: EncodedPrompt) -> Document:
        text = prompt.text
        if text is None:
            text = await self._generator.tokenizer.decode(prompt.token_ids, skip_special_tokens=False)
        return {"model": model.id, "token_ids": prompt.token_ids, "prompt": text}


def _texts(token_ids: list[int], tokenizer: Tokenizer) -> list[str]:
    """Each token's own text; bytes that are no whole characters become U+FFFD."""
    vocabulary = tokenizer.info.vocabulary if tokenizer.info is not None else ()
    return [
        vocabulary[token_id].decode("utf-8", "replace") if token_id < len(vocabulary) else ""
        for token_id in token_ids
    ]
