"""llama.cpp's vocabularies, texts and tokens, if BACKBAY_LLAMA_CPP names a checkout.

They travel in llama-cpp-python's source distribution, in vendor/llama.cpp.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backbay_engine.text.tokenizers import tokenizer_from_gguf

ROOT = os.environ.get("BACKBAY_LLAMA_CPP")
VOCABULARIES = sorted(Path(ROOT, "models").glob("ggml-vocab-*.gguf")) if ROOT else []
BETWEEN = "\n__ggml_vocab_test__\n"

pytestmark = pytest.mark.skipif(not ROOT, reason="BACKBAY_LLAMA_CPP names no checkout of llama.cpp")


def test_the_checkout_has_vocabularies() -> None:
    assert len(VOCABULARIES) >= 15


@pytest.mark.parametrize("path", VOCABULARIES, ids=lambda path: path.stem)
def test_texts_have_the_tokens_that_llama_cpp_gives_them(path: Path) -> None:
    questions, answers = path.with_suffix(".gguf.inp"), path.with_suffix(".gguf.out")
    if not questions.exists():
        pytest.skip("llama.cpp has no answers for this one")
    tokenizer = tokenizer_from_gguf(path)
    texts = questions.read_bytes().decode().split(BETWEEN)
    lines = answers.read_text().split("\n")
    assert len(texts) > 40
    for text, line in zip(texts, lines, strict=False):
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        assert ids == [int(id) for id in line.split()], text
