"""Embeddings."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import ask
from scripted_model import write_embedder, write_reranker, write_scripted_model

VECTORS = {"east": np.array([1, 0, 0, 0], np.float32), "north": np.array([0, 1, 0, 0], np.float32)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_embedder(tmp_path_factory.mktemp("models") / "embedder.gguf", VECTORS)


def embed(model: Path, given: Any, **fields: Any) -> Any:
    return ask(model, "/v1/embeddings", {"input": given, **fields})


def test_texts_become_vectors_in_their_order(model: Path):
    _, body = embed(model, ["[east]", "[north]"])
    assert [each["index"] for each in body["data"]] == [0, 1]
    assert np.allclose([each["embedding"] for each in body["data"]], list(VECTORS.values()), atol=1e-3)
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 0


def test_base64_holds_the_same_numbers(model: Path):
    _, floats = embed(model, "[east]")
    _, packed = embed(model, "[east]", encoding_format="base64")
    found = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4")
    assert np.allclose(found, floats["data"][0]["embedding"])


def test_dimensions_are_those_of_the_model(model: Path):
    _, body = embed(model, "[east]")
    width = len(body["data"][0]["embedding"])
    assert embed(model, "[east]", dimensions=width)[0] == 200
    assert embed(model, "[east]", dimensions=width - 1)[1]["error"]["param"] == "dimensions"


@pytest.mark.parametrize("given", [[], "", [""], [1, "a"], ["[east]"] * 3000, 7])
def test_what_is_wrong_is_a_400(model: Path, given: Any):
    assert embed(model, given)[0] == 400


def test_a_model_that_writes_embeds_nothing(tmp_path: Path):
    status, body = embed(write_scripted_model(tmp_path / "scripted.gguf"), "x")
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")


def test_texts_and_lists_of_tokens_stand_in_one_list(model: Path) -> None:
    status, body = embed(model, ["[east]", [5, 6], "[north]"])
    assert (status, [each["index"] for each in body.get("data", ())]) == (200, [0, 1, 2])


def test_texts_are_scored_in_the_form_of_tei(tmp_path: Path) -> None:
    model = write_reranker(tmp_path / "scores.gguf", {"best": 3.0, "good": 1.0})
    asked: dict[str, Any] = {"query": "?", "texts": ["bad", "a [best]", "a [good]"], "top_n": 2}
    status, found = ask(model, "/rerank", {**asked, "return_text": True, "truncate": False})
    assert (status, [each["text"] for each in found]) == (200, ["a [best]", "a [good]"])
    assert [(each["index"], round(each["score"], 2)) for each in found] == [(1, 3.0), (2, 1.0)]
    assert ask(model, "/rerank", {**asked, "documents": ["x"]})[0] == 400
    assert ask(model, "/rerank", {"query": "?"})[0] == 400
