"""The model in examples/models solves its tasks, on every backend and in every type of weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tiny_gguf import FILE_TYPES, read_gguf, write_gguf
from tiny_tasks import TASKS, Problem, unseen_problems

import backbay
from backbay_engine import LLM, load, tokenizer_from_gguf

SHIPPED = Path(__file__).parents[1] / "examples" / "models" / "backbay-tiny-f16.gguf"
PROBLEMS = [problem for task in TASKS for problem in unseen_problems(task, 4)]


@pytest.fixture(scope="module", params=FILE_TYPES)
def model(request, tmp_path_factory):
    if request.param == "f16":
        return SHIPPED
    path = tmp_path_factory.mktemp("tiny") / f"tiny-{request.param}.gguf"
    write_gguf(path, request.param, *read_gguf(SHIPPED), "the shipped model, quantized")
    return path


def answers(llm: LLM, problems: Sequence[Problem]) -> list[str]:
    """All at once, so that they share steps."""
    handles = [llm.submit(problem.prompt, max_tokens=32, temperature=0) for problem in problems]
    return [handle.result().text for handle in handles]


@pytest.mark.parametrize("backend", sorted(backbay.backends()))
@pytest.mark.few(3)
def test_unseen_problems_are_answered_right(model, backend):
    with load(model, backend=backend, parallel=8) as llm:
        given = answers(llm, PROBLEMS)
    right = sum(answer == problem.answer for answer, problem in zip(given, PROBLEMS, strict=True))
    assert right / len(PROBLEMS) >= 0.9


def test_a_conversation_is_asked_as_the_model_was_taught():
    with load(SHIPPED) as llm:
        said = [{"role": "user", "content": "copy q r s"}]
        first = llm.chat(said, max_tokens=16, temperature=0)
        said += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "reverse x y z"}]
        second = llm.chat(said, max_tokens=16, temperature=0)
    assert (first.text, second.text) == (" q r s", " z y x")


def test_digits_and_letters_are_tokens_of_their_own():
    tokenizer = tokenizer_from_gguf(SHIPPED)
    ids = tokenizer.encode("sum 407 9 =", add_special=False)
    assert [tokenizer.decode([token]) for token in ids] == ["sum", " 4", "0", "7", " 9", " ="]
