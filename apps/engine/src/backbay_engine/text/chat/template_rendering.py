"""The task of a chat template's process: it renders conversations. It imports nothing but jinja2."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment, Template

NAME = "<template>"  # jinja2's file name for a template from a string


class RefusedMessagesError(Exception):
    """The template refuses the messages."""


class OutputLimitError(Exception):
    """The template's output exceeds its limit."""


def task(setup: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, str]]:
    render: Callable[[dict[str, Any]], str] | None = None

    def answer(variables: dict[str, Any]) -> dict[str, str]:
        nonlocal render
        try:
            if render is None:
                render = _renderer(setup["source"], setup["output"])
            return {"text": render(variables)}
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a template may raise anything; the caller gets the error
            return {"error": _describe(error)}

    return answer


def _compiled(source: str) -> tuple[Template, frozenset[str]]:
    """The template, and the variables that it reads without a test or a loop that would give them a default."""
    from jinja2.exceptions import TemplateSyntaxError
    from jinja2.meta import find_undeclared_variables
    from jinja2.nodes import For, Name, Test

    environment = _environment()
    try:
        tree = environment.parse(source)
        tested = (node.node for node in tree.find_all(Test))
        looped = (node.iter for node in tree.find_all(For))
        optional = {node.name for node in (*tested, *looped) if isinstance(node, Name)}
        read = find_undeclared_variables(tree) - optional
        return environment.from_string(tree), frozenset(read)
    except TemplateSyntaxError as error:
        raise SyntaxError(f"line {error.lineno}: {error.message}") from None


def _functions(tools: list[dict[str, Any]] | None) -> str:
    return json.dumps([tool.get("function", tool) for tool in tools], indent=4) if tools else ""


FURTHER: dict[str, Callable[[list[dict[str, Any]] | None], str]] = {
    "functions": _functions,
    "datetime": lambda _: _now("%b %d %Y"),
    "date_string": lambda _: _now("%d %b %Y"),
}
"""Variables beside those of transformers, by llama.cpp's names; without them, Firefunction's template fails."""


def _environment() -> Environment:
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import CallBlock, Node
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks the model's answers for training; it has no effect here."""

        tags = {"generation"}

        def parse(self, parser: Parser) -> Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

        def _same(self, caller: Callable[[], str]) -> str:
            return caller()

    own = [loopcontrols, Generation]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=own)
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def _renderer(source: str, limit: int) -> Callable[[dict[str, Any]], str]:
    template, read = _compiled(source)

    def render(variables: dict[str, Any]) -> str:
        pieces, size = [], 0
        further = {name: made(variables["tools"]) for name, made in FURTHER.items() if name in read}
        for piece in template.generate({**further, **variables}):
            size += len(piece)
            if size > limit:
                raise OutputLimitError(f"it wrote more than {limit} characters")
            pieces.append(piece)
        return "".join(pieces)

    return render


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as in transformers: jinja's own filter would escape HTML characters. What `map` and the like give is a list."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )


def _listed(value: object) -> list[object]:
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _refuse(message: str) -> None:
    raise RefusedMessagesError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - the user's own day


def _describe(error: Exception) -> str:
    if isinstance(error, RefusedMessagesError):
        return f"it refuses the messages: {str(error)[:500]}"
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    where = "" if line is None else f"line {line}: "
    return f"{where}{type(error).__name__}: {str(error)[:500]}"
