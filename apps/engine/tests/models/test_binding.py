"""Models from files: tensors and metadata, and errors for files that do not fit."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from model_files import changed, stored, tensors_of, unpacked
from model_scripts import SCRIPTS, nmse, run_script

import backbay
import backbay_engine
from backbay import BackbayError, BackendParams, DType, ModelFileError
from backbay_engine.models import load_model

BACKENDS = sorted(backbay.backends())


def refusal(path) -> str:
    with backbay.open(path, backend="cpu_ref") as backend, pytest.raises(ModelFileError) as told:
        load_model(backend)
    return str(told.value)


def logits(path, backend_name="cpu_ref"):
    with backbay.open(path, backend=backend_name) as backend:
        model = load_model(backend)
        backend.load()
        return run_script(backend, model, SCRIPTS["prompt"], DType.F32)


def test_all_that_is_missing_is_told_at_once(tmp_path):
    gone = dict.fromkeys(["blk.0.attn_q.weight", "blk.1.ffn_up.weight", "output_norm.weight"])
    told = refusal(changed("llama-llama3", tmp_path / "m.gguf", tensors=gone))
    assert "blk.0.attn_q.weight [32, 32], blk.1.ffn_up.weight [32, 64], output_norm.weight [32]" in told
    assert "; nearest: 'blk." in told


@pytest.mark.parametrize("name", ["granite", "granitehybrid"])
@pytest.mark.parametrize("known", [True, False])
def test_the_file_of_a_granite_says_whether_it_knows_positions(tmp_path, name, known):
    metadata = {f"{name}.rope.scaling.finetuned": known}
    path = changed(unpacked(name, tmp_path), tmp_path / "changed.gguf", metadata=metadata)
    with backbay.open(path, backend="cpu_ref") as backend:
        assert any(block.rope is not None for block in load_model(backend).blocks) is known


def test_a_tensor_of_another_shape_is_told_with_both_shapes(tmp_path):
    wrong = {
        "blk.1.attn_v.weight": np.zeros((8, 32), np.float32),
        "output.weight": np.zeros((63, 32), np.float32),
    }
    told = refusal(changed("llama-llama3", tmp_path / "m.gguf", tensors=wrong))
    assert "expected blk.1.attn_v.weight [32, 16], output.weight [32, 64], found [32, 8], [32, 63]" in told


def test_a_long_list_of_missing_tensors_is_cut(tmp_path):
    gone = dict.fromkeys(name for name in tensors_of("qwen3moe") if name.startswith("blk."))
    assert " and 12 more, found none of them" in refusal(
        changed("qwen3moe", tmp_path / "m.gguf", tensors=gone)
    )


def test_tensors_that_nothing_uses_are_logged_and_no_more(tmp_path, caplog):
    extra = {"blk.0.attn_rot_embd.weight": np.ones(1, np.float32)}
    path = changed("llama-llama3", tmp_path / "m.gguf", tensors=extra)
    with caplog.at_level(logging.WARNING), backbay.open(path, backend="cpu_ref") as backend:
        load_model(backend)
    assert "nothing uses the tensors blk.0.attn_rot_embd.weight" in caplog.text


def test_a_whole_file_says_nothing(caplog):
    with caplog.at_level(logging.WARNING), backbay.open(stored("gemma3"), backend="cpu_ref") as backend:
        load_model(backend)
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("qwen3", "blk.1.attn_q_norm.weight"),
        ("gpt-oss", "blk.0.attn_sinks.weight"),
        ("gpt-oss", "blk.1.ffn_down_exps.bias"),
        ("gpt-oss", "blk.0.attn_k.bias"),
        ("gemma3", "blk.2.post_ffw_norm.weight"),
        ("mixtral", "blk.0.ffn_gate_inp.weight"),
        ("bert-cls", "position_embd.weight"),
    ],
)
def test_what_an_architecture_cannot_do_without_is_missed(tmp_path, name, tensor):
    assert tensor in refusal(changed(name, tmp_path / "m.gguf", tensors={tensor: None}))


def test_without_an_output_matrix_the_embedding_serves(tmp_path):
    embedding = tensors_of("qwen2")["token_embd.weight"]
    tied = changed("qwen2", tmp_path / "tied.gguf", tensors={"output.weight": None})
    copied = changed("qwen2", tmp_path / "copied.gguf", tensors={"output.weight": embedding})
    assert np.array_equal(logits(tied), logits(copied))


def test_one_matrix_may_hold_queries_keys_and_values(tmp_path):
    held, joint = tensors_of("qwen2"), {}
    for layer in range(2):
        for part in ("weight", "bias"):
            names = [f"blk.{layer}.attn_{which}.{part}" for which in "qkv"]
            joint[f"blk.{layer}.attn_qkv.{part}"] = np.concatenate([held[name] for name in names])
            joint |= dict.fromkeys(names)
    path = changed("qwen2", tmp_path / "joint.gguf", tensors=joint)
    assert nmse(logits(path), logits(changed("qwen2", tmp_path / "plain.gguf"))) < 1e-12


def singly(name, tensors):
    """Separate matrices for each expert, as in old files."""
    single = dict.fromkeys(key for key in tensors if "_exps.weight" in key)
    for key in list(single):
        block, _, _ = key.partition("_exps")
        single |= {f"{block}.{n}.weight": matrix for n, matrix in enumerate(tensors[key])}
    return single


@pytest.mark.parametrize("backend_name", BACKENDS)
def test_experts_may_lie_in_the_file_one_by_one(tmp_path, backend_name):
    old = changed("mixtral", tmp_path / "old.gguf", tensors=singly("mixtral", tensors_of("mixtral")))
    new = changed("mixtral", tmp_path / "new.gguf")
    assert np.array_equal(logits(old, backend_name), logits(new, backend_name))
    both = [backbay_engine.estimate(path, backend_name, context=64) for path in (old, new)]
    assert both[0].rows() == both[1].rows()


@pytest.mark.parametrize("backend_name", BACKENDS)
def test_matrices_are_scaled_as_the_file_says(tmp_path, backend_name):
    tensors, scaled = tensors_of("mixtral"), {}
    for n, name in enumerate(
        ("blk.0.attn_q", "blk.1.attn_output", "output", "blk.1.ffn_up_exps", "blk.0.ffn_down_exps")
    ):
        weight = tensors[f"{name}.weight"]
        scale = np.linspace(0.5, 2 + n, 4 if "exps" in name else 1, dtype=np.float32)
        scaled[f"{name}.scale"] = scale
        scaled[f"{name}.weight"] = weight / (scale[:, None, None] if "exps" in name else scale)
    path = changed("mixtral", tmp_path / "scaled.gguf", tensors=scaled)
    assert nmse(logits(path, backend_name), logits(changed("mixtral", tmp_path / "m.gguf"))) < 1e-10


@pytest.mark.parametrize("name", ["mixtral", "qwen3moe"])
def test_a_block_without_a_router_has_one_feed_forward_for_all_tokens(tmp_path, name):
    architecture, tensors = name.replace("mixtral", "llama"), tensors_of(name)
    plain = {key: None for key in tensors if key.startswith("blk.0.ffn") and "norm" not in key}
    for kind in ("gate", "up", "down"):
        plain[f"blk.0.ffn_{kind}.weight"] = tensors[f"blk.0.ffn_{kind}_exps.weight"][0]
    # One expert, whichever is chosen, is the same as none to choose from.
    alike = {
        key: np.repeat(value[:1], 4, axis=0)
        for key, value in tensors.items()
        if "blk.0" in key and "_exps" in key
    }
    widths = {f"{architecture}.feed_forward_length": 32}
    dense = changed(name, tmp_path / "dense.gguf", tensors=plain, metadata=widths)
    assert nmse(logits(dense), logits(changed(name, tmp_path / "alike.gguf", tensors=alike))) < 1e-10


def test_what_experts_are_worth_is_not_scaled_to_one_where_the_file_says_so(tmp_path):
    key = "qwen3moe.expert_weights_norm"
    files = {
        told: changed("qwen3moe", tmp_path / f"{told}.gguf", metadata={key: told})
        for told in (None, True, False)
    }
    found = {told: logits(path) for told, path in files.items()}
    assert np.array_equal(found[None], found[True])
    assert nmse(found[False], found[True]) > 1e-3


def test_a_file_may_state_the_width_of_dense_blocks_alone(tmp_path):
    """As Ollama's files of models with experts."""
    widths = {"qwen3moe.expert_feed_forward_length": None, "qwen3moe.feed_forward_length": 1000}
    silent = changed("qwen3moe", tmp_path / "silent.gguf", metadata=widths)
    assert np.array_equal(logits(silent), logits(changed("qwen3moe", tmp_path / "stated.gguf")))


@pytest.mark.parametrize("backend_name", BACKENDS)
def test_long_contexts_turn_by_other_factors_than_short_ones(tmp_path, backend_name):
    rng = np.random.default_rng(0)
    sets = {kind: rng.uniform(1, 4, 4).astype(np.float32) for kind in ("short", "long")}
    stretched = {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.original_context_length": 64}
    both = {f"rope_factors_{kind}.weight": each for kind, each in sets.items()} | {"rope_freqs.weight": None}
    path = changed("llama-llama3", tmp_path / "long.gguf", tensors=both, metadata=stretched)
    for context, kind in ((64, "short"), (65, "long")):
        always = changed("llama-llama3", tmp_path / f"{kind}.gguf", tensors={"rope_freqs.weight": sets[kind]})
        with backbay_engine.load(path, backend_name, context=context, kv_dtype="f32") as llm:
            found = llm.logits(range(20))
        with backbay_engine.load(always, backend_name, context=context, kv_dtype="f32") as llm:
            assert np.array_equal(found, llm.logits(range(20)))


def test_blocks_may_differ_where_metadata_have_an_array(tmp_path):
    heads, rng = [2, 4], np.random.default_rng(0)
    wide = {f"blk.1.attn_{kind}.weight": rng.standard_normal((32, 32), np.float32) / 6 for kind in "kv"}
    wide |= {f"blk.1.attn_{kind}.bias": np.zeros(32, np.float32) for kind in "kv"}
    path = changed(
        "qwen2", tmp_path / "m.gguf", tensors=wide, metadata={"qwen2.attention.head_count_kv": heads}
    )
    assert np.isfinite(logits(path)).all()


def test_a_model_is_made_before_the_weights_are_loaded_or_take_memory(tmp_path):
    params = BackendParams(alloc_memory=False)
    with backbay.open(stored("gpt-oss"), backend="cpu_ref", params=params) as backend:
        assert load_model(backend).vocabulary_size == 64


def test_a_backend_without_a_file_has_no_model():
    with backbay.open(None, backend="cpu_ref") as backend, pytest.raises(BackbayError, match="has no model"):
        load_model(backend)


@pytest.mark.parametrize(
    ("name", "key", "value", "told"),
    [
        ("llama-llama3", "attention.head_count", 0, "a whole number from 1"),
        ("llama-llama3", "attention.head_count_kv", 3, "a divisor of the 4 heads"),
        ("llama-llama3", "attention.head_count_kv", [2], "a number for layer 1"),
        ("llama-llama3", "block_count", 0, "a whole number from 1 to 1024"),
        ("llama-llama3", "embedding_length", None, "a key 'embedding_length'"),
        ("llama-llama3", "feed_forward_length", None, "a key 'feed_forward_length'"),
        ("llama-llama3", "rope.dimension_count", 9, "an even number up to 8"),
        ("llama-llama3", "rope.dimension_count", 10, "an even number up to 8"),
        ("llama-llama3", "rope.scaling.type", "dynamic", "none, linear, yarn or longrope"),
        ("llama-llama3", "attention.temperature_scale", 0.1, "0, since queries do not depend on positions"),
        ("llama-yarn", "rope.scaling.factor", 0.5, "how often the context is longer"),
        ("llama-llama3", "attention.layer_norm_rms_epsilon", float("nan"), "a number from 0 to 1"),
        ("mixtral", "expert_used_count", 5, "1 to 4"),
        ("bert-mean", "pooling_type", 5, "mean (1)"),
        ("gemma3", "attention.sliding_window_pattern", [True], "a number for layer 1"),
    ],
)
def test_numbers_that_cannot_be_are_refused(tmp_path, name, key, value, told):
    architecture = name.partition("-")[0].replace("mixtral", "llama")
    path = changed(name, tmp_path / "m.gguf", metadata={f"{architecture}.{key}": value})
    assert told in refusal(path)
