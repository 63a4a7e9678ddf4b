"""The parts of networks: rotary embeddings, outputs of steps, pooled embeddings."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from model_files import changed, stored
from model_scripts import TEXTS, nmse, step_of, tokens

import backbay
from backbay import DType
from backbay.gguf import Config
from backbay_engine.cache import CacheSizes
from backbay_engine.models import load_model
from backbay_engine.models.batch import Batch
from backbay_engine.models.nn import Factors, Gating, Rope, Routing, Shape
from backbay_engine.models.nn.shape import sliding_layers
from backbay_engine.runner.traced_steps import StepCache
from backbay_engine.steps.step import Step

BACKENDS = sorted(backbay.backends())
SHAPE = Shape(64, 2, 2, 32, 32, 64, 0, 0)
STRETCHED = {
    "plain": {},
    "linear": {"type": "linear", "factor": 4.0},
    "linear, magnified": {"type": "linear", "factor": 4.0, "attn_factor": 1.5},
    "yarn": {"type": "yarn", "factor": 8.0, "original_context_length": 64},
    "yarn, magnified": {
        "type": "yarn",
        "factor": 8.0,
        "original_context_length": 64,
        "yarn_attn_factor": 1.3,
    },
    "none": {"type": "none", "factor": 8.0},
}


def rope(ctx, stretched, *, exact=False, factors=False) -> Rope:
    metadata = {f"rope.scaling.{key}": value for key, value in STRETCHED[stretched].items()}
    leaf = ctx.from_floats(np.linspace(1, 4, 16, dtype=np.float32)) if factors else None
    return Rope(Config(metadata), SHAPE, "neox", factors=Factors(leaf, leaf), exact=ctx if exact else None)


@pytest.mark.parametrize("special", [{}, {"exact": True}, {"factors": True}], ids=str)
@pytest.mark.parametrize("stretched", STRETCHED)
def test_shifted_keys_are_as_if_turned_once(stretched, special):
    x = np.random.default_rng(0).standard_normal((9, 2, 32), np.float32)
    with backbay.open(None, backend="cpu_ref") as backend, backend.new_context() as ctx:
        turn = rope(ctx, stretched, **special)
        first, by = np.arange(9, dtype=np.int32) * 11, np.array([0, -3, 5, 0, -9, 1, 2, -60, 4], np.int32)
        keys = turn(ctx, ctx.from_floats(x), ctx.from_ints(first))
        moved = turn.shift(ctx, keys, ctx.from_ints(by))
        wanted = turn(ctx, ctx.from_floats(x), ctx.from_ints(first + by))
        ctx.compute(moved, wanted)
        assert nmse(moved.numpy(), wanted.numpy()) < 1e-12


def test_exact_yarn_differs_from_the_ops_by_the_ends_of_its_ramp_alone():
    x = np.random.default_rng(0).standard_normal((9, 2, 32), np.float32)
    with backbay.open(None, backend="cpu_ref") as backend, backend.new_context() as ctx:
        at = ctx.from_ints(np.arange(9, dtype=np.int32))
        both = [rope(ctx, "yarn", exact=exact)(ctx, ctx.from_floats(x), at) for exact in (False, True)]
        ctx.compute(*both)
        rounded, whole = (t.numpy() for t in both)
        assert np.linalg.norm(rounded) == pytest.approx(np.linalg.norm(whole), rel=1e-6)  # equally magnified
        assert 0 < nmse(rounded, whole) < 0.1


@pytest.mark.parametrize("backend_name", BACKENDS)
@pytest.mark.parametrize("stretched", ["plain", "yarn, magnified"])
@pytest.mark.parametrize("sections", [(6, 5, 5, 0), (8, 4, 4, 0), (12, 0, 4, 0)], ids=str)
def test_axes_take_turns_until_they_have_their_pairs(sections, stretched, backend_name):
    """The last pairs of the published (24, 20, 20) are time's, as in transformers."""
    rng = np.random.default_rng(1)
    x, axes = rng.standard_normal((9, 2, 32), np.float32), rng.integers(0, 40, (4, 9), np.int32)
    metadata = Config({f"rope.scaling.{key}": value for key, value in STRETCHED[stretched].items()})
    axis = np.zeros(16, np.int32)
    for each in (1, 2):
        axis[each : 3 * sections[each] : 3] = each
    with backbay.open(None, backend=backend_name) as backend, backend.new_context() as ctx:
        turn = Rope(metadata, SHAPE, "neox", sections=sections, in_turn=ctx)
        plain = Rope(metadata, SHAPE, "neox")
        leaf = ctx.from_floats(x)
        found = turn(ctx, leaf, ctx.from_ints(axes.ravel()))
        by_axis = [plain(ctx, leaf, ctx.from_ints(axes[each])) for each in range(3)]
        ctx.compute(found, *by_axis)
        turned = np.stack([each.numpy() for each in by_axis])
        wanted = np.where(
            np.tile(axis, 2) == 1, turned[1], np.where(np.tile(axis, 2) == 2, turned[2], turned[0])
        )
        assert nmse(found.numpy(), wanted) < 1e-10


def test_experts_with_large_scores_keep_their_order():
    with backbay.open(None, backend="cpu_ref") as backend, backend.new_context() as ctx:
        ids, _ = Routing(3, 2, Gating.SIGMOID)(ctx, ctx.from_floats([[40, 60, 50]]))
        ctx.compute(ids)
        assert ids.numpy().tolist() == [[1, 2]]


def test_a_window_pattern_is_a_number_or_an_array_or_the_architectures():
    def slides(**metadata):
        given = {"block_count": 4, "attention.sliding_window": 8, **metadata}
        return sliding_layers(Config(given), 3)

    pattern = "attention.sliding_window_pattern"
    assert slides() == (8, [True, True, False, True])
    assert slides(**{pattern: 2}) == (8, [True, False, True, False])
    assert slides(**{pattern: 1}) == (8, [False] * 4)
    assert slides(**{pattern: np.array([False, True, False, False])}) == (8, [False, True, False, False])
    assert slides(**{"attention.sliding_window": 0}) == (0, [False] * 4)


def test_a_window_counts_where_the_architecture_has_none_only_with_a_pattern():
    given = {"block_count": 3, "attention.sliding_window": 8}
    assert sliding_layers(Config(given), None) == (0, [False] * 3)
    layers = {**given, "attention.sliding_window_pattern": np.array([True, False, True])}
    assert sliding_layers(Config(layers), None) == (8, [True, False, True])
    assert sliding_layers(Config({**given, "attention.sliding_window_pattern": 3}), None)[1] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(("context", "taken"), [(None, "long"), (64, "short"), (65, "long")])
def test_the_length_of_the_context_says_which_factors_hold(context, taken):
    metadata = {"rope.scaling.type": "longrope", "rope.scaling.original_context_length": 64}
    with backbay.open(None, backend="cpu_ref") as backend, backend.new_context() as ctx:
        held = {
            name: ctx.from_floats(np.full(16, n, np.float32)) for n, name in enumerate(("short", "long"), 1)
        }
        turn = Rope(Config({**metadata, "context_length": 128}), SHAPE, "neox", factors=Factors(**held))
        if context is not None:
            turn.fit(context)
        assert turn.factors is held[taken]


def opened(backend, model) -> StepCache:
    cache = model.new_cache()
    cache.open(backend, CacheSizes(2, capacity=256, batch=64, dtype=DType.F32))
    return StepCache(model, cache)


@pytest.mark.parametrize("backend_name", BACKENDS)
@pytest.mark.parametrize("name", ["llama-llama3", "gemma3", "gpt-oss"])
def test_outputs_are_those_tokens_rows_in_their_order(name, backend_name):
    with backbay.open(stored(name), backend=backend_name) as backend:
        model = load_model(backend)
        backend.load()
        whole = step_of([(0, tokens(12, 1)), (1, tokens(5, 2))], [0, 0])
        chosen = np.array([16, 3, 11], np.int32)
        few = Step(whole.tokens, whole.positions, whole.sequences, chosen)
        every, some = opened(backend, model).run(whole), opened(backend, model).run(few)
        assert nmse(some, every[chosen]) < 1e-6


def test_the_last_block_works_on_outputs_alone():
    with backbay.open(stored("qwen3"), backend="cpu_ref") as backend:
        model = load_model(backend)
        cache = model.new_cache()
        cache.open(backend, CacheSizes(1, capacity=256, batch=64, dtype=DType.F32))
        whole = step_of([(0, tokens(12, 1))], [0])
        step = Step(whole.tokens, whole.positions, whole.sequences, np.array([11], np.int32))
        with backend.new_context() as ctx:
            batch = Batch(ctx, step, cache.bind(ctx, cache.plan(step)))
            model.forward(ctx, batch)
            assert {name: tensor.shape for name, tensor in batch.taps.items()} == {
                "embedding": (32, 12),
                "blk.0.attention": (32, 12),
                "blk.0": (32, 12),
                "blk.1.attention": (32, 1),
                "blk.1": (32, 1),
                "output_norm": (32, 1),
                "logits": (64, 1),
            }


@pytest.mark.parametrize("backend_name", BACKENDS)
def test_a_decoding_step_is_traced_once(backend_name):
    with backbay.open(stored("gemma3"), backend=backend_name) as backend:
        model = load_model(backend)
        backend.load()
        steps, ends = opened(backend, model), [0, 0]
        steps.run(step_of([(0, tokens(9, 1))], ends))
        steps.run(step_of([(0, (5,))], ends))
        before = replace(backend.counters, runs=0)
        for token in tokens(30, 2):
            steps.run(step_of([(0, (token,))], ends))
        assert replace(backend.counters, runs=0) == before


def test_results_are_lent_until_the_next_step_or_stay():
    with backbay.open(stored("qwen3"), backend="cpu_ref") as backend:
        model = load_model(backend)
        backend.load()
        steps, ends = opened(backend, model), [0, 0]
        steps.lends = 4
        first, second = step_of([(0, tokens(4, 1))], ends), step_of([(1, tokens(4, 2))], ends)
        lent, own = steps.run(first), opened(backend, model).run(first)
        assert np.array_equal(lent, own)
        other = steps.run(second)
        assert np.shares_memory(lent, other)
        assert not np.array_equal(lent, own)
        steps.lends = 0
        stays = steps.run(step_of([(1, (5,))], ends))
        assert not np.shares_memory(stays, other)


def embed(path, texts, outputs=None, backend_name="cpu_ref"):
    with backbay.open(path, backend=backend_name) as backend:
        model = load_model(backend)
        backend.load()
        step = step_of(list(enumerate(texts)), [0] * len(texts))
        starts = np.cumsum([0, *map(len, texts)])[:-1]
        chosen = np.array(starts if outputs is None else outputs, np.int32)
        return StepCache(model, None).run(Step(step.tokens, step.positions, step.sequences, chosen))


@pytest.mark.parametrize("backend_name", BACKENDS)
@pytest.mark.parametrize("name", ["bert-mean", "bert-cls"])
def test_texts_in_one_batch_do_not_see_each_other(name, backend_name):
    together = embed(stored(name), TEXTS, backend_name=backend_name)
    alone = np.concatenate([embed(stored(name), [text], backend_name=backend_name) for text in TEXTS])
    assert nmse(together, alone) < 1e-6


@pytest.mark.parametrize("pooling", [1, 2, 3])
def test_any_token_stands_for_its_text(tmp_path, pooling):
    path = changed("bert-mean", tmp_path / "m.gguf", metadata={"bert.pooling_type": pooling})
    ends = np.cumsum([len(text) for text in TEXTS])
    assert np.array_equal(embed(path, TEXTS, ends - 1), embed(path, TEXTS))


def test_pooling_takes_the_mean_or_an_end_of_each_text(tmp_path):
    def of(pooling, outputs=None):
        path = changed("bert-mean", tmp_path / f"{pooling}.gguf", metadata={"bert.pooling_type": pooling})
        return embed(path, TEXTS, outputs)

    ends = np.cumsum([0, *[len(text) for text in TEXTS]])
    every = of(0, range(ends[-1]))
    assert nmse(of(2), every[ends[:-1]]) < 1e-12
    assert nmse(of(3), every[ends[1:] - 1]) < 1e-12
    means = np.stack([every[begin:end].mean(0) for begin, end in pairwise(ends)])
    assert nmse(of(1), means) < 1e-12
