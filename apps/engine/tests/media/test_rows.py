"""A caller's own rows stand for tokens of a text: embeddings give the text's own answer, in every way a prompt is used."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import KIND_NAMES, changed, tensors_of, unpacked
from model_scripts import nmse
from numpy.typing import NDArray
from seeing_models import ENDLESS
from small_llama import BOS, write_small_llama
from small_sound import write_small_sound
from small_whisper import write_whisper
from sounds import heard

import backbay
from backbay import NoMemoryError
from backbay_engine import (
    LLM,
    Audio,
    ContextOverflowError,
    DamagedSnapshotError,
    RequestError,
    Rows,
    Snapshot,
    TemplateError,
    estimate,
    load,
)
from backbay_engine.snapshots.tensor_file import pack_tensors, unpack_tensors
from backbay_engine.steps.tokens import media_spans

BACKENDS = sorted(backbay.backends())
ONE = backbay.BackendParams(num_threads=1)
SIZES: dict[str, Any] = {"context": 64, "batch": 8, "parallel": 2, "kv_dtype": "f32", "params": ONE}
IDS = [BOS, 5, 9, 77, 30, 31, 32, 90, 91, 92, 93, 94]
RNG = np.random.default_rng(3)
EMBEDDED = {"gemma3n", "gemma4", "gemma4-dense", "gemma4-moe"}
"""Their blocks, too, have embeddings of the tokens' ids."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("rows") / "text.gguf")


@pytest.fixture(scope="module")
def table(path: Path) -> NDArray[np.float32]:
    """The embeddings of all tokens."""
    return tensors_of(path)["token_embd.weight"]


@pytest.fixture(scope="module", params=BACKENDS)
def llm(path: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with load(path, request.param, **SIZES) as opened:
        yield opened


def random_rows(count: int, width: int = 32) -> Rows:
    return Rows(RNG.standard_normal((count, width)))


@pytest.mark.few(3)
def test_embeddings_of_tokens_give_the_logits_of_the_tokens(llm: LLM, table: NDArray[np.float32]) -> None:
    expected = llm.logits(IDS)
    mixed = [IDS[:2], Rows(table[IDS[2:4]]), Rows(table[IDS[4:9]]), IDS[9:]]
    for prompt in (mixed, Rows(table[IDS]), [Rows(table[IDS].astype(np.float64))]):
        assert nmse(llm.logits(prompt), expected) < 1e-10
    half = Rows(table[IDS].astype(np.float16))
    rounded = Rows(table[IDS].astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(llm.logits(half), llm.logits(rounded))
    assert nmse(llm.logits([IDS[:2], random_rows(2), IDS[4:]]), expected) > 1e-2
    texts = ["one ", Rows(table[[ord("2"), ord("3")]]), " four"]
    assert nmse(llm.logits(texts), llm.logits("one 23 four")) < 1e-10


@pytest.mark.few(3)
def test_rows_are_generated_from_streamed_and_counted(llm: LLM, table: NDArray[np.float32]) -> None:
    prompt, options = [IDS[:3], Rows(table[IDS[3:]])], {"max_tokens": 6, **ENDLESS}
    expected = llm.generate(IDS, **options)
    found = llm.generate(prompt, **options)
    assert found.tokens == expected.tokens
    assert found.timings.prompt_tokens == len(IDS) == len(llm.encode(prompt))
    assert "".join(llm.stream(prompt, **options)) == expected.text
    assert llm.encode(prompt)[:3] == IDS[:3]
    with pytest.raises(ContextOverflowError) as full:
        llm.generate([IDS, random_rows(60)])
    assert (full.value.prompt_tokens, full.value.context) == (72, 64)


@pytest.mark.few(3)
def test_rows_of_one_content_are_computed_once(llm: LLM, table: NDArray[np.float32]) -> None:
    given, options = random_rows(9), {"max_tokens": 3, **ENDLESS}
    first = llm.generate([IDS, given, [7]], **options)
    again = llm.generate([IDS, Rows(given.values.astype(np.float64)), [7, 8]], **options)
    assert again.timings.reused_tokens == len(IDS) + 9 + 1
    assert first.timings.prompt_tokens == len(IDS) + 9 + 1
    other = Rows(given.values + np.float32(0.5))
    assert llm.generate([IDS, other, [7]], **options).timings.reused_tokens == len(IDS)
    text = llm.encode([IDS, given])
    assert llm.generate([*text, 7], **options).timings.reused_tokens == len(IDS), "placeholders are no rows"


@pytest.mark.few(3)
def test_a_full_context_forgets_rows_as_a_whole(llm: LLM) -> None:
    given = [IDS[:2], random_rows(20), IDS, random_rows(15), IDS]
    found = llm.generate(given, reuse=False, max_tokens=30, num_keep=3, **ENDLESS)
    assert len(found.tokens) == 30
    assert llm.runner is not None
    slot = max(llm.runner.slots.all, key=lambda slot: slot.last_used)
    (left,) = media_spans(slot.tokens)
    assert (left.begin, left.end, left.media.content) == (2, 22, given[1].content)


def test_where_keys_cannot_move_rows_are_computed_anew_after_a_shift(tmp_path: Path) -> None:
    with load(unpacked("gpt2", tmp_path), "cpu_ref", context=40, batch=8, kv_dtype="f32") as llm:
        given = [[4, 5], random_rows(9, llm.model.width), [6, 7], random_rows(20, llm.model.width)]  # type: ignore[attr-defined]
        options: dict[str, Any] = {"num_keep": 1, "temperature": 0, "max_tokens": 30}
        whole = llm.generate(given, reuse=False, **options).tokens
        assert len(whole) > 20
        assert llm.generate(given, reuse=False, resume=whole[:17], **options).tokens == whole


@pytest.mark.few(3)
def test_requests_with_rows_and_without_share_their_steps(llm: LLM) -> None:
    prompts = [[IDS[:n], random_rows(3 * n), [n]] if n % 2 else IDS[: n + 1] for n in range(1, 7)]
    alone = [llm.generate(each, max_tokens=5, reuse=False, **ENDLESS).tokens for each in prompts]
    llm.forget()
    handles = [llm.submit(each, max_tokens=5, **ENDLESS) for each in prompts]
    assert [handle.result().tokens for handle in handles] == alone


PARTS = "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}"


@pytest.mark.parametrize("content", ["{{ m.content }}", PARTS, "{{ m.content | trim }}"])
def test_a_chat_has_rows_among_its_parts(
    path: Path, table: NDArray[np.float32], tmp_path: Path, content: str
) -> None:
    source = "{% for m in messages %}<|{{ m.role }}|>" + content + "{% endfor %}<|assistant|>"
    made = changed(path, tmp_path / "chat.gguf", metadata={"tokenizer.chat_template": source})
    part = {"type": "rows", "rows": table[[ord("A"), ord("B")]]}
    said = [{"role": "user", "content": ["x", part, {"type": "text", "text": "y"}, Rows(table[[ord("Z")]])]}]
    with load(made, "cpu_ref", **SIZES) as llm:
        expected = llm.chat([{"role": "user", "content": "xAByZ"}], max_tokens=4, temperature=0)
        found = llm.chat(said, max_tokens=4, temperature=0)
        assert found.tokens == expected.tokens
        assert found.timings.prompt_tokens == expected.timings.prompt_tokens
        with pytest.raises(RequestError, match='needs the key "rows"'):
            llm.chat([{"role": "user", "content": [{"type": "rows", "data": 5}]}])
        with pytest.raises(RequestError, match="takes a numpy array of floats"):
            llm.chat([{"role": "user", "content": [{"type": "rows", "rows": [[1.0] * 32]}]}])


def test_a_template_that_leaves_rows_out_is_refused(
    path: Path, table: NDArray[np.float32], tmp_path: Path
) -> None:
    source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content[:5] }}{% endfor %}"
    made = changed(path, tmp_path / "chat.gguf", metadata={"tokenizer.chat_template": source})
    with (
        load(made, "cpu_ref", **SIZES) as llm,
        pytest.raises(TemplateError, match="does not show 2 rows once each"),
    ):
        llm.chat([{"role": "user", "content": [Rows(table[:1]), Rows(table[:1])]}])


@pytest.mark.fault(
    "rows of another shape, dtype or width, or with values that are no numbers", "RequestError"
)
@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((2, 31), np.float32), "rows have 31 features, llama takes rows of 32"),
        (np.zeros((0, 32), np.float32), r"one row at least, got the shape \(0, 32\)"),
        (np.zeros((2, 0), np.float32), r"one row at least, got the shape \(2, 0\)"),
        (np.zeros(32, np.float32), r"\(rows, width\), got the shape \(32,\)"),
        (np.zeros((1, 2, 32), np.float32), r"got the shape \(1, 2, 32\)"),
        (np.zeros((2, 32), np.int32), "floats, .* got the dtype int32"),
        (np.zeros((2, 32), np.bool_), "got the dtype bool"),
        (np.zeros((2, 32), np.complex64), "got the dtype complex64"),
        (np.zeros((2, 32), object), "got the dtype object"),
        ([[0.0] * 32], "numpy array of floats, .* got list"),
        (np.where(np.arange(64) == 33, np.nan, 0).reshape(2, 32), "got nan at place 1 of row 1"),
        (np.where(np.arange(64) == 5, np.inf, 0).reshape(2, 32), "got inf at place 5 of row 0"),
        (np.full((2, 32), 1e39), r"finite in float32, got 1e\+39 at place 0 of row 0"),
    ],
)
def test_what_are_no_rows_is_refused_with_its_reason(path: Path, array: Any, reason: str) -> None:
    with load(path, "cpu_ref", **SIZES) as llm:
        for ask in (llm.generate, llm.logits, llm.encode):
            with pytest.raises(RequestError, match=reason):
                ask([IDS, Rows(array)])
        endless = dict.fromkeys(llm.end_ids, float("-inf"))
        answer = llm.generate([IDS, random_rows(2)], max_tokens=1, logit_bias=endless)
        assert answer.finish_reason == "length"


def test_rows_stay_as_they_were_given() -> None:
    array = np.ones((3, 4))
    rows = Rows(array)
    array[:] = 7
    assert (rows.values == 1).all()
    assert not rows.values.flags.writeable
    again = pickle.loads(pickle.dumps(rows))
    assert again.content == rows.content == Rows(np.ones((3, 4), np.float16)).content
    assert Rows(np.ones((4, 3))).content != rows.content
    assert repr(rows) == "Rows(3 of 4)"


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_rows_take_memory_once_and_only_them(path: Path, backend: str) -> None:
    with load(path, backend, **SIZES) as llm:
        before = llm.memory().total()
        assert before == estimate(path, backend, **SIZES).total()
        llm.generate(IDS, max_tokens=2)
        assert llm.memory().total() <= before
        llm.generate([random_rows(8)], max_tokens=2)
        reserved = llm.step_cache._kept.reserved  # type: ignore[attr-defined]
        assert before < reserved < before * 1.05
        for n in range(1, 12):
            llm.generate([IDS[:n], random_rows(n), IDS[:n]], max_tokens=2)
            assert llm.memory().total() <= reserved
        assert llm.step_cache._kept.reserved == reserved  # type: ignore[attr-defined]


@pytest.mark.fault("no memory is left for steps with rows", "NoMemoryError; requests of text go on")
def test_without_memory_for_rows_text_goes_on(path: Path) -> None:
    with backbay.open(None, "ggml") as backend:
        host = backend.devices()[0].id
    most = estimate(path, "ggml", **SIZES).total() + 64
    params = backbay.BackendParams(num_threads=1, max_memory={host: most})
    with load(path, "ggml", **{**SIZES, "params": params}) as llm:
        expected = llm.generate(IDS, max_tokens=4, temperature=0).tokens
        beside = llm.submit(IDS, max_tokens=20, **ENDLESS)
        with pytest.raises(NoMemoryError):
            llm.generate([IDS, random_rows(4)], max_tokens=2)
        assert len(beside.result().tokens) == 20
        assert llm.generate(IDS, max_tokens=4, temperature=0).tokens == expected


def test_a_worker_takes_rows(path: Path, table: NDArray[np.float32]) -> None:
    with load(path, "cpu_ref", worker=True, **SIZES) as llm:
        prompt = [IDS[:2], Rows(table[IDS[2:]])]
        assert nmse(llm.logits(prompt), llm.logits(IDS)) < 1e-10
        assert llm.encode(prompt)[:2] == IDS[:2]
        with pytest.raises(ContextOverflowError, match="has 65 tokens"):
            llm.logits(random_rows(65))


@pytest.mark.parametrize("worker", [False, True], ids=["here", "in a worker"])
def test_an_answer_with_rows_is_saved_and_goes_on(path: Path, tmp_path: Path, *, worker: bool) -> None:
    prompt, options = ["ab", random_rows(5), IDS, random_rows(3), "c"], {"max_tokens": 9, **ENDLESS}
    with load(path, "cpu_ref", worker=worker, **SIZES) as llm:
        expected = llm.generate(prompt, **{**options, "max_tokens": 12})
        llm.save(prompt).write(tmp_path / "prompt.snapshot")
        handle = llm.submit(prompt, **options)
        for _ in zip(range(4), handle.steps(), strict=False):
            pass
        llm.save(handle).write(tmp_path / "answer.snapshot")
        handle.cancel()
        over = llm.submit(prompt, **options)
        over.result()
        llm.save(over).write(tmp_path / "over.snapshot")
    with load(path, "ggml", **SIZES) as other:
        for name in ("prompt", "answer", "over"):
            other.forget()
            snapshot = other.restore(tmp_path / f"{name}.snapshot")
            going_on = {**options, **snapshot.options, "max_tokens": 12}
            found = other.generate(list(snapshot.prompt), **going_on)
            assert found.tokens == expected.tokens
            assert found.timings.reused_tokens == found.timings.prompt_tokens - (name == "prompt")
        given = Snapshot.read(tmp_path / "prompt.snapshot").prompt
        assert [type(part) for part in given] == [tuple, Rows, tuple, Rows, tuple]
        assert given[1].content == prompt[1].content


WRONG: list[dict[str, Any]] = [
    {"rows": 5},
    {"rows": [[2, 7, 5]]},
    {"rows": [[2, 7, 4, "00"]]},
    {"rows": [[7, 2, 5, "00"]]},
    {"rows": [[-1, 2, 5, "00"]]},
    {"rows": [[2, 700, 1000, "00"]]},
    {"rows": [[2, 7, 5, "no hex"]]},
    {"rows": [[4, 7, 5, "00"], [2, 5, 5, "00"]]},
    {"prompt_rows": [2, 8]},
    {"prompt_rows": [700]},
    {"prompt_rows": [-1]},
    {"prompt_rows": ["2"]},
    {"prompt_rows": 2},
]


@pytest.mark.fault("a snapshot with right checksums has rows where none can be", "DamagedSnapshotError")
def test_wrong_places_of_rows_in_a_snapshot_are_refused(path: Path) -> None:
    with load(path, "cpu_ref", **SIZES) as llm:
        data = llm.save([[5, 6], random_rows(5), IDS]).to_bytes()
    arrays, facts = unpack_tensors(data, "whole")
    assert facts["prompt_rows"] == [2]
    assert Snapshot.from_bytes(pack_tensors(arrays, facts)).rows == Snapshot.from_bytes(data).rows
    for wrong in WRONG:
        with pytest.raises(DamagedSnapshotError, match="the snapshot is damaged, or of another version"):
            Snapshot.from_bytes(pack_tensors(arrays, {**facts, **wrong}))
    for values in (np.zeros((5, 32), np.int32), np.full((5, 32), np.nan, np.float32)):
        with pytest.raises(DamagedSnapshotError):
            Snapshot.from_bytes(pack_tensors({**arrays, "rows.0": values}, facts))


@pytest.mark.parametrize("name", KIND_NAMES)
@pytest.mark.few(20)
def test_rows_enter_every_kind_of_model_where_embeddings_do(tmp_path: Path, name: str) -> None:
    path = unpacked(name, tmp_path)
    ids = RNG.integers(0, 60, 12).tolist()
    with load(path, "cpu_ref", context=64, batch=5, kv_dtype="f32") as llm:
        if not llm._port.facts.generates:  # type: ignore[attr-defined]
            return
        if name.startswith("t5"):
            with pytest.raises(RequestError, match="t5 takes no rows in the place of tokens"):
                llm.logits([ids, random_rows(2)])
            return
        embeddings = llm.step_cache.tapped(llm.step(ids))["embedding"]
        found = llm.logits([ids[:3], Rows(embeddings[3:10]), ids[10:]])
        assert np.isfinite(found).all()
        if name not in EMBEDDED:
            assert nmse(found, llm.logits(ids)) < 1e-10


@pytest.mark.parametrize("name", [name for name in KIND_NAMES if "bert" in name or "embedding" in name])
def test_vectors_of_texts_with_rows_are_those_of_the_texts(tmp_path: Path, name: str) -> None:
    table = tensors_of(path := unpacked(name, tmp_path))["token_embd.weight"]
    ids = RNG.integers(0, 60, 11).tolist()
    with load(path, "cpu_ref", context=64, batch=16) as llm:
        facts = llm._port.facts  # type: ignore[attr-defined]
        if facts.ranks or facts.generates:
            return
        scale = np.sqrt(table.shape[1]) if facts.architecture.startswith("gemma") else 1
        parts = [ids[:2], Rows(table[ids[2:7]] * scale), ids[7:]]
        found = llm.embed([ids, parts, parts[:2], ids[:4]])
        expected = llm.embed([ids, ids, ids[:7], ids[:4]])
        assert nmse(found, expected) < 1e-10
        with pytest.raises(RequestError, match=r"a text has 17 tokens, a step takes 16 \(batch\)"):
            llm.embed([[ids, Rows(table[:6])]])


def test_models_that_hear_alone_take_no_rows_as_tokens(tmp_path: Path) -> None:
    with load(write_whisper(tmp_path), "cpu_ref", num_threads=1) as whisper:
        sound = whisper.prepare(Audio(heard(0.5), rate=16_000))
        rows = whisper.embed_audio(sound)
        expected = whisper.logits([1, 2, 3], audio=sound)
        np.testing.assert_array_equal(whisper.logits([1, 2, 3], audio=Rows(rows, of=sound)), expected)
        with pytest.raises(RequestError, match="whisper takes no rows in the place of tokens"):
            whisper.logits([1, 2, 3], audio=Rows(rows))
    model, _ = write_small_sound(tmp_path, "voxtral")
    with (
        load(model, "cpu_ref", num_threads=1, context=64) as deaf,
        pytest.raises(RequestError, match="hears no sound: its file has no encoder"),
    ):
        deaf.logits(["a", Rows(rows, of=sound)])


def test_rows_have_no_log_probabilities_and_are_not_encoded_again(path: Path) -> None:
    with load(path, "cpu_ref", **SIZES) as llm:
        with pytest.raises(RequestError, match="rows have no log-probabilities"):
            llm.score_tokens([IDS, random_rows(2)])
        with pytest.raises(RequestError, match="sees no pictures"):
            llm.embed_image(random_rows(2))
        with pytest.raises(RequestError, match=r"of takes what llm\.prepare gives"):
            Rows(np.zeros((2, 32)), of="a.png")  # type: ignore[arg-type]


def test_a_file_without_a_vocabulary_takes_rows(
    path: Path, table: NDArray[np.float32], tmp_path: Path
) -> None:
    names = ("model", "pre", "tokens", "token_type", "merges", "suppress_tokens")
    gone = {f"tokenizer.ggml.{name}": None for name in names}
    bare = changed(path, tmp_path / "bare.gguf", metadata={**gone, "tokenizer.chat_template": None})
    with load(bare, "cpu_ref", **SIZES) as llm:
        assert nmse(llm.logits([IDS[:3], Rows(table[IDS[3:]])]), llm.logits(IDS)) < 1e-10
