"""What the engine promises of pictures and sounds holds for every family: store, reuse, parallel requests, memory,
cancelling, a worker, and an encoder on any backend.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from model_scripts import nmse
from seeing_models import ENDLESS, Files, Gate, opened
from small_sound import KINDS as HEARING
from small_vision import FAMILIES, picture
from sounds import heard

import backbay
from backbay_engine import LLM, Audio, Image, RequestError, Rows, estimate, load
from backbay_engine.media.encoder_file import (
    ARCHITECTURES,
    PROJECTORS,
    SOUND_ARCHITECTURES,
    SOUND_PROJECTORS,
    encoder_family,
    encoder_files,
)

BACKENDS = sorted(backbay.backends())


@pytest.fixture(scope="module", params=(*FAMILIES, *HEARING))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def llm(files: Files, kind: str) -> Iterator[LLM]:
    with opened(files, kind) as model:
        yield model


def given(kind: str, number: int) -> Image | Audio:
    """A picture or a sound; those of equal numbers are equal."""
    if kind in HEARING:
        return Audio(heard(0.3 + 0.1 * (number % 4), seed=number), rate=16_000)
    return Image(picture(20 + number % 5, 30, number))


def test_no_family_is_left_out(files: Files) -> None:
    found = set()
    for model, projector in files.values():
        for file in encoder_files(model, projector):
            with file:
                family = type(encoder_family(file))
                found.add(f"{family.__module__.rpartition('.')[2]}:{family.__name__}")
    whisper = SOUND_ARCHITECTURES["whisper"]  # which takes no sound in a prompt
    sound = {*SOUND_PROJECTORS.values(), *SOUND_ARCHITECTURES.values()} - {whisper}
    assert found == {*PROJECTORS.values(), *sound, *ARCHITECTURES.values()}


@pytest.mark.few(4)
def test_rows_are_stored_and_read_by_another_question(llm: LLM, kind: str) -> None:
    llm.forget()
    shown = given(kind, 7)
    llm.generate(["Here: ", shown, "What is it?"], max_tokens=3, **ENDLESS)
    before = llm.store.counters
    second = ["Here: ", shown, "What colour?"]
    answer = llm.generate(second, max_tokens=5, **ENDLESS)
    after = llm.store.counters
    assert (after.asked, after.computed) == (before.asked + 1, before.computed)
    assert answer.tokens == llm.generate(second, max_tokens=5, reuse=False, **ENDLESS).tokens


@pytest.mark.few(4)
def test_one_pixel_is_a_picture_of_one_colour_and_silence_is_a_sound(llm: LLM, kind: str) -> None:
    if kind in HEARING:
        dot, other = (
            llm.logits(["Hear ", Audio(heard(0.1, how), rate=16_000)]) for how in ("silent", "usual")
        )
    else:
        dot, other = (llm.logits(["See ", Image(np.full((1, 1, 3), grey, np.uint8))]) for grey in (0, 255))
    assert np.isfinite(dot).all()
    assert not np.array_equal(dot, other)


@pytest.mark.few(6)
def test_a_conversation_reuses_what_was_computed_before_and_with_what_it_was_given(
    llm: LLM, kind: str
) -> None:
    llm.forget()
    first = ["Here: ", given(kind, 8), "What?"]
    answer = llm.generate(first, max_tokens=4, **ENDLESS)
    going_on = [*first, answer.tokens, " And?"]
    again = llm.generate(going_on, max_tokens=5, **ENDLESS)
    assert again.timings.reused_tokens >= len(llm.encode(first))
    assert again.tokens == llm.generate(going_on, max_tokens=5, reuse=False, **ENDLESS).tokens


@pytest.mark.few(4)
def test_many_at_once_get_what_each_gets_alone(llm: LLM, kind: str) -> None:
    prompts = [["See ", given(kind, n % 4), f" number {n}"] for n in range(6)] + [["text only"]]
    alone = [llm.generate(prompt, max_tokens=6, reuse=False, **ENDLESS).tokens for prompt in prompts]
    llm.forget()
    handles = [llm.submit(prompt, max_tokens=6, **ENDLESS) for prompt in prompts]
    assert [handle.result().tokens for handle in handles] == alone


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.few(4)
def test_a_dry_run_takes_what_a_real_one_takes(files: Files, kind: str, backend: str) -> None:
    model, projector = files[kind]
    sizes: dict[str, Any] = {"context": 128, "batch": 32, "parallel": 2, "store_bytes": 1 << 20}
    planned = estimate(model, backend, projector=projector, **sizes)
    with load(model, backend, projector=projector, **sizes) as llm:
        assert llm.memory().total() == planned.total()
        assert planned.encoder is not None
        assert planned.allocated() == 0
        reserved = llm.memory().total()
        for n in range(3):
            llm.generate(["a", given(kind, n), "b"], max_tokens=3)
        assert llm.memory().total() <= reserved


@pytest.mark.few(4)
def test_a_request_that_is_cancelled_costs_nobody_else_anything(files: Files, kind: str, gate: Gate) -> None:
    with opened(files, kind) as llm:
        shown, other = given(kind, 0), given(kind, 1)
        first = llm.submit(["a", shown], max_tokens=3, **ENDLESS)
        assert gate.reached.wait(300)
        second = llm.submit(["b", shown], max_tokens=3, **ENDLESS)
        waiting = llm.submit(["c", other], max_tokens=3, **ENDLESS)
        first.cancel()
        waiting.cancel()
        assert first.result(300).finish_reason == "cancelled"
        assert waiting.result(300).tokens == []
        gate.open.set()
        assert len(second.result().tokens) == 3
        llm.forget()
        assert llm.store.counters.bytes == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.few(4)
def test_the_encoder_may_be_on_another_backend(files: Files, kind: str, llm: LLM, backend: str) -> None:
    prompt = ["Look ", given(kind, 0), " here"]
    expected = llm.logits(prompt)
    params = backbay.BackendParams(num_threads=1)
    with opened(files, kind, encoder_backend=backend, encoder_params=params) as other:
        assert {each.backend.name for each in other.encoders.values()} == {backend}
        assert nmse(other.logits(prompt), expected) < 1e-5


@pytest.mark.few(4)
def test_a_worker_answers_as_this_process_does(files: Files, kind: str, llm: LLM) -> None:
    prompt = ["Look ", given(kind, 2), " here"]
    with opened(files, kind, worker=True) as other:
        assert other.encode(prompt) == llm.encode(prompt)
        assert nmse(other.logits(prompt), llm.logits(prompt)) < 1e-9
        assert other.prepare(given(kind, 2)).content == llm.prepare(given(kind, 2)).content


def rows_of(llm: LLM, kind: str, number: int) -> Rows:
    """The rows of a picture or a sound, to stand in its place."""
    prepared = llm.prepare(given(kind, number))
    return Rows((llm.embed_audio if kind in HEARING else llm.embed_image)(prepared), of=prepared)


@pytest.mark.few(4)
def test_rows_stand_for_what_they_were_made_of(llm: LLM, kind: str) -> None:
    rows, shown = rows_of(llm, kind, 3), given(kind, 3)
    computed = llm.store.counters.computed
    for prompt in (["a ", shown, " b"], [shown, "b"], [[5], shown, [6]]):
        again = [rows if part is shown else part for part in prompt]
        assert llm.encode(again) == llm.encode(prompt)
        np.testing.assert_array_equal(llm.logits(again), llm.logits(prompt))
    alone = llm.generate(["a ", rows, " b"], max_tokens=4, **ENDLESS)
    assert alone.tokens == llm.generate(["a ", shown, " b"], max_tokens=4, **ENDLESS).tokens
    again = llm.generate(["a ", rows, " b, and c"], max_tokens=1, **ENDLESS)
    assert again.timings.reused_tokens >= len(llm.encode(["a ", rows]))
    part: dict[str, Any] = {"type": "rows", "rows": rows}
    asked = [[{"role": "user", "content": [each, "What?"]}] for each in (part, shown)]
    assert llm.encode(llm.chat_prompt(asked[0])) == llm.encode(llm.chat_prompt(asked[1]))
    assert llm.store.counters.computed <= computed + 1, "rows are not encoded"


@pytest.mark.few(4)
def test_rows_go_to_another_process(files: Files, llm: LLM, kind: str) -> None:
    rows, shown = rows_of(llm, kind, 1), given(kind, 1)
    with opened(files, kind, worker=True) as other:
        found = other.logits(["a ", rows, " b"])
        assert nmse(found, llm.logits(["a ", shown, " b"])) < 1e-9
        assert other.store.counters.asked == 0


@pytest.mark.few(4)
def test_rows_may_be_tokens_beside_pictures_and_sounds(llm: LLM, kind: str) -> None:
    """The embeddings of a text give the text's answer, before a picture, after it, and beside other requests."""
    if llm.model.row_widths == ():
        return
    text, shown = [70, 71, 72, 73, 74], given(kind, 2)
    llm.forget()
    vectors = llm.step_cache.tapped(llm.step([*text, 7]))["embedding"][:-1]
    tokens = Rows(vectors)
    for prompt in ([text, shown, [7]], [[7], shown, text], [[7], text, [8]], [text, text, shown, text]):
        again = [tokens if part is text else part for part in prompt]
        assert nmse(llm.logits(again), llm.logits(prompt)) < 1e-10
    llm.forget()
    prompts = [[text, shown, [n]] if n % 2 else [tokens, given(kind, n), tokens, [n]] for n in range(6)]
    alone = [llm.generate(prompt, max_tokens=6, reuse=False, **ENDLESS).tokens for prompt in prompts]
    handles = [llm.submit(prompt, max_tokens=6, **ENDLESS) for prompt in prompts]
    assert [handle.result().tokens for handle in handles] == alone
    said = [[{"role": "user", "content": ["a", part, shown, "b", part]}] for part in (tokens, "FGHIJ")]
    as_rows, as_text = (llm.logits(llm.chat_prompt(messages)) for messages in said)
    assert nmse(as_rows, as_text) < 1e-10


@pytest.mark.fault("rows of another model's picture, or of another width", "RequestError")
def test_rows_that_do_not_fit_are_refused(llm: LLM, kind: str) -> None:
    rows = rows_of(llm, kind, 0)
    assert rows.of is not None
    with pytest.raises(RequestError, match="rows are given for a picture or a sound that has"):
        Rows(np.repeat(rows.values, 2, axis=0), of=rows.of)
    wide = Rows(np.zeros((rows.tokens, rows.values.shape[1] + 1)), of=rows.of)
    with pytest.raises(RequestError, match=f"rows have {rows.values.shape[1] + 1} features"):
        llm.generate(["a ", wide])
    stranger = replace(rows.of, family="another")
    with pytest.raises(RequestError, match="prepared for another, this model takes those of"):
        llm.generate(["a ", Rows(rows.values, of=stranger)])
    with pytest.raises(RequestError, match="cannot be saved"):
        llm.save(["a ", rows])
    with pytest.raises(RequestError, match="rows are encoded already"):
        llm.prepare(rows)
