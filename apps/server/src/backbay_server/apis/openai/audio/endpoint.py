"""Transcribing, and translating into English."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

from ....generation import SpeechRequest
from ....transport.answers import JsonResponse, StreamResponse, TextResponse, encode, event_stream, sse
from ...endpoint import Endpoint, EndpointCall
from .answers import AudioTranscript, SpeechEvent, TextDelta, TextDone, short, usage_of, verbose
from .requests import TranscriptionRequest, speech_request


async def transcribe(
    call: EndpointCall, body: TranscriptionRequest
) -> JsonResponse | StreamResponse | TextResponse:
    """Write down what is said in a sound."""
    return await _answer(call, body, "transcribe")


async def translate(
    call: EndpointCall, body: TranscriptionRequest
) -> JsonResponse | StreamResponse | TextResponse:
    """Write down in English what is said in a sound."""
    return await _answer(call, body, "translate")


async def _answer(
    call: EndpointCall, body: TranscriptionRequest, task: str
) -> JsonResponse | StreamResponse | TextResponse:
    request = speech_request(body, task)
    if body.stream:
        return event_stream(_events(call, request))
    async with call.services.transcriber.transcribing(request) as feed:
        async for _ in feed:
            pass
    whole = feed.transcript
    match body.response_format:
        case "text":
            return TextResponse(whole.text + "\n")
        case "srt":
            return TextResponse(whole.srt)
        case "vtt":
            return TextResponse(whole.vtt)
        case "verbose_json":
            return JsonResponse(verbose(whole))
        case _:
            return JsonResponse(short(whole))


async def _events(call: EndpointCall, request: SpeechRequest) -> AsyncGenerator[bytes, None]:
    """The text of segment after segment; the pieces together are the whole text."""
    async with call.services.transcriber.transcribing(request) as feed:
        begun, kept = False, ""  # spaces at the end of a piece wait for the next one
        async for segment in feed:
            text = kept + segment.text if begun else segment.text.lstrip()
            piece = text.rstrip()
            kept, begun = text[len(piece) :], begun or bool(piece)
            if piece:
                yield sse(encode(TextDelta(piece)))
        whole = feed.transcript
        yield sse(encode(TextDone(whole.text, usage_of(whole))))


ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = tuple(
    Endpoint("POST", path, handler, TranscriptionRequest, AudioTranscript, SpeechEvent, form=True, plain=True)
    for path, handler in (("/v1/audio/transcriptions", transcribe), ("/v1/audio/translations", translate))
)
