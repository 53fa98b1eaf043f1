"""A model's chat template: Jinja in a sandbox, with the functions, filters and whitespace rules of Hugging Face.

A template is a program that came with a model's files, and the messages it runs on came from a client. So it runs in
Jinja's sandbox, its loops look at the clock, and its output is bounded. What a template refuses, in its own words, is
the client's error.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from quire_servicekit.errors import InvalidRequest

# The clock is read once in so many loop turns.
TURNS_PER_CLOCK_READ: Final = 64


class TemplateLimitExceeded(Exception):
    """The template ran too long or wrote too much. Not a TemplateError, so that no template can catch or cause it."""


class ChatTemplate:
    """One compiled template. Rendering is safe from several threads."""

    def __init__(self, source: str, *, max_output_chars: int, max_render_s: float) -> None:
        """Compile `source`. Raises jinja2.TemplateSyntaxError, with the line, when it is no valid template."""
        self._environment = _Environment(max_render_s)
        tree = self._environment.parse(source)
        self.takes_content_parts = _iterates_content(tree)
        bounded = _ClockInLoops().visit(tree)
        code = self._environment.compile(bounded)
        self._template = jinja2.Template.from_code(
            self._environment, code, self._environment.make_globals(None)
        )
        self._max_output_chars = max_output_chars

    def render(self, variables: Mapping[str, Any]) -> str:
        """Return the text for `variables`, which must be plain JSON values.

        Raises InvalidRequest with the template's own message when it refuses them or fails on them.
        """
        chunks: list[str] = []
        num_chars = 0
        self._environment.start_clock()
        try:
            for chunk in self._template.generate(variables):
                num_chars += len(chunk)
                if num_chars > self._max_output_chars:
                    raise TemplateLimitExceeded(
                        f"its text is longer than {self._max_output_chars} characters"
                    )
                chunks.append(chunk)
        except jinja2.TemplateError as error:
            raise InvalidRequest(
                "messages", message=f"the chat template refused the messages: {error}"
            ) from error
        except (
            Exception
        ) as error:  # a template can raise whatever its operators raise: TypeError, KeyError, ...
            raise InvalidRequest("messages", message=f"the chat template failed: {error}") from error
        return "".join(chunks)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox with what Hugging Face's templates expect in it."""

    def __init__(self, max_render_s: float) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self._max_render_s = max_render_s
        # A render stays on one thread, but several threads may render at once.
        self._clock = threading.local()

    def start_clock(self) -> None:
        self._clock.num_turns = 0
        self._clock.deadline = time.monotonic() + self._max_render_s

    def count_turn(self) -> None:
        """Called by every turn of every loop and every call of a macro."""
        self._clock.num_turns += 1
        if self._clock.num_turns % TURNS_PER_CLOCK_READ == 0 and time.monotonic() > self._clock.deadline:
            raise TemplateLimitExceeded(f"it ran longer than {self._max_render_s:g} s")


class _ClockInLoops(NodeTransformer):
    """Puts a call of `count_turn` at the start of each loop body and macro, the only ways to run for long."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (Jinja names visitors after node classes)
        return self._count(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._count(node)

    def _count(self, node: nodes.For | nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        call = nodes.Call(nodes.EnvironmentAttribute("count_turn"), [], [], None, None, lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(call, lineno=node.lineno))
        return node


class _GenerationTag(Extension):
    """{% generation %} marks what the assistant says, for training; serving writes its body as it is."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _iterates_content(tree: nodes.Template) -> bool:
    """Whether the template loops over a message's content, so that it understands a list of parts.

    Templates that only write the content would print the list's Python form into the prompt.
    """
    return any(_mentions_content(loop.iter) for loop in tree.find_all(nodes.For))


def _mentions_content(iterated: nodes.Node) -> bool:
    members = [iterated, *iterated.find_all((nodes.Getattr, nodes.Getitem, nodes.Name))]
    for node in members:
        if isinstance(node, nodes.Getattr) and node.attr == "content":
            return True
        if (
            isinstance(node, nodes.Getitem)
            and isinstance(node.arg, nodes.Const)
            and node.arg.value == "content"
        ):
            return True
        if isinstance(node, nodes.Name) and node.name == "content":
            return True
    return False


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes <, > and & for HTML, which no model has seen in its tool definitions.
    pair = (separators[0], separators[1]) if separators is not None else None
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=pair, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
