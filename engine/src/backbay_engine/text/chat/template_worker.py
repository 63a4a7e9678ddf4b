"""The process of a chat template: a script that reads requests from a pipe and writes answers.

It imports nothing but jinja2, so that it starts fast and holds nothing worth protecting.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from jinja2 import Template

LENGTH = struct.Struct("<Q")
NAME = "<template>"  # jinja2's file name for a template from a string


class RefusedError(Exception):
    """The template refuses the messages."""


class TooMuchError(Exception):
    """The template's output exceeds its limit."""


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    setup = _read(requests)
    if setup is None:
        return
    _bound_memory(setup["memory"])
    render: Callable[[dict[str, Any]], str] | None = None
    while (variables := _read(requests)) is not None:
        _bound_time(setup["seconds"])
        try:
            if render is None:
                template = _compile(setup["source"])
                render = _renderer(template, setup["output"])
            answer = {"text": render(variables)}
        except MemoryError:
            answer = {"error": f"it took more than {allowed(setup['memory']) >> 20} MiB of memory"}
        except Exception as error:  # noqa: BLE001 - a template may raise anything; the caller gets the error
            answer = {"error": _describe(error)}
        _write(answers, answer)
        _bound_time(0)


def _compile(source: str) -> Template:
    from jinja2.exceptions import TemplateSyntaxError
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

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    try:
        return environment.from_string(source)
    except TemplateSyntaxError as error:
        raise SyntaxError(f"line {error.lineno}: {error.message}") from None


def _renderer(template: Template, limit: int) -> Callable[[dict[str, Any]], str]:
    def render(variables: dict[str, Any]) -> str:
        pieces, size = [], 0
        for piece in template.generate(variables):
            size += len(piece)
            if size > limit:
                raise TooMuchError(f"it wrote more than {limit} characters")
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
    """JSON as in transformers: jinja's own filter would escape HTML characters."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> None:
    raise RefusedError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - the user's own day


def _describe(error: Exception) -> str:
    if isinstance(error, RefusedError):
        return f"it refuses the messages: {str(error)[:500]}"
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    where = "" if line is None else f"line {line}: "
    return f"{where}{type(error).__name__}: {str(error)[:500]}"


def _bound_memory(limit: int) -> None:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or hard > limit:
        with suppress(ValueError, OSError):  # macOS may refuse any limit of the address space
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def allowed(limit: int) -> int:
    """The memory that this process may have: the limit, or less if the system gives less."""
    try:
        import resource
    except ImportError:
        return limit
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return limit if soft == resource.RLIM_INFINITY else min(soft, limit)


def _bound_time(seconds: float) -> None:
    """Limit the processor time of this process, also within C code; 0 removes the limit."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the parent process may ignore the signal
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _read(pipe: BinaryIO) -> dict[str, Any] | None:
    head = pipe.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    message: dict[str, Any] = json.loads(pipe.read(LENGTH.unpack(head)[0]))
    return message


def _write(pipe: BinaryIO, message: dict[str, str]) -> None:
    body = json.dumps(message).encode()
    pipe.write(LENGTH.pack(len(body)) + body)
    pipe.flush()


if __name__ == "__main__":
    sys.path[:0] = sys.argv[1:]  # the folders of jinja2 and its dependency
    serve(sys.stdin.buffer, sys.stdout.buffer)
