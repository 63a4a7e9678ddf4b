"""What follows the pooling of a text's vectors: dense layers, and scores of pairs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from model_files import changed, stored, tensors_of, unpacked
from model_scripts import TEXTS, embeddings

import backbay
import backbay_engine
from backbay.cli import main
from backbay_engine import RequestError
from backbay_engine.models import load_model

RNG = np.random.default_rng(0)
WORDS = [chr(0x100 + n) for n in range(60)]  # the stand-in vocabulary of the stored kinds


def vectors(path):
    with backbay.open(path, backend="cpu_ref") as backend:
        model = load_model(backend)
        backend.load()
        return embeddings(model, TEXTS)


def test_dense_layers_follow_the_mean(tmp_path):
    plain = unpacked("gemma-embedding", tmp_path)
    wide, narrow = (RNG.standard_normal(shape).astype(np.float32) for shape in ((40, 32), (32, 40)))
    dense = {"dense_2.weight": wide, "dense_3.weight": narrow}
    made = changed(plain, tmp_path / "dense.gguf", tensors=dense)
    np.testing.assert_allclose(vectors(made), vectors(plain) @ wide.T @ narrow.T, rtol=1e-4, atol=1e-4)


def test_a_decoder_that_ranks_gives_the_odds_of_its_labels_after_the_last_token(tmp_path):
    plain = unpacked("qwen3-embedding", tmp_path)
    labels = {"cls.output.weight": tensors_of(plain)["token_embd.weight"][[7, 9]]}
    made = changed(plain, tmp_path / "rank.gguf", tensors=labels, metadata={"qwen3.pooling_type": 4})
    scores = vectors(plain) @ labels["cls.output.weight"].T
    odds = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    np.testing.assert_allclose(vectors(made), odds, rtol=1e-4)


def test_rerank_scores_pairs_as_the_model_was_trained_on_them(tmp_path):
    path = unpacked("xlmr-rerank", tmp_path)
    query, texts = "".join(WORDS[:3]), ["".join(WORDS[4:9]), WORDS[11], "".join(WORDS[2:20])]
    with backbay_engine.load(path, "cpu_ref") as llm:
        scores = llm.rerank(query, texts)
        assert scores.shape == (3,)
        np.testing.assert_allclose(llm.rerank(query, texts[1:2]), scores[1:2], rtol=1e-5)
        with pytest.raises(RequestError, match="makes scores, no embeddings; use rerank"):
            llm.embed(texts)
        with pytest.raises(RequestError, match="nothing to rank: give one text at least"):
            llm.rerank(query, [])
        for wrong in ("ab", 5, None):
            with pytest.raises(RequestError, match=f"several texts, in a list, got {wrong!r}"):
                llm.rerank(query, wrong)
        with pytest.raises(RequestError, match="strings, got 5"):
            llm.rerank(query, [5])
        with pytest.raises(RequestError, match="generates no text; use rerank"):
            llm.generate(query)


@pytest.mark.fault(
    "a model that cannot rank is asked to", "RequestError naming what it makes, and what ranks"
)
@pytest.mark.parametrize(
    ("name", "message"),
    [("llama-llama3", "scores come from a reranker"), ("bert-mean", "makes embeddings, no scores")],
)
def test_models_that_do_not_rank_say_so(name, message):
    with (
        backbay_engine.load(stored(name), "cpu_ref", context=64) as llm,
        pytest.raises(RequestError, match=message),
    ):
        llm.rerank("a", ["b"])


def test_the_command_lists_texts_from_the_best_on(tmp_path, capsys):
    path = unpacked("xlmr-rerank", tmp_path)
    texts = ["".join(WORDS[4:9]), WORDS[11], "".join(WORDS[2:20])]
    assert main(["rerank", str(path), "--backend", "cpu_ref", "--json", WORDS[5], *texts]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(each["index"] for each in found) == [0, 1, 2]
    assert [each["score"] for each in found] == sorted((each["score"] for each in found), reverse=True)
    assert main(["rerank", str(path), "--backend", "cpu_ref", WORDS[5], *texts]) == 0
    assert capsys.readouterr().out.count("\n") == 4
