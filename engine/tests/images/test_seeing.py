"""Requests with pictures: each gets what it gets alone, in one step or cut anywhere, with reuse and in parallel."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_llama import write_small_llama
from small_vision import BOS, CONTEXT, EOS, ID, KINDS, MARK, picture, write_small_vision

import backbay
from backbay import ClosedError, ModelFileError
from backbay_engine import LLM, Image, ImageError, RequestError, TemplateError, estimate, load
from backbay_engine.engines.sight import Sight
from backbay_engine.images.encoder import Encoder
from backbay_engine.runner.slots import Slots
from backbay_engine.steps.tokens import PictureToken, places_in

ENDLESS: dict[str, Any] = {"logit_bias": {EOS: float("-inf")}, "temperature": 0}
BACKENDS = sorted(backbay.backends())
Files = dict[str, tuple[Path, Path | None]]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("vision")
    return {kind: write_small_vision(folder, kind) for kind in KINDS}


def opened(files: Files, kind: str, backend: str = "cpu_ref", **how: Any) -> LLM:
    model, projector = files[kind]
    sizes: dict[str, Any] = {"context": 128, "parallel": 3, "kv_dtype": "f32", "num_threads": 1}
    return load(model, backend, projector=projector, **{**sizes, **how})


@pytest.fixture(scope="module", params=KINDS)
def llm(files: Files, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with opened(files, request.param) as model:
        yield model


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


def test_many_at_once_get_what_each_gets_alone(llm: LLM) -> None:
    prompts = [["See ", Image(picture(20 + n, 30, n % 3)), f" number {n}"] for n in range(6)] + [
        ["text only"]
    ]
    alone = [llm.generate(prompt, max_tokens=6, reuse=False, **ENDLESS).tokens for prompt in prompts]
    llm.forget()
    handles = [llm.submit(prompt, max_tokens=6, **ENDLESS) for prompt in prompts]
    assert [handle.result().tokens for handle in handles] == alone


def test_a_second_question_about_a_picture_encodes_nothing_and_reads_it_from_the_cache(llm: LLM) -> None:
    llm.forget()
    shown = Image(picture(30, 20, 7))
    llm.generate(["Here: ", shown, "What is it?"], max_tokens=3, **ENDLESS)
    before = llm.store.counters
    second = ["Here: ", shown, "What colour?"]
    answer = llm.generate(second, max_tokens=5, **ENDLESS)
    after = llm.store.counters
    assert (after.asked, after.computed) == (before.asked + 1, before.computed)
    assert answer.timings.reused_tokens > len(llm.encode(["Here: ", shown])) - 1
    assert answer.tokens == llm.generate(second, max_tokens=5, reuse=False, **ENDLESS).tokens


def test_another_picture_of_the_same_size_is_not_taken_for_the_first(llm: LLM) -> None:
    prompts = [["Here: ", Image(picture(20, 20, n)), "What is it?"] for n in (1, 2)]
    alone = [llm.generate(prompt, max_tokens=8, reuse=False, **ENDLESS).tokens for prompt in prompts]
    assert [llm.generate(prompt, max_tokens=8, **ENDLESS).tokens for prompt in prompts] == alone


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
def test_a_prefix_that_ends_in_a_picture_is_right(files: Files, kind: str) -> None:
    shown = Image(picture(20, 20, 1))
    with opened(files, kind, parallel=1) as llm:
        alone = llm.generate(["Hi ", shown], max_tokens=5, reuse=False, **ENDLESS).tokens
        llm.generate(["Hi ", shown, "more"], max_tokens=1, **ENDLESS)
        assert llm.generate(["Hi ", shown], max_tokens=5, **ENDLESS).tokens == alone


@pytest.mark.parametrize("kind", KINDS)
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
        for place in places_in(tokens):
            indices = [
                token.index for token in tokens[place.begin : place.end] if isinstance(token, PictureToken)
            ]
            assert indices == list(range(place.picture.count))


def test_after_a_shift_the_positions_of_pictures_are_those_of_the_sequence_that_is_left(files: Files) -> None:
    with opened(files, "qwen25vl", context=64, parallel=1) as llm:
        prompt = ["x" * 30, Image(picture(20, 20)), "y"]
        answer = llm.generate(prompt, max_tokens=60, num_keep=2, **ENDLESS)
        assert llm.runner is not None
        held = llm.runner.slots.all[0].tokens
        assert len(answer.tokens) == 60
        scored = llm._engine.score(held)
        assert int(scored.result()[-1].argmax()) >= 0


# -- what a prompt may be --------------------------------------------------------------------------------


def test_a_picture_may_be_given_in_many_ways(llm: LLM, tmp_path: Path) -> None:
    from PIL import Image as Pillow

    array = picture(20, 30)
    shown = Pillow.fromarray(array)
    data = io.BytesIO()
    shown.save(data, "PNG")
    path = tmp_path / "picture.png"
    path.write_bytes(data.getvalue())
    expected = llm.logits(["a ", Image(array)])
    for each in (array, shown, path, data.getvalue(), io.BytesIO(data.getvalue()), llm.prepare(array)):
        np.testing.assert_array_equal(llm.logits(["a ", each]), expected)
    before = llm.store.counters
    url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
    for part in (
        {"type": "image", "image": path},
        {"type": "image", "image": llm.prepare(path)},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": url},
    ):
        llm.chat([{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}], max_tokens=1)
    after = llm.store.counters
    assert (after.asked, after.computed) == (before.asked + 4, before.computed)


def test_rows_and_pixels_can_be_had_and_changed(llm: LLM) -> None:
    shown = Image(picture(20, 30))
    rows = llm.embed_image(shown)
    prepared = llm.prepare(shown)
    assert rows.shape == (prepared.tokens, 32)
    assert rows.dtype == np.float32
    rows[:] = 0  # a copy
    assert np.abs(llm.embed_image(prepared)).max() > 0
    changed = prepared.replace(pixels=prepared.pixels * 0.5)
    assert np.abs(llm.embed_image(changed) - llm.embed_image(shown)).max() > 1e-4
    assert llm.modalities == {"text", "image"}


def test_a_beginning_of_sequence_comes_only_where_a_prompt_begins_with_text(llm: LLM) -> None:
    shown = Image(picture(20, 20))
    assert llm.encode(["a", shown])[:2] == [BOS, ord("a")]
    assert BOS not in llm.encode([shown, "a"])
    assert llm.encode([[65], shown, "a"])[0] == 65
    assert llm.encode(["a", "b"]) == llm.encode("ab")


def test_what_a_user_writes_is_no_picture(llm: LLM) -> None:
    mark = next(mark for kind, mark in MARK.items() if kind in llm.backend.model.path.name)  # type: ignore[union-attr]
    shown = Image(picture(20, 20))
    assert ID[mark] not in llm.encode(f"a {mark}")
    alone = llm.encode(["x", shown])
    written = llm.encode([f"{mark}x", shown])
    assert len(written) == len(alone) + len(mark)
    said = [{"type": "text", "text": f"Is {mark} a picture?"}, {"type": "image", "image": shown}]
    asked = llm.encode(llm.chat_prompt([{"role": "user", "content": said}]))
    assert asked.count(ID[mark]) == llm.encode([shown]).count(ID[mark])
    assert ID[mark] not in llm.chat_prompt([{"role": "user", "content": f"Is {mark} a picture?"}])  # type: ignore[operator]


def test_a_template_that_knows_no_pictures_gets_them_in_its_text(files: Files, tmp_path: Path) -> None:
    plain = "{% for m in messages %}<|{{ m.role }}|>{{ m.content + '' }}{% endfor %}"
    model, projector = write_small_vision(tmp_path, "qwen25vl", chat=plain)
    shown = Image(picture(20, 20))
    said = [
        {"role": "user", "content": [{"type": "image", "image": shown}, {"type": "text", "text": "What?"}]}
    ]
    with load(model, "cpu_ref", projector=projector) as llm:
        ids = llm.encode(llm.chat_prompt(said))
        expected = llm.encode(
            [[ID["<|user|>"], ID["<|vision_start|>"]], shown, [ID["<|vision_end|>"]], "What?"]
        )
        assert ids == expected
    model, projector = write_small_vision(tmp_path, "qwen25vl", chat="no pictures")
    with (
        load(model, "cpu_ref", projector=projector) as llm,
        pytest.raises(TemplateError, match="does not mark 1"),
    ):
        llm.chat(said)


# -- what cannot be served -------------------------------------------------------------------------------


@pytest.mark.fault("a picture is damaged, or no picture", "ImageError that names it, from submit or result()")
def test_pictures_that_cannot_be_taken_are_refused(llm: LLM, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("no picture")
    other = llm.submit(["fine ", Image(picture(20, 20))], max_tokens=4, **ENDLESS)
    for wrong in (tmp_path / "missing.png", tmp_path / "note.txt", b"", np.zeros((0, 4, 3), np.uint8)):
        with pytest.raises(ImageError):
            llm.generate(["a", wrong if isinstance(wrong, bytes) else Image(wrong)])
    with pytest.raises(ImageError, match="nothing is fetched"):
        llm.chat([{"role": "user", "content": [{"type": "image_url", "image_url": "http://x/y.png"}]}])
    assert len(other.result().tokens) == 4


@pytest.mark.fault("a picture's data end early", "ImageError from result(), and the other requests go on")
def test_a_picture_that_turns_out_to_be_damaged_fails_alone(llm: LLM) -> None:
    from PIL import Image as Pillow

    data = io.BytesIO()
    Pillow.fromarray(picture(64, 64)).save(data, "PNG")
    broken = Image(data.getvalue()[: len(data.getvalue()) // 2])
    handle = llm.submit(["a", broken], max_tokens=2)
    assert len(llm.generate(["a", Image(picture(20, 20))], max_tokens=2, **ENDLESS).tokens) == 2
    with pytest.raises(ImageError):
        handle.result()


@pytest.mark.parametrize("prompt", [[], [""], [[]], ["", []]])
def test_parts_that_hold_nothing_are_an_empty_prompt(llm: LLM, prompt: list[Any]) -> None:
    with pytest.raises(RequestError, match="the prompt is empty"):
        llm.generate(prompt)


@pytest.mark.fault("a prompt with pictures is longer than the context", "RequestError with both numbers")
def test_a_prompt_that_is_too_long_with_its_pictures_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="tokens with its pictures, the context holds 128"):
        llm.generate(["x" * 130, Image(picture(20, 20))])
    with pytest.raises(RequestError, match=r"token ids must be in \[0"):
        llm.submit([[-1], Image(picture(20, 20))])
    with pytest.raises(RequestError, match="must be in a list, got 65 alone"):
        llm.submit([65, Image(picture(20, 20))])  # type: ignore[list-item]


@pytest.mark.fault("a picture is prepared for another model", "ImageError that names both families")
def test_a_picture_prepared_for_another_family_is_refused(files: Files) -> None:
    refused = pytest.raises(ImageError, match="prepared for llava, this model takes those of gemma3")
    with opened(files, "llava") as llava, opened(files, "gemma3") as gemma, refused:
        gemma.generate(["a", llava.prepare(picture(20, 20))])


@pytest.mark.fault("a picture is given to a model that sees none", "RequestError that says how it can see")
def test_a_model_without_an_encoder_says_so(files: Files, tmp_path: Path) -> None:
    with load(write_small_llama(tmp_path / "text.gguf"), "cpu_ref") as llm:
        assert llm.modalities == {"text"}
        with pytest.raises(RequestError, match=r"sees no pictures: .* projector="):
            llm.generate(["a", Image(picture(20, 20))])
        with pytest.raises(RequestError, match="sees no pictures"):
            llm.chat([{"role": "user", "content": [{"type": "image", "image": picture(20, 20)}]}])
        for ask in (
            lambda: llm.store,
            lambda: llm.embed_image(picture(9, 9)),
            lambda: llm.prepare(picture(9, 9)),
        ):
            with pytest.raises(RequestError, match="sees no pictures"):
                ask()


@pytest.mark.fault("a projector belongs to another model", "ModelFileError when the model is opened")
def test_a_projector_of_another_model_is_refused(files: Files, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="the width of"):
        load(write_small_llama(tmp_path / "narrow.gguf", head=4), "cpu_ref", projector=files["llava"][1])


@pytest.mark.fault("a prompt has more pictures than cross attention holds", "RequestError with both numbers")
def test_more_pictures_than_the_cache_of_cross_attention_holds_are_refused(files: Files) -> None:
    refused = pytest.raises(RequestError, match="the prompt has 5 pictures, the cache holds 4")
    with opened(files, "mllama", parallel=1) as llm, refused:
        llm.generate([Image(picture(20, 20, n)) for n in range(5)])


# -- beside each other -----------------------------------------------------------------------------------


class Gate:
    """Holds encodings until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        embed = Encoder.embed

        def held(encoder: Encoder, *args: Any, **how: Any) -> Any:
            self.reached.set()
            assert self.open.wait(30)
            return embed(encoder, *args, **how)

        monkeypatch.setattr(Encoder, "embed", held)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def test_other_requests_go_on_while_a_picture_is_encoded(files: Files, gate: Gate) -> None:
    with opened(files, "gemma3") as llm:
        seeing = llm.submit(["a", Image(picture(20, 20))], max_tokens=3, **ENDLESS)
        assert gate.reached.wait(30)
        assert len(llm.generate("text", max_tokens=20, **ENDLESS).tokens) == 20
        assert not seeing.done
        gate.open.set()
        assert len(seeing.result().tokens) == 3
        assert seeing.result().timings.pictures > 0


def test_other_requests_go_on_while_a_picture_is_prepared(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on = threading.Event(), threading.Event()
    rgb = Image.rgb

    def held(image: Image) -> Any:
        reached.set()
        assert go_on.wait(30)
        return rgb(image)

    monkeypatch.setattr(Image, "rgb", held)
    with opened(files, "gemma3") as llm:
        seeing = llm.submit(["a", Image(picture(20, 20))], max_tokens=3, **ENDLESS)
        assert reached.wait(30)
        assert len(llm.generate("text", max_tokens=20, **ENDLESS).tokens) == 20
        go_on.set()
        assert len(seeing.result().tokens) == 3


def test_two_requests_with_one_picture_encode_it_once(files: Files, gate: Gate) -> None:
    with opened(files, "llava") as llm:
        handles = [llm.submit([f"{n}", Image(picture(20, 20))], max_tokens=3, **ENDLESS) for n in range(3)]
        assert gate.reached.wait(30)
        gate.open.set()
        for handle in handles:
            assert len(handle.result().tokens) == 3
        assert llm.store.counters[:2] == (3, 1)


def test_a_request_that_is_cancelled_meanwhile_costs_nobody_else_anything(files: Files, gate: Gate) -> None:
    with opened(files, "llava") as llm:
        shown, other = Image(picture(20, 20)), Image(picture(20, 20, 1))
        first = llm.submit(["a", shown], max_tokens=3, **ENDLESS)
        assert gate.reached.wait(30)
        second = llm.submit(["b", shown], max_tokens=3, **ENDLESS)
        waiting = llm.submit(["c", other], max_tokens=3, **ENDLESS)
        first.cancel()
        waiting.cancel()
        assert first.result(5).finish_reason == "cancelled"
        assert waiting.result(5).tokens == []
        gate.open.set()
        assert len(second.result().tokens) == 3
        llm.forget()
        assert llm.store.counters.bytes == 0


@pytest.mark.fault("a model is closed while a picture is encoded", "ClosedError from result()")
def test_closing_ends_requests_on_their_way(files: Files, gate: Gate) -> None:
    llm = opened(files, "llava")
    handle = llm.submit(["a", Image(picture(20, 20))], max_tokens=3)
    assert gate.reached.wait(30)
    closing = threading.Thread(target=llm.close)
    closing.start()
    with pytest.raises(ClosedError):
        handle.result(30)
    gate.open.set()
    closing.join(30)
    assert not closing.is_alive()
    with pytest.raises(ClosedError):
        llm.embed_image(picture(20, 20))


def test_the_store_keeps_to_its_budget(files: Files) -> None:
    rows = 4 * 16 * 32
    with opened(files, "llava", store_bytes=2 * rows) as llm:
        for n in range(5):
            llm.generate([Image(picture(20, 20, n)), "?"], max_tokens=1)
            assert llm.store.counters.bytes <= 2 * rows
        assert llm.store.counters.computed == 5
        llm.embed_image(picture(20, 20, 4))
        assert llm.store.counters.computed == 5
        llm.embed_image(picture(20, 20, 0))
        assert llm.store.counters.computed == 6
        prompt = [Image(picture(20, 20, n)) for n in range(4)]
        assert (
            len(llm.generate([*prompt, "?"], max_tokens=2, **ENDLESS).tokens) == 2
        )  # alone, beyond the budget
        assert llm.store.counters.bytes <= 2 * rows


# -- where it runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_sees_the_same(files: Files, kind: str) -> None:
    shown = Image(picture(20, 30))
    prompt = ["Look ", shown, " here"]
    said = [
        {"role": "user", "content": [{"type": "image", "image": shown}, {"type": "text", "text": "What?"}]}
    ]
    found = []
    for worker in (False, True):
        with opened(files, kind, worker=worker) as llm:
            answers = llm.generate(prompt, max_tokens=4, **ENDLESS), llm.chat(said, max_tokens=4, **ENDLESS)
            numbers = llm.logits(prompt), llm.embed_image(shown), llm.prepare(shown).pixels
            found.append(
                ([a.tokens for a in answers], llm.encode(prompt), numbers, llm.store.counters, llm.modalities)
            )
            with pytest.raises(ImageError):
                llm.generate(["a", b"no picture"])
    here, there = found
    assert here[:2] == there[:2]
    assert here[3:] == there[3:]
    for one, other in zip(here[2], there[2], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", BACKENDS)
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


def test_the_encoder_may_be_on_another_backend(files: Files) -> None:
    prompt = ["Look ", Image(picture(20, 30)), " here"]
    with opened(files, "gemma3") as llm:
        expected = llm.logits(prompt)
    for backend in BACKENDS:
        with opened(
            files, "gemma3", encoder_backend=backend, encoder_params=backbay.BackendParams(num_threads=1)
        ) as llm:
            assert isinstance(llm._engine.sight, Sight)  # type: ignore[attr-defined]
            assert llm._engine.sight.encoder.backend.name == backend  # type: ignore[attr-defined]
            np.testing.assert_allclose(llm.logits(prompt), expected, atol=1e-2)


def test_progress_goes_from_one_file_to_the_other(files: Files) -> None:
    seen: list[float] = []
    with opened(files, "llava", progress=seen.append):
        assert seen == sorted(seen)
        assert seen[-1] == 1.0


def test_a_step_grows_to_hold_a_picture_whose_tokens_see_each_other(files: Files) -> None:
    with opened(files, "gemma3", batch=2) as llm:
        assert llm.batch == 4
        assert llm.context <= CONTEXT
        llm.logits(["a", Image(picture(20, 20))])


FORKING = """
import os, sys, threading
sys.path[:0] = [sys.argv[1]]
from pathlib import Path
from small_vision import picture, write_small_vision
from backbay import ClosedError
from backbay_engine import Image, load
from backbay_engine.images.encoder import Encoder

model, projector = write_small_vision(Path(sys.argv[2]), "llava")
llm = load(model, "cpu_ref", projector=projector, context=128)
reached, go_on, network = threading.Event(), threading.Event(), Encoder._encoded

def held(*given, **how):  # the encoder's lock is held
    reached.set()
    assert go_on.wait(30)
    return network(*given, **how)

Encoder._encoded = held
running = llm.submit(["a", Image(picture(20, 20))], max_tokens=2)
assert reached.wait(30)
child = os.fork()
if child == 0:
    calls = {
        "running": lambda: running.result(5),
        "embed": lambda: llm.embed_image(picture(9, 9)),
        "prepare": lambda: llm.prepare(picture(9, 9)),
        "store": lambda: llm.store.counters,
        "submit": lambda: llm.submit(["a", Image(picture(20, 20))]),
    }
    for name, call in calls.items():
        try:
            call()
            print(name, "worked", flush=True)
        except ClosedError as error:
            print(name, "ok" if "fork" in str(error) else error, flush=True)
    llm.close()
    sys.exit(7)
_, status = os.waitpid(child, 0)
print("exit", os.waitstatus_to_exitcode(status), flush=True)
go_on.set()
print("parent", len(running.result(30).tokens), flush=True)
llm.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.fault(
    "a process forks while a picture is encoded", "ClosedError naming fork, in the child alone"
)
def test_a_forked_child_is_told_and_exits(tmp_path: Path) -> None:
    here = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, here, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    names = ("running", "embed", "prepare", "store", "submit")
    assert done.stdout.splitlines() == [*(f"{name} ok" for name in names), "exit 7", "parent 2"], done.stderr
