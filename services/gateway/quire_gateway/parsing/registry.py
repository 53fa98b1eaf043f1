"""Finds tool and reasoning formats by name, or by the model's chat template.

One job: names to formats. Built-in ones, and plug-ins of the entry-point groups `quire.tool_parsers` and
`quire.reasoning_parsers`; an entry loads a class without constructor arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Final

from quire_gateway.parsing.harmony import CHANNEL
from quire_gateway.parsing.reasoning.base import ReasoningFormat
from quire_gateway.parsing.reasoning.gpt_oss import GptOssFormat
from quire_gateway.parsing.reasoning.tags import DeepSeekR1Format, Qwen3Format, TagFormat
from quire_gateway.parsing.tools import deepseek, hermes, llama3_json, mistral, qwen3_xml
from quire_gateway.parsing.tools.base import ToolFormat
from quire_gateway.parsing.tools.deepseek import DeepSeekFormat
from quire_gateway.parsing.tools.harmony import HarmonyFormat
from quire_gateway.parsing.tools.hermes import HermesFormat
from quire_gateway.parsing.tools.llama3_json import Llama3JsonFormat
from quire_gateway.parsing.tools.mistral import MistralFormat
from quire_gateway.parsing.tools.pythonic import PythonicFormat
from quire_gateway.parsing.tools.qwen3_xml import Qwen3XmlFormat

TOOL_GROUP: Final = "quire.tool_parsers"
REASONING_GROUP: Final = "quire.reasoning_parsers"

TOOL_FORMATS: Final[Mapping[str, type[ToolFormat]]] = {
    format_class.name: format_class
    for format_class in (
        HermesFormat,
        Llama3JsonFormat,
        MistralFormat,
        PythonicFormat,
        Qwen3XmlFormat,
        DeepSeekFormat,
        HarmonyFormat,
    )
}
REASONING_FORMATS: Final[Mapping[str, type[Qwen3Format] | type[DeepSeekR1Format] | type[GptOssFormat]]] = {
    "qwen3": Qwen3Format,
    "deepseek_r1": DeepSeekR1Format,
    "gpt_oss": GptOssFormat,
}
#: The format chosen by the model's chat template, and no parsing at all.
AUTO, NONE = "auto", "none"
#: `tags:<start>|<end>` names any pair of tags.
TAGS: Final = "tags:"

#: What a template that writes calls in a format's way holds, the surest first.
_TOOL_SIGNS: Final = (
    ("harmony", (CHANNEL, "functions.")),
    ("deepseek", (deepseek.BEGIN,)),
    ("qwen3_xml", (qwen3_xml.BEGIN, qwen3_xml.FUNCTION)),
    ("hermes", (hermes.BEGIN,)),
    ("mistral", (mistral.BEGIN,)),
    ("pythonic", (*("<|python_start|>",), "<|header_start|>")),
    ("llama3_json", ("<|start_header_id|>", '"parameters"')),
    ("llama3_json", (llama3_json.PYTHON_TAG,)),
)
_REASONING_SIGNS: Final = (
    ("gpt_oss", (CHANNEL, "analysis")),
    ("deepseek_r1", ("<｜Assistant｜>", "<think>")),
    ("qwen3", ("<think>",)),
    ("qwen3", ("</think>",)),
)


def tool_format(name: str) -> ToolFormat:
    """A tool format by name. ValueError lists the names that exist."""
    if name in TOOL_FORMATS:
        return TOOL_FORMATS[name]()
    loaded: ToolFormat = _plugin(TOOL_GROUP, name, TOOL_FORMATS)()
    return loaded


def reasoning_format(name: str) -> ReasoningFormat:
    """A reasoning format by name. ValueError lists the names that exist."""
    if name in REASONING_FORMATS:
        return REASONING_FORMATS[name]()
    if name.startswith(TAGS):
        start, _, end = name.removeprefix(TAGS).partition("|")
        if not start or not end:
            raise ValueError(f"reasoning parser {name!r} should be {TAGS}START|END")
        return TagFormat(start, end)
    loaded: ReasoningFormat = _plugin(
        REASONING_GROUP, name, {**REASONING_FORMATS, f"{TAGS}START|END": None}
    )()
    return loaded


def tool_format_of(template: str) -> ToolFormat | None:
    """The format in which a chat template writes calls; None if it is not sure."""
    return next((tool_format(name) for name, signs in _TOOL_SIGNS if _has(template, signs)), None)


def reasoning_format_of(template: str) -> ReasoningFormat | None:
    """The format in which a chat template expects reasoning; None if there is none."""
    return next((reasoning_format(name) for name, signs in _REASONING_SIGNS if _has(template, signs)), None)


@dataclass(frozen=True, slots=True)
class FormatSettings:
    """Names of formats; auto: by the model's chat template; none: nothing is parsed. ValueError for unknown names."""

    tools: str = AUTO
    reasoning: str = AUTO

    def __post_init__(self) -> None:
        if self.tools not in (AUTO, NONE):
            tool_format(self.tools)
        if self.reasoning not in (AUTO, NONE):
            reasoning_format(self.reasoning)


def _has(template: str, signs: tuple[str, ...]) -> bool:
    return all(sign in template for sign in signs)


def _plugin(group: str, name: str, built_in: Mapping[str, object]) -> type:
    plugins = {entry.name: entry for entry in entry_points(group=group)}
    if name not in plugins:
        raise ValueError(f"{group} {name!r} is none of {sorted({AUTO, NONE, *built_in, *plugins})}")
    loaded: type = plugins[name].load()
    return loaded
