"""The port of a model: requests, which its steps serve, questions, and facts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypeVar

from ..encoders.contract import Modality
from ..errors import RequestError
from ..media.content_parts import modality_of
from ..media.rows import Rows
from ..runner.requests.handle import Handle, OnStep
from ..runner.requests.request import Request
from ..runner.state import State
from ..text.tokenizers import Tokenizer
from ..text.transcripts import TranscriptMarks
from .questions import Question

T = TypeVar("T")
Numbers: TypeAlias = Literal["embeddings", "scores"]
WANTS: Final[dict[Modality, str]] = {"image": "sees no pictures", "audio": "hears no sound"}
ALSO: Final[dict[Modality, str]] = {"image": " and pictures", "audio": " and sound"}
_MADE: Final[dict[bool, tuple[Numbers, str]]] = {False: ("embeddings", "embed"), True: ("scores", "rerank")}


@dataclass(frozen=True)
class MediaFacts:
    """The facts of a model that sees pictures, or hears sound.

    family       the name of its preparation
    width        the features of its rows
    placeholder  the text by which its chat template marks a picture or a sound
    marker       the text that stands for it in a template that knows none
    framed       the placeholder with marks around it that belong to the place
    """

    family: str
    width: int
    placeholder: str
    marker: str
    modality: Modality = "image"
    framed: str = ""


@dataclass(frozen=True)
class ModelFacts:
    """A model's properties; they never change while it is open.

    context     tokens of each sequence
    batch       tokens of one step
    generates   whether it generates text; otherwise it makes embeddings, or scores of texts
    ranks       whether it makes scores of pairs, of a query and a text
    media       what the model sees or hears, if it does
    transcribes  whether it writes transcripts of sounds, and nothing else
    transcript  its marks; None if it writes no transcripts, or has no vocabulary
    row_widths  the features of rows that may be tokens of a prompt; none: it takes no such rows
    """

    architecture: str
    vocabulary_size: int
    context: int
    batch: int
    generates: bool
    media: tuple[MediaFacts, ...] = ()
    ranks: bool = False
    transcribes: bool = False
    transcript: TranscriptMarks | None = None
    row_widths: tuple[int, ...] = ()

    @property
    def purpose(self) -> str:
        """What the model makes, and of what."""
        if self.transcribes:
            return "transcripts"
        made = "text" if self.generates else "scores" if self.ranks else "embeddings"
        return made + "".join(ALSO[each.modality] for each in self.media)

    def require_rows(self, rows: Rows) -> None:
        """RequestError if a prompt may not have rows of the caller's own, or if they have another width."""
        widths = self.row_widths
        if rows.of is not None:
            widths = (self.require_media(modality_of(rows)).width,)
        if not widths:
            raise RequestError(f"{self.architecture} takes no rows in the place of tokens")
        if (width := rows.values.shape[1]) not in widths:
            told = " or ".join(map(str, widths))
            raise RequestError(f"rows have {width} features, {self.architecture} takes rows of {told}")

    def require_transcripts(self) -> TranscriptMarks:
        """RequestError unless the model writes transcripts."""
        if not self.transcribes:
            hears = any(each.modality == "audio" for each in self.media)
            remedy = (
                "; ask it for a transcript by chat or generate, with the sound in the prompt" if hears else ""
            )
            raise RequestError(
                f"{self.architecture} writes no transcripts; load a Whisper, such as ggml-base.bin{remedy}"
            )
        if self.transcript is None:
            raise RequestError(
                "the file has no vocabulary with Whisper's marks, so there are no transcripts; logits takes token ids"
            )
        return self.transcript

    def require_chat(self) -> None:
        """RequestError if the model writes transcripts alone."""
        if self.transcribes:
            raise RequestError(f"{self.architecture} writes transcripts of sounds; use transcribe")

    def require_text(self) -> None:
        """RequestError unless the model generates text."""
        self.require_chat()
        if not self.generates:
            made, method = _MADE[self.ranks]
            raise RequestError(f"{self.architecture} makes {made}, it generates no text; use {method}")

    def require_numbers(self, wanted: Numbers) -> None:
        """RequestError unless the model makes embeddings, or scores, whichever is wanted."""
        made, method = _MADE[self.ranks]
        self.require_chat()
        if self.generates:
            alike = "a model like bert" if wanted == "embeddings" else "a reranker, such as bge-reranker"
            raise RequestError(f"{self.architecture} generates text; {wanted} come from {alike}")
        if made != wanted:
            raise RequestError(f"this file of {self.architecture} makes {made}, no {wanted}; use {method}")

    def require_media(self, modality: Modality | None = None) -> MediaFacts:
        """RequestError unless the model sees pictures, or hears sound, whichever is wanted; None: one of these."""
        wants = WANTS[modality or "image"]
        if not self.media:
            raise RequestError(
                f"the model ({self.architecture}) {wants}: its file has no encoder; name the encoder's file "
                "with projector= (--projector), if the model has one"
            )
        found = [each for each in self.media if modality in (None, each.modality)]
        if not found:
            raise RequestError(
                f"the model ({self.architecture}) {wants}: its encoder is {self.media[0].family}'s"
            )
        return found[0]


class Port(ABC):
    """Runs one model, in this process or elsewhere. Any thread may call any method."""

    facts: ModelFacts
    tokenizer: Tokenizer | None
    """None if the file has no vocabulary."""

    @abstractmethod
    def check_open(self) -> None:
        """ClosedError if the port is closed."""

    @abstractmethod
    def submit(self, request: Request[T], on_step: OnStep | None = None) -> Handle[T]:
        """Queue a request."""

    @abstractmethod
    def ask(self, question: Question[T]) -> T:
        """Wait for the answer to a question; an interruption of the waiting, such as Ctrl+C, cancels it."""

    @abstractmethod
    def state(self) -> State:
        """The requests and the sequences now, and the tokens so far. Waits for no request."""

    @abstractmethod
    def close(self) -> None:
        """End all requests and free everything. Closing again does nothing."""
