"""Control tokens, whose text an answer has only if its request asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from small_llama import WORDS, write_small_llama

from backbay_engine import LLM, RequestError, load

USER = WORDS - 2


@pytest.fixture(scope="module", params=[False, True], ids=["here", "worker"])
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = write_small_llama(tmp_path_factory.mktemp("models") / "small.gguf")
    with load(path, "cpu_ref", context=64, worker=request.param) as opened:
        yield opened


def test_control_tokens_have_a_text_if_they_are_shown(llm: LLM) -> None:
    def text(**options: object) -> str:
        return llm.generate(
            "x", max_tokens=3, logit_bias={USER: 100.0}, temperature=0.0, stop="none", **options
        ).text

    assert text() == text(shown=[USER - 2]) == ""
    assert text(shown=[USER]) == "<|user|>" * 3


@pytest.mark.parametrize(
    ("shown", "told"), [("ab", "shown must be token ids"), ([WORDS], r"\[0, 261\), got 261")]
)
def test_what_is_no_token_cannot_be_shown(llm: LLM, shown: object, told: str) -> None:
    with pytest.raises(RequestError, match=told):
        llm.submit("x", shown=shown)
