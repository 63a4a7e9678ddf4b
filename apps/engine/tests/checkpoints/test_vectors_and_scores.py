"""Folders of models that give vectors or scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoint_folders import byte_pairs, llama_config, llama_tensors, safetensors, write_folder
from model_files import unpacked_folder

from backbay import ModelFileError
from backbay.discovery import open_model
from backbay_engine import load
from backbay_engine.text.rerank_pairs import pair_ids

IDS = [[3, 4, 5, 6, 7], [9, 8]]


def add_modules(folder: Path, *modules: tuple[str, dict[str, object]]) -> None:
    """The files of sentence-transformers: a type and a configuration for each module."""
    listed = []
    for index, (kind, config) in enumerate(modules):
        at = folder / f"{index}_{kind}"
        at.mkdir(exist_ok=True)
        (at / "config.json").write_text(json.dumps(config))
        listed.append({"path": at.name, "type": f"sentence_transformers.models.{kind}"})
    (folder / "modules.json").write_text(json.dumps(listed))


@pytest.mark.parametrize("name", ["pooling_mode_mean_tokens", "pooling_mode_cls_token"])
def test_vectors_are_pooled_and_multiplied_as_sentence_transformers_says(name: str, tmp_path: Path) -> None:
    folder = unpacked_folder("bert", tmp_path)
    dense = np.random.default_rng(0).standard_normal((24, 32)).astype(np.float32)
    plain = {"activation_function": "torch.nn.modules.linear.Identity"}
    add_modules(folder, ("Pooling", {name: True}))
    with load(folder, "cpu_ref") as llm:
        alone = llm.embed(IDS, normalize=False)
    add_modules(folder, ("Pooling", {name: True}), ("Dense", plain))
    (folder / "1_Dense" / "model.safetensors").write_bytes(safetensors({"linear.weight": dense}))
    with load(folder, "cpu_ref") as llm:
        np.testing.assert_allclose(llm.embed(IDS, normalize=False), alone @ dense.T, rtol=1e-4, atol=1e-5)
    add_modules(folder, ("Pooling", {name: True}), ("Dense", {"activation_function": "torch.nn.Tanh"}))
    with pytest.raises(ModelFileError, match="without a bias and an activation"):
        open_model(folder)


def test_modules_outside_of_the_folder_are_refused(tmp_path: Path) -> None:
    folder = unpacked_folder("bert", tmp_path)
    (folder / "modules.json").write_text(json.dumps([{"path": "../..", "type": "x.Pooling"}]))
    with pytest.raises(ModelFileError, match="a path within the folder"):
        open_model(folder)


def test_a_reranker_of_qwen_scores_by_the_logits_of_yes_and_no(tmp_path: Path) -> None:
    tokenizer = byte_pairs(["yes no yes no the a query document"] * 4)
    count = tokenizer.get_vocab_size()
    config = llama_config(count, max_position_embeddings=1024) | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 16,
    }
    tensors = llama_tensors(config)
    for block in range(2):
        for name in ("q", "k"):
            tensors[f"model.layers.{block}.self_attn.{name}_norm.weight"] = np.ones(16, np.float32)
    plain = write_folder(tmp_path / "plain", config, tensors, tokenizer=tokenizer)
    ranking = write_folder(tmp_path / "Qwen3-Reranker-small", config, tensors, tokenizer=tokenizer)
    with load(ranking, "cpu_ref", batch=1024) as llm, load(plain, "cpu_ref") as decoder:
        scores = llm.rerank("the query", ["a document", "no"])
        yes, no = (tokenizer.token_to_id(word) for word in ("yes", "no"))
        whole = [pair_ids(llm.tokenizer, "the query", text) for text in ("a document", "no")]
        for score, each in zip(scores, whole, strict=True):
            last = decoder.logits(each)[-1]
            assert score == pytest.approx(1 / (1 + np.exp(last[no] - last[yes])), rel=1e-3)
