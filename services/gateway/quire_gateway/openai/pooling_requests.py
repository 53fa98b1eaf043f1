"""Bodies of the endpoints whose answer is made of vectors: embeddings, score, rerank, classify, pooling.

One job: their fields, and how they become domain data. Ranges are checked once, by the domain.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar

from pydantic import Field

from quire_gateway.models import ModelTask, ServedModel
from quire_gateway.openai.chat_request import Message
from quire_gateway.pooling.call import PoolingCall, PoolingInput
from quire_gateway.pooling.params import PoolingTask
from quire_gateway.pooling.scoring import ScoreCall
from quire_gateway.request_body import Names, StrictModel, parse_body
from quire_gateway.requests import ChatPrompt, TextPrompt, TokenPrompt
from quire_servicekit.errors import InvalidRequest

Input = str | list[str] | list[int] | list[list[int]]

NAMES: Final = Names(
    harmless=frozenset({"user", "metadata", "request_id"}),
    neutral={
        "truncation_side": ("right",),
        "embed_dtype": ("float32",),
        "endianness": ("native", "little"),
        "embedding_types": (["float"],),
        "activation": (),
        "softmax": (),
        "mm_processor_kwargs": (),
        "cache_salt_mode": (),
    },
    unsupported=frozenset(
        {"activation", "softmax", "mm_processor_kwargs", "images", "rank_fields", "chat_template"}
    ),
)

M = TypeVar("M", bound=StrictModel)


def parse(body: bytes, model: type[M]) -> M:
    """The request in `body`. Raises InvalidRequest or Unsupported, naming the first parameter that is wrong."""
    return parse_body(body, model, NAMES)


class CommonRequest(StrictModel):
    """Fields of all of them. truncate_prompt_tokens: -1 (or 0) cuts to the model's limit."""

    model: str = ""
    truncate_prompt_tokens: int | None = None
    priority: int = 0
    #: Two names of one thing: scale embeddings to length 1, classes through the activation.
    normalize: bool | None = None
    use_activation: bool | None = None

    @property
    def truncation(self) -> int | None:
        """Tokens that an input is cut to; 0: the model's limit; None: not at all."""
        return 0 if self.truncate_prompt_tokens == -1 else self.truncate_prompt_tokens

    @property
    def scaling(self) -> bool | None:
        """Whichever of the two names was used."""
        if None not in (self.normalize, self.use_activation) and self.normalize != self.use_activation:
            raise InvalidRequest("use_activation", f"{self.normalize}, as normalize is", self.use_activation)
        return self.use_activation if self.normalize is None else self.normalize


class InputRequest(CommonRequest):
    """Inputs to make a vector of each: `input`, or one conversation as `messages`."""

    input: Input | None = None
    messages: list[Message] | None = None
    encoding_format: Literal["float", "base64"] = "float"
    add_special_tokens: bool = True
    cache_salt: str = ""

    def call(self, wants: ModelTask, task: PoolingTask, num_dimensions: int | None = None) -> PoolingCall:
        """The request in domain words."""
        return PoolingCall(
            inputs=self._inputs(),
            wants=wants,
            name_of=self._name_of,
            model=self.model,
            task=task,
            num_dimensions=num_dimensions,
            normalize=self.scaling,
            truncate_tokens=self.truncation,
            priority=self.priority,
            cache_salt=self.cache_salt,
        )

    def _inputs(self) -> tuple[PoolingInput, ...]:
        if (self.input is None) == (self.messages is None):
            raise InvalidRequest("input", message="exactly one of input and messages is needed")
        if self.messages is not None:
            if not self.messages:
                raise InvalidRequest("messages", "at least one message", 0)
            rendered = tuple(message.render(index) for index, message in enumerate(self.messages))
            return (ChatPrompt(rendered, add_generation_prompt=False),)
        found = self.input
        items: list[Any] = found if isinstance(found, list) and not _is_tokens(found) else [found]
        if found == []:
            raise InvalidRequest("input", message="input must not be empty")
        return tuple(self._input(index, item) for index, item in enumerate(items))

    def _input(self, index: int, item: str | list[int]) -> PoolingInput:
        if not item:
            name = self._name_of(index)
            raise InvalidRequest(name, message=f"{name} must not be empty")
        if isinstance(item, str):
            return TextPrompt(item, self.add_special_tokens)
        return TokenPrompt(tuple(item))

    def _name_of(self, index: int) -> str:
        if self.messages is not None:
            return "messages"
        is_list = isinstance(self.input, list) and not _is_tokens(self.input)
        return f"input[{index}]" if is_list else "input"


class EmbeddingRequest(InputRequest):
    """POST /v1/embeddings."""

    dimensions: int | None = None


class ClassifyRequest(InputRequest):
    """POST /classify."""


class PoolingRequest(InputRequest):
    """POST /pooling. task: unset, an embedding of the whole text, or classes of a model that makes no embeddings."""

    task: Literal["embed", "token_embed", "classify"] | None = None
    dimensions: int | None = None

    @property
    def wants(self) -> ModelTask | None:
        """What the model must be able to; None: any vector will do."""
        if self.task is None:
            return None
        # A cross-encoder's score is the value of its only class, so classes are no condition.
        return None if self.task == "classify" else ModelTask.EMBED

    def task_of(self, model: ServedModel) -> tuple[ModelTask, PoolingTask]:
        """What is to be made by that model, and what it must be able to for it."""
        embeds = ModelTask.EMBED in model.tasks
        task = PoolingTask(self.task or ("embed" if embeds else "classify"))
        if task is not PoolingTask.CLASSIFY:
            return ModelTask.EMBED, task
        is_cross_encoder = ModelTask.SCORE in model.tasks and not embeds
        return ModelTask.SCORE if is_cross_encoder else ModelTask.CLASSIFY, task


Texts = str | list[str]


class ScoreRequest(CommonRequest):
    """POST /v1/score: text_1 and text_2, or under their newer names queries and documents."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None

    def call(self) -> ScoreCall:
        """The request in domain words."""
        first_name, firsts = self._one_of("text_1", "queries")
        second_name, seconds = self._one_of("text_2", "documents")
        return ScoreCall(
            firsts=_texts(firsts),
            seconds=_texts(seconds),
            first_name=first_name,
            second_name=second_name,
            model=self.model,
            normalize=self.scaling,
            truncate_tokens=self.truncation,
            priority=self.priority,
        )

    def _one_of(self, *names: str) -> tuple[str, Texts]:
        given = [(name, value) for name in names if (value := getattr(self, name)) is not None]
        if len(given) != 1:
            raise InvalidRequest(names[0], message=f"exactly one of {' and '.join(names)} is needed")
        return given[0]


class Document(StrictModel):
    """A document as an object."""

    text: str


class RerankRequest(CommonRequest):
    """POST /v1/rerank in Jina's and Cohere's form. max_tokens_per_doc: longer documents are cut."""

    query: str
    documents: list[str | Document] = Field(min_length=1)
    top_n: int | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: int | None = None

    @property
    def texts(self) -> list[str]:
        """The documents' texts."""
        return [item if isinstance(item, str) else item.text for item in self.documents]

    def call(self) -> ScoreCall:
        """The request in domain words."""
        if self.top_n is not None and self.top_n < 1:
            raise InvalidRequest("top_n", "at least 1", self.top_n)
        is_cohere = self.max_tokens_per_doc is not None
        return ScoreCall(
            firsts=(self.query,),
            seconds=tuple(self.texts),
            first_name="query",
            second_name="documents",
            model=self.model,
            normalize=self.scaling,
            truncate_tokens=self.max_tokens_per_doc if is_cohere else self.truncation,
            truncate_name="max_tokens_per_doc" if is_cohere else "truncate_prompt_tokens",
            priority=self.priority,
        )


def _texts(value: Texts) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _is_tokens(value: Any) -> bool:
    """Whether a list is one input of token ids."""
    return bool(value) and isinstance(value[0], int)
