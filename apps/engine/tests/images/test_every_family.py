"""What the engine promises of pictures holds for every family: store, reuse, parallel requests, memory, cancelling,
and an encoder on any backend.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from model_scripts import nmse
from seeing_models import ENDLESS, Files, Gate, opened
from small_vision import FAMILIES, picture

import backbay
from backbay_engine import LLM, Image, estimate, load
from backbay_engine.images.encoder_file import ARCHITECTURES, PROJECTORS, vision_family, vision_file
from backbay_engine.local.picture_intake import PictureIntake

BACKENDS = sorted(backbay.backends())


@pytest.fixture(scope="module", params=FAMILIES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def llm(files: Files, kind: str) -> Iterator[LLM]:
    with opened(files, kind) as model:
        yield model


def test_no_family_is_left_out(files: Files) -> None:
    found = set()
    for model, projector in files.values():
        file = vision_file(model, projector)
        assert file is not None
        family = type(vision_family(file))
        found.add(f"{family.__module__.rpartition('.')[2]}:{family.__name__}")
        file.close()
    assert found == {*PROJECTORS.values(), *ARCHITECTURES.values()}


@pytest.mark.few(4)
def test_rows_are_stored_and_read_by_another_question(llm: LLM) -> None:
    llm.forget()
    shown = Image(picture(30, 20, 7))
    llm.generate(["Here: ", shown, "What is it?"], max_tokens=3, **ENDLESS)
    before = llm.store.counters
    second = ["Here: ", shown, "What colour?"]
    answer = llm.generate(second, max_tokens=5, **ENDLESS)
    after = llm.store.counters
    assert (after.asked, after.computed) == (before.asked + 1, before.computed)
    assert answer.tokens == llm.generate(second, max_tokens=5, reuse=False, **ENDLESS).tokens


@pytest.mark.few(4)
def test_one_pixel_is_a_picture_of_one_colour(llm: LLM) -> None:
    dot, other = (llm.logits(["See ", Image(np.full((1, 1, 3), grey, np.uint8))]) for grey in (0, 255))
    assert np.isfinite(dot).all()
    assert not np.array_equal(dot, other)


@pytest.mark.few(6)
def test_a_conversation_reuses_what_was_computed_before_and_with_its_picture(llm: LLM) -> None:
    llm.forget()
    first = ["Here: ", Image(picture(30, 20, 8)), "What?"]
    answer = llm.generate(first, max_tokens=4, **ENDLESS)
    going_on = [*first, answer.tokens, " And?"]
    again = llm.generate(going_on, max_tokens=5, **ENDLESS)
    assert again.timings.reused_tokens >= len(llm.encode(first))
    assert again.tokens == llm.generate(going_on, max_tokens=5, reuse=False, **ENDLESS).tokens


@pytest.mark.few(4)
def test_many_at_once_get_what_each_gets_alone(llm: LLM) -> None:
    prompts = [["See ", Image(picture(20 + n, 30, n % 3)), f" number {n}"] for n in range(6)] + [
        ["text only"]
    ]
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
            llm.generate(["a", Image(picture(20, 20 + 9 * n, n)), "b"], max_tokens=3)
        assert llm.memory().total() <= reserved


@pytest.mark.few(4)
def test_a_request_that_is_cancelled_costs_nobody_else_anything(files: Files, kind: str, gate: Gate) -> None:
    with opened(files, kind) as llm:
        shown, other = Image(picture(20, 20)), Image(picture(20, 20, 1))
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
    prompt = ["Look ", Image(picture(20, 30)), " here"]
    expected = llm.logits(prompt)
    params = backbay.BackendParams(num_threads=1)
    with opened(files, kind, encoder_backend=backend, encoder_params=params) as other:
        assert isinstance(other._port.sight, PictureIntake)  # type: ignore[attr-defined]
        assert other._port.sight.encoder.backend.name == backend  # type: ignore[attr-defined]
        assert nmse(other.logits(prompt), expected) < 1e-5
