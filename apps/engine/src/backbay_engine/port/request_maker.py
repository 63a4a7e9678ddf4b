"""Prompts as users give them, checked for one model."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, final

from ..arguments import conversation_messages, moment, require_fitting_prompt, token_ids
from ..encoders.contract import NOUNS, Modality
from ..errors import AudioError, ImageError, RequestError
from ..images.image import Image, image_of
from ..images.prepared_picture import Prepared
from ..media.content_parts import Media, content_parts, media_of, modality_of, needed_modality
from ..media.prompts import (
    MediaConversation,
    MediaMarks,
    PromptParts,
    placeholder_tokens,
    prompt_parts,
    prompt_tokens,
)
from ..media.row_store import StoreCounters
from ..media.rows import Rows, is_rows_part
from ..runner.requests.request import Generate, options_of
from ..sound.audio import audio_of
from ..sound.prepared_sound import PreparedAudio
from ..steps.tokens import ids_of
from ..text.rerank_pairs import pair_ids
from ..text.tokenizers import Tokenizer
from .contract import MediaFacts, ModelFacts, Port
from .questions import GetStoreCounters, Tokenize

UserPrompt: TypeAlias = str | Sequence[int] | Sequence[Any] | Media | PromptParts
"""A text, token ids, or parts: texts, lists of ids, pictures, which are Image, Prepared, or what Image takes, sounds, which
are Audio or PreparedAudio, and Rows.
"""


def require_one(prompt: object) -> None:
    """RequestError if a prompt is several texts."""
    if isinstance(prompt, list | tuple) and len(prompt) > 1 and all(isinstance(text, str) for text in prompt):
        raise RequestError(
            "a list of texts is several prompts: call submit for each, and the requests share their steps; if they are "
            'one prompt, join them by "".join(texts)'
        )


@final
class RequestMaker:
    """Checks the prompts of users, and makes requests of them; RequestError if the model cannot serve it."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def chat(
        self, messages: Sequence[Mapping[str, Any]], render: Callable[[Sequence[Mapping[str, Any]]], str]
    ) -> list[int] | PromptParts:
        """The prompt of a conversation, whose text a template's `render` writes: token ids; parts if it has more."""
        said = conversation_messages(messages)
        parts = content_parts(said)
        for asked in map(needed_modality, parts):
            if asked is not None:
                self.require_media(asked)
        if not self._facts.media and not any(map(is_rows_part, parts)):
            return self.tokenizer().encode(render(said), add_special=False)
        marks: dict[Modality, MediaMarks] = {
            each.modality: MediaMarks(each.placeholder, each.marker, each.framed)
            for each in self._facts.media
        }
        prompt = MediaConversation(said, marks).rendered(render)
        return prompt if prompt.media else self.texts(prompt)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer; RequestError if the file has no vocabulary."""
        if self._port.tokenizer is None:
            raise RequestError("the file has no vocabulary; give token ids instead of text")
        return self._port.tokenizer

    def checked(self, prompt: UserPrompt) -> list[int] | PromptParts:
        """A prompt as requests hold it: token ids, or parts whose pictures look right from outside."""
        if isinstance(prompt, str) and not prompt:  # the beginning-of-sequence token would hide it
            raise RequestError("the prompt is empty")
        if isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], int):
            self._require_room(len(prompt))  # before ids are looked at one by one
        parts = prompt_parts(prompt)
        if parts is None:
            return self._in_limits(self._ids(prompt))
        if all(item in ("", []) for item in parts.items):
            raise RequestError("the prompt is empty")
        for item in parts.items:
            if isinstance(item, list):
                self.check_ids(item)
            elif isinstance(item, Media):
                self._check_media(item)
        return parts if parts.media else self._in_limits(self.texts(parts))

    def encoded(self, prompt: UserPrompt) -> list[int]:
        """The token ids of a prompt, a placeholder for each row of a picture or a sound."""
        checked = self.checked(prompt)
        return self._port.ask(Tokenize(checked)) if isinstance(checked, PromptParts) else list(checked)

    def generation(self, prompt: UserPrompt, deadline: float | None, options: Mapping[str, Any]) -> Generate:
        """A request for text, which must begin within `deadline` seconds, with options by name."""
        begin_by = moment("deadline", deadline)
        require_one(prompt)
        checked_prompt = self.checked(prompt)
        checked = options_of(options, self._facts.context)
        self.check_ids((*checked.resume, *checked.shown))
        tokenizer = self._port.tokenizer
        if checked.stop and tokenizer is None:
            raise RequestError(f"stop {checked.stop!r}: the file has no vocabulary, so no text to stop in")
        if tokenizer is not None:
            checked = checked.forbidding(tokenizer.suppressed_ids)
        return Generate(checked_prompt, checked, begin_by)

    def scored(self, prompt: UserPrompt, audio: Any = None) -> list[int] | PromptParts:
        """A prompt whose logits are asked for; a decoder that attends to a sound needs it."""
        self._port.check_open()
        facts = self._facts
        if not facts.transcribes:
            facts.require_text()
            if audio is not None:
                raise RequestError(
                    f"{facts.architecture} takes a sound as a part of its prompt, not as audio="
                )
            return self.checked(prompt)
        given = prompt_parts(prompt)
        if given is None and audio is not None:
            heard = audio if isinstance(audio, Rows) else self.media(audio, "audio")
            return self.checked([heard, self._ids(prompt)])
        if audio is not None or given is None or not given.media or given.media != [given.items[0]]:
            raise RequestError(f"{facts.architecture} gives logits of token ids after one sound; give audio=")
        return self.checked(given)

    def media(self, given: Any, modality: Modality | None = None) -> Media:
        """A picture or a sound, whichever the model takes, as requests hold it; RequestError if another one is wanted."""
        facts = self.require_media(modality)
        if isinstance(given, Rows):
            raise RequestError("rows are encoded already: they go into a prompt as they are")
        if isinstance(given, Media):
            taken: Media = given
        else:
            several = modality is None and len(self._facts.media) > 1
            sound = facts.modality == "audio"
            taken = media_of(given) if several else audio_of(given) if sound else image_of(given)
        if (kind := modality_of(taken)) != (modality or kind):
            raise RequestError(f"{NOUNS[facts.modality]} is wanted here, got {NOUNS[kind]}")
        self._check_media(taken)
        return taken

    def _check_media(self, given: Media) -> None:
        """RequestError if it is known already that the model cannot take a picture, a sound, or rows."""
        if isinstance(given, Rows):
            self._facts.require_rows(given)
            if given.of is not None:
                self._check_media(given.of)
            return
        family = self.require_media(modality_of(given)).family
        if isinstance(given, Image):
            given.size()
        elif isinstance(given, Prepared) and given.family != family:
            raise ImageError(
                f"the picture is prepared for {given.family}, this model takes those of {family}"
            )
        elif isinstance(given, PreparedAudio) and given.family != family:
            raise AudioError(f"the sound is prepared for {given.family}, this model takes those of {family}")

    def require_media(self, modality: Modality | None = None) -> MediaFacts:
        self._port.check_open()
        return self._facts.require_media(modality)

    def tokens(self, prompt: UserPrompt) -> list[int]:
        """The token ids of a prompt; RequestError if it has more than text."""
        checked = self._text(prompt)
        if isinstance(checked, PromptParts):
            raise RequestError("pictures, sounds and rows have no log-probabilities; leave them out")
        return checked

    def several(self, texts: str | Sequence[UserPrompt]) -> list[list[int] | PromptParts]:
        """A text, or several, as requests hold them: token ids, or parts with rows."""
        if not isinstance(texts, Iterable):
            raise RequestError(f"texts must be a text or several, got {texts!r}")
        prompts = [self._text(text) for text in ([texts] if isinstance(texts, str) else texts)]
        if not prompts:
            raise RequestError("there is nothing to embed: give one text at least")
        for prompt in prompts:
            if isinstance(prompt, PromptParts) and any(map(needed_modality, prompt.items)):
                raise RequestError("pictures and sounds have no embeddings of text; leave them out")
        return prompts

    def _text(self, prompt: UserPrompt) -> list[int] | PromptParts:
        """A prompt, whose text may be empty."""
        return self._in_limits(self._ids(prompt)) if isinstance(prompt, str) else self.checked(prompt)

    def pairs(self, query: str, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of a query with each text."""
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            raise RequestError(f"texts must be several texts, in a list, got {reprlib.repr(texts)}")
        texts = list(texts)
        if wrong := [text for text in (query, *texts) if not isinstance(text, str)]:
            raise RequestError(f"a query and its texts are strings, got {reprlib.repr(wrong[0])}")
        if not texts:
            raise RequestError("there is nothing to rank: give one text at least")
        return [self.tokens(pair_ids(self.tokenizer(), query, text)) for text in texts]

    def _ids(self, prompt: object) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer().encode(prompt, plain=self._plain)
        return token_ids(prompt)

    def texts(self, parts: PromptParts) -> list[int]:
        """The ids of parts of text."""
        tokenizer = self._port.tokenizer
        return ids_of(prompt_tokens(parts.items, tokenizer, begins=parts.begins, plain=self._plain))  # type: ignore[arg-type]

    @property
    def _plain(self) -> frozenset[int]:
        """Tokens that users cannot write: those that stand for pictures or sounds."""
        placeholders = [each.placeholder for each in self._facts.media]
        return placeholder_tokens(placeholders, self._port.tokenizer)

    def _in_limits(self, ids: list[int]) -> list[int]:
        if not ids:
            raise RequestError("the prompt is empty")
        self._require_room(len(ids))
        self.check_ids(ids)
        return ids

    def _require_room(self, count: int) -> None:
        """ContextOverflowError if the model does not take so many tokens."""
        require_fitting_prompt("the prompt has {} tokens, the context holds {}", count, self._facts.context)
        if not self._facts.generates:  # without a cache, a text cannot be split
            require_fitting_prompt(
                "the prompt has {} tokens, a step takes {} (batch)", count, self._facts.batch
            )

    def check_ids(self, ids: Sequence[int]) -> None:
        wrong = next((token for token in ids if not 0 <= token < self._facts.vocabulary_size), None)
        if wrong is not None:
            raise RequestError(f"token ids must be in [0, {self._facts.vocabulary_size}), got {wrong}")

    @property
    def _facts(self) -> ModelFacts:
        return self._port.facts


@final
class StoreView:
    """The store of a model's pictures, wherever it is."""

    def __init__(self, port: Port) -> None:
        self._port = port

    @property
    def counters(self) -> StoreCounters:
        """Pictures asked for and computed, rows handed out to steps, and bytes that are held now."""
        return self._port.ask(GetStoreCounters())
