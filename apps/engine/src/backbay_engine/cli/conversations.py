"""Conversations of `backbay run`: printed while answers grow, and kept in a file from one run to the next."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, final

from backbay import OptionError
from backbay.cli import printable

from ..errors import DamagedSnapshotError
from ..llm import LLM
from ..runner.requests.answer import Completion
from ..runner.requests.handle import Handle
from ..snapshots import Snapshot
from ..text.answers import Piece, Reasoning, Text

CHAT, TEXT = "messages", "tokens"
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_SPACES: Final = " \n\t"


@final
class AnswerPrinter:
    """Prints pieces as they come. `reasons` tells whether reasoning is printed, too."""

    def __init__(self, *, reasons: bool) -> None:
        self._reasons, self._thinking, self._ended = reasons, False, False
        self._dims = sys.stderr.isatty() and not os.environ.get("NO_COLOR")

    def print(self, piece: Piece) -> None:
        if isinstance(piece, Text):
            self.end_reasoning()
            sys.stdout.write(printable(piece.text))
            sys.stdout.flush()
        elif isinstance(piece, Reasoning) and self._reasons:
            self._reason(printable(piece.text))

    def _reason(self, text: str) -> None:
        if not self._thinking:
            text = text.lstrip(_SPACES)
        if text:
            self._thinking, self._ended = True, text.endswith("\n")
            self._write(f"{_DIM}{text}{_PLAIN}" if self._dims else text)

    def end_reasoning(self) -> None:
        """Let what follows begin on a line of its own."""
        if self._thinking:
            self._thinking = False
            self._write("" if self._ended else "\n")

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):  # full, or closed: the answer matters more
            self._reasons = False


@final
class SavedConversation:
    """The conversation of a file, which is restored if the file is there, and written after each answer.

    path    None: the conversation ends with the run
    chat    whether it is one of messages; else a text goes on
    """

    def __init__(self, path: str | None, *, chat: bool) -> None:
        self._path, self._kind = None if path is None else Path(path), CHAT if chat else TEXT
        self._held: list[Any] = []
        self._snapshot: Snapshot | None = None
        if self._path is not None and self._path.exists():
            self._snapshot = Snapshot.read(self._path)
            self._held = self._noted(self._snapshot)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages so far."""
        return list(self._held)

    def restore(self, llm: LLM) -> None:
        """Let the model's cache hold the conversation."""
        if self._snapshot is not None:
            llm.restore(self._snapshot, shared=True)
            self._snapshot = None  # the model has it

    def prompt(self, llm: LLM, text: str) -> str | list[int]:
        """A text as the prompt that goes on with the conversation."""
        if not self._held:
            return text
        more = llm.tokenizer.encode(text, add_special=False, continues=True) if text else []
        return [*self._held, *more]

    def keep(self, llm: LLM, handle: Handle[Completion], messages: Sequence[dict[str, Any]] = ()) -> None:
        """Write the conversation after an answer; with a chat, its messages."""
        if self._path is None:
            return
        snapshot = llm.save(handle)
        answer = [token for token in snapshot.options["resume"] if token not in llm.end_ids]
        self._held = list(messages) if self._kind == CHAT else [*snapshot.prompt, *answer]
        replace(snapshot, options={}, notes={self._kind: self._held}).write(self._path)

    def _noted(self, snapshot: Snapshot) -> list[Any]:
        held = snapshot.notes.get(self._kind)
        if held is None and {CHAT, TEXT} & set(snapshot.notes):
            told = "is no chat: leave out --chat" if self._kind == CHAT else "is a chat: give --chat"
            raise OptionError(f"the conversation in {self._path} {told}")
        if not isinstance(held, list):
            raise DamagedSnapshotError(
                f"{self._path}: a snapshot, but no session: `backbay run` did not write it"
            )
        return held
