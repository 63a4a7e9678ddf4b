"""Chat templates: from conversations to prompts, by the jinja2 program in a model file.

The program is not trusted. It runs in jinja2's immutable sandbox, in a process with limited time and memory: a
sandbox alone does not limit the memory of `'a' * 10**10`, or the time of a sort.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Timer
from types import TracebackType
from typing import IO, Any, Self, final

from backbay.plugin import kill_helper, start_helper

from ...errors import TemplateError
from ..tokenizers.tokenizer import Tokenizer
from . import template_worker
from .template_worker import LENGTH, allowed


@final
@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """Limits for rendering one conversation."""

    seconds: float = 2.0  # of processor time
    memory: int = 512 << 20  # bytes of the whole process
    output: int = 16 << 20  # characters


DEFAULT_LIMITS = TemplateLimits()
_REASONING = ("reasoning_content", "thinking", "reasoning")


@final
class ChatTemplate:
    """A template, and the process that runs it, started at the first `render`. Threads may share one."""

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        limits: TemplateLimits = DEFAULT_LIMITS,
    ) -> None:
        self.source, self.limits = source, limits
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._lock = Lock()
        self._worker: _Worker | None = None

    def render(
        self,
        /,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt of a conversation. It contains the special tokens: encode it with add_special=False.

        A message's reasoning may be called reasoning_content, reasoning or thinking. All arguments must be JSON:
        strings, numbers, booleans, None, lists, and dicts with strings as keys.
        """
        laid_out = [_with_reasoning(message) for message in messages]
        given = {"documents": None, **self._tokens, **variables, "messages": laid_out, "tools": tools}
        request = _to_json({**given, "add_generation_prompt": add_generation_prompt})
        with self._lock:
            worker = self._worker
            if worker is None or not worker.usable():
                worker = self._worker = _Worker(self.source, self.limits)
            answer = worker.ask(request)
        if "text" not in answer:
            raise TemplateError(f"chat template: {answer['error']}")
        return answer["text"]

    def close(self) -> None:
        """End the process; the next `render` starts another."""
        with self._lock:
            if self._worker is not None:
                self._worker.end()
                self._worker = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def chat_template_from_gguf(tokenizer: Tokenizer, name: str | None = None) -> ChatTemplate | None:
    """The default template of a model file, or the template of a name; None if the file has no default."""
    source = tokenizer.chat_template if name is None else tokenizer.chat_templates.get(name)
    if source is None and name is not None:
        known = ", ".join(map(repr, tokenizer.chat_templates)) or "none"
        raise TemplateError(f"the model has no chat template {name!r}; by name it has: {known}")
    if source is None:
        return None
    bos, eos = ("" if id is None else tokenizer.token_text(id) for id in (tokenizer.bos, tokenizer.eos))
    return ChatTemplate(source, bos_token=bos, eos_token=eos)


@final
class _Worker:
    """A process that renders one template."""

    def __init__(self, source: str, limits: TemplateLimits) -> None:
        self._limits, self._owner = limits, os.getpid()
        self._process = _start()
        self.end = weakref.finalize(self, _stop, self._process)
        self._send(_to_json({"source": source, **asdict(limits)}))

    def usable(self) -> bool:
        """False if the process has died, or if this process was forked from the one that started it."""
        return self._process.poll() is None and self._owner == os.getpid()

    def ask(self, request: bytes) -> dict[str, str]:
        try:
            with _bounded_by_the_clock(self._process, self._limits.seconds):
                self._send(request)
                answer = self._receive()
        except BaseException:  # Ctrl-C: the next request must not read this one's answer
            self.end()
            raise
        if answer is None:
            self.end()
            raise TemplateError(f"chat template: {self._death()}")
        return answer

    def _send(self, message: bytes) -> None:
        pipe = _pipe(self._process.stdin)
        with suppress(BrokenPipeError):  # the process died; there will be no answer
            pipe.write(LENGTH.pack(len(message)) + message)
            pipe.flush()

    def _receive(self) -> dict[str, str] | None:
        pipe = _pipe(self._process.stdout)
        head = pipe.read(LENGTH.size)
        body = pipe.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else b""
        try:
            answer = json.loads(body)
        except ValueError:  # the process died while writing
            return None
        return {key: value for key, value in answer.items() if isinstance(value, str)} or None

    def _death(self) -> str:
        code = self._process.returncode
        took_long = {-getattr(signal, name) for name in ("SIGPROF", "SIGKILL") if hasattr(signal, name)}
        if code in took_long:
            return f"it took more than {self._limits.seconds:g} s"
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return f"its process {how}; it may have needed more than {allowed(self._limits.memory) >> 20} MiB"


@contextmanager
def _bounded_by_the_clock(process: subprocess.Popen[bytes], seconds: float) -> Iterator[None]:
    """Kill the process after this time, on systems where it cannot limit its own processor time."""
    if hasattr(signal, "setitimer"):
        yield
        return
    timer = Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _start() -> subprocess.Popen[bytes]:
    found = [find_spec(name) for name in ("jinja2", "markupsafe")]
    places = {str(Path(spec.origin).parent.parent) for spec in found if spec is not None and spec.origin}
    script = str(Path(template_worker.__file__))
    try:
        return start_helper(
            [sys.executable or "", "-I", "-S", script, *places],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        told = f"sys.executable, {sys.executable!r}, cannot be run: {error}"
        raise TemplateError(f"chat templates run in a process of their own, and {told}") from error


def _stop(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):
            _pipe(pipe).close()
    kill_helper(process)
    process.wait()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # Popen opened both pipes
    return pipe


def _with_reasoning(message: object) -> object:
    """The message with its reasoning under both names that templates read, as in transformers."""
    if not isinstance(message, Mapping):
        return message
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _to_json(value: object) -> bytes:
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TemplateError(f"the arguments of a chat template must be JSON: {error}") from None
