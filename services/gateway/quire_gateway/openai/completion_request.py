"""The body of POST /v1/completions, and what it asks for in domain words."""

from __future__ import annotations

from quire_gateway.openai.options import CommonRequest, common_options
from quire_gateway.requests import MAX_SEQUENCES, GenerationRequest, TextPrompt, TokenPrompt
from quire_gateway.sequences import WakeOn
from quire_servicekit.errors import InvalidRequest

#: OpenAI's default for this endpoint; chat has none.
DEFAULT_MAX_TOKENS = 16


class CompletionRequest(CommonRequest):
    """Completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = None
    echo: bool = False
    add_special_tokens: bool = True

    @property
    def names(self) -> dict[str, str]:
        """What this dialect calls the domain's fields."""
        return {
            "prompt": "prompt",
            "num_logprobs": "logprobs",
            "num_prompt_logprobs": "prompt_logprobs",
            **self.constraint_names,
        }

    @property
    def has_logprobs(self) -> bool:
        """Whether choices carry log-probabilities."""
        return self.logprobs is not None or bool(self.logprob_token_ids)

    @property
    def is_echo_scored(self) -> bool:
        """Whether the echoed prompt has them too."""
        return self.echo and self.has_logprobs

    @property
    def is_prompt_only(self) -> bool:
        """Nothing but the prompt is wanted back: it is scored, and what must be generated for that is left out."""
        return self.echo and self.max_tokens == 0

    def prompts(self) -> list[TextPrompt] | list[TokenPrompt]:
        """The prompts, one or more. Raises InvalidRequest for none, too many, or negative ids."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [TextPrompt(prompt, self.add_special_tokens)]
        if not prompt:
            raise InvalidRequest("prompt", "not empty", "[]")
        if isinstance(prompt[0], int):
            prompt = [prompt]
        if len(prompt) * max(1, self.n) > MAX_SEQUENCES:
            raise InvalidRequest("prompt", f"prompts times n at most {MAX_SEQUENCES}", len(prompt) * self.n)
        if isinstance(prompt[0], str):
            return [TextPrompt(text, self.add_special_tokens) for text in prompt if isinstance(text, str)]
        lists = [tuple(ids) for ids in prompt if isinstance(ids, list)]
        for token_id in (token_id for ids in lists for token_id in ids):
            if token_id < 0:
                raise InvalidRequest("prompt", "token ids of at least 0", token_id)
        return [TokenPrompt(ids) for ids in lists]

    def to_generations(self) -> list[GenerationRequest]:
        """The request in domain words, one per prompt."""
        limit = self.max_tokens if self.max_tokens is not None else DEFAULT_MAX_TOKENS
        if self.max_tokens is None and self.min_tokens is not None:
            limit = max(limit, self.min_tokens)
        if self.is_prompt_only:
            limit = 1
        sampling = self.sampling(
            num_logprobs=self.logprobs,
            max_tokens=limit,
            num_prompt_logprobs=(self.logprobs or 0) if self.is_echo_scored else None,
        )
        options = common_options(self)
        wake_on = WakeOn.TEXT if self.stream else WakeOn.END
        return [
            GenerationRequest(prompt=prompt, sampling=sampling, wake_on=wake_on, **options)
            for prompt in self.prompts()
        ]
