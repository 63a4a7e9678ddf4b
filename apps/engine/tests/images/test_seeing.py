"""Requests with pictures: each gets what it gets alone, in one step or cut anywhere, with reuse and in parallel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from seeing_models import ENDLESS, Files, opened
from small_vision import KINDS, picture
from small_vision_texts import ID

import backbay
from backbay_engine import LLM, Image
from backbay_engine.runner.requests.request import Score
from backbay_engine.runner.slots import Slots
from backbay_engine.steps.tokens import MediaToken, media_spans

BACKENDS = sorted(backbay.backends())


def shapes_of_prompts() -> list[list[Any]]:
    wide, tall, tiny = picture(20, 45, 1), picture(40, 17, 2), picture(3, 5, 3)
    return [
        ["Before ", Image(wide)],
        [Image(tall), " after"],
        ["Compare ", Image(wide), " with ", Image(tall), "."],
        [[ID["<s>"], 65], Image(wide), Image(tiny), [66, 67]],
    ]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.few(3)
def test_pictures_in_one_step_or_cut_anywhere_give_what_the_reference_backend_gives(
    files: Files, kind: str, backend: str
) -> None:
    expected: list[np.ndarray] = []
    with opened(files, kind) as llm:
        expected = [llm.logits(prompt) for prompt in shapes_of_prompts()]
    for batch in (512, 7):
        with opened(files, kind, backend, batch=batch) as llm:
            for prompt, logits in zip(shapes_of_prompts(), expected, strict=True):
                found = llm.logits(prompt)
                assert found.shape == (len(llm.encode(prompt)), llm.vocabulary_size)
                error = np.square(found - logits).sum() / np.square(logits).sum()
                assert error < 2e-5, (prompt, batch, error)


def test_a_picture_changes_what_follows_and_nothing_before(llm: LLM) -> None:
    if llm.backend.config.architecture == "mllama":
        pytest.skip("tokens before the first picture see it, as in transformers")
    one, other = (llm.logits(["Look: ", Image(picture(20, 20, n)), "?"]) for n in (1, 2))
    begin = len("Look: ")
    np.testing.assert_array_equal(one[:begin], other[:begin])
    assert np.abs(one[-1] - other[-1]).max() > 1e-3


@pytest.mark.few(4)
def test_another_picture_of_the_same_size_is_not_taken_for_the_first(llm: LLM) -> None:
    prompts = [["Here: ", Image(picture(20, 20, n)), "What is it?"] for n in (1, 2)]
    alone = [llm.generate(prompt, max_tokens=8, reuse=False, **ENDLESS).tokens for prompt in prompts]
    assert [llm.generate(prompt, max_tokens=8, **ENDLESS).tokens for prompt in prompts] == alone


@pytest.mark.few(4)
def test_a_conversation_goes_on_with_another_picture(llm: LLM) -> None:
    first = ["One: ", Image(picture(20, 20, 1)), "and"]
    for prompt in (
        first,
        [*first, " two: ", Image(picture(30, 20, 2)), "?"],
        ["One: ", Image(picture(30, 20, 2))],
    ):
        answer = llm.generate(prompt, max_tokens=4, **ENDLESS).tokens
        assert answer == llm.generate(prompt, max_tokens=4, reuse=False, **ENDLESS).tokens


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.few(4)
def test_a_prefix_that_ends_in_a_picture_is_right(files: Files, kind: str) -> None:
    shown = Image(picture(20, 20, 1))
    with opened(files, kind, parallel=1) as llm:
        alone = llm.generate(["Hi ", shown], max_tokens=5, reuse=False, **ENDLESS).tokens
        llm.generate(["Hi ", shown, "more"], max_tokens=1, **ENDLESS)
        assert llm.generate(["Hi ", shown], max_tokens=5, **ENDLESS).tokens == alone


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.few(1)
def test_the_shift_of_a_full_context_cuts_no_picture(
    files: Files, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[list[Any]] = []
    shift = Slots.shift

    def watched(self: Slots, slot: Any, keep: int) -> list[Any]:
        again = shift(self, slot, keep)
        left.append([*slot.tokens, *again])
        return again

    monkeypatch.setattr(Slots, "shift", watched)
    shown = [Image(picture(20, 20, n)) for n in range(3)]
    with opened(files, kind, context=96, parallel=1) as llm:
        for keep in (0, 6, 12, 20):
            prompt = ["ab ", shown[0], " c ", shown[1], " d ", shown[2], "e" * 10]
            answer = llm.generate(prompt, max_tokens=150, num_keep=keep, **ENDLESS)
            assert len(answer.tokens) == 150
            again = llm.generate(prompt, max_tokens=4, **ENDLESS)
            assert again.tokens == answer.tokens[:4]
    assert left
    for tokens in left:
        for place in media_spans(tokens):
            indices = [
                token.index for token in tokens[place.begin : place.end] if isinstance(token, MediaToken)
            ]
            assert indices == list(range(place.media.count))


def test_after_a_shift_the_positions_of_pictures_are_those_of_the_sequence_that_is_left(files: Files) -> None:
    with opened(files, "qwen25vl", context=64, parallel=1) as llm:
        prompt = ["x" * 30, Image(picture(20, 20)), "y"]
        answer = llm.generate(prompt, max_tokens=60, num_keep=2, **ENDLESS)
        assert llm.runner is not None
        held = llm.runner.slots.all[0].tokens
        assert len(answer.tokens) == 60
        scored = llm._port.submit(Score(held)).result()[-1]
        scored[ID["</s>"]] = -np.inf
        assert scored.argmax() == answer.tokens[-1]
