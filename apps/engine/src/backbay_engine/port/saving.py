"""Saving what a port runs: a request for text, or a prompt."""

from __future__ import annotations

from dataclasses import replace

from ..arguments import AdapterMix
from ..errors import RequestError
from ..media.content_parts import needed_modality
from ..media.prompts import PromptParts
from ..runner.requests.answer import Completion
from ..runner.requests.handle import Handle
from ..runner.requests.request import Generate, Prompt
from ..snapshots import Snapshot
from ..snapshots.snapshot import continuation_options
from .contract import Port
from .questions import GetAnswerSnapshot, GetPromptSnapshot


def save_snapshot(port: Port, source: Prompt | Handle[Completion], adapter: AdapterMix = ()) -> Snapshot:
    """The snapshot of a request for text, or of a prompt, which is computed as far as it is not in the cache."""
    if not isinstance(source, Handle):
        return port.ask(GetPromptSnapshot(source, adapter=adapter))
    request = source.request
    if not isinstance(request, Generate):
        raise RequestError("only requests for text can be saved")
    prompt = require_no_pictures(request.prompt)
    continuation_options(request, 0, ())  # refuses what cannot be saved
    if not source.done and (running := port.ask(GetAnswerSnapshot(source.number, request))) is not None:
        return running
    answer, seed = source.result().tokens, request.options.sampling.seed or 0
    saved = port.ask(GetPromptSnapshot(prompt, answer, request.options.adapter))
    return replace(saved, options=continuation_options(request, seed, answer))


def require_no_pictures(prompt: Prompt) -> Prompt:
    """A prompt without pictures and sounds; RequestError if it has some, or rows in their place."""
    if isinstance(prompt, PromptParts) and any(map(needed_modality, prompt.items)):
        raise no_pictures()
    return prompt


def no_pictures() -> RequestError:
    return RequestError(
        "a conversation with pictures or sounds cannot be saved: they are not in the cache alone"
    )
