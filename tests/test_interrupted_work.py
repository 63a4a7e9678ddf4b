"""Ctrl-C at every moment of work on tensors, and of an answer: the next work neither hangs nor fails."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from moments import interrupt_everywhere
from small_llama import write_small_llama

import backbay
import backbay_engine

BACKENDS = ["cpu_ref", "ggml", "onnx"]


@pytest.fixture(autouse=True)
def _silent_finalizers(monkeypatch) -> None:
    """An interrupt in a finalizer is reported, and goes no further."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)


def use(backend: backbay.Backend) -> None:
    with backend.new_context() as ctx:
        x = ctx.from_floats(np.ones((4, 4)))
        y = x.mulmat(ctx, x).add(ctx, x)
        ctx.compute(y)
        np.testing.assert_array_equal(y.numpy(), np.full((4, 4), 5))
    dropped = backend.new_context()
    dropped.from_floats([1.0])
    del dropped


@pytest.mark.fault("Ctrl-C at any moment of a compute, also while a lock is taken", "later computes work")
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.few(1)
def test_a_backend_works_after_an_interrupt_at_any_moment(name) -> None:
    with backbay.open(None, name, backbay.BackendParams(num_threads=1)) as backend:
        use(backend)
        assert interrupt_everywhere(lambda: use(backend)) > 100


@pytest.mark.fault("Ctrl-C at any moment of an answer, also while a lock is taken", "later answers are right")
@pytest.mark.thorough
def test_a_model_answers_after_an_interrupt_at_any_moment(tmp_path) -> None:
    path = write_small_llama(tmp_path / "small.gguf")
    with backbay_engine.load(path, "cpu_ref") as llm:
        expected = llm.generate("ab", max_tokens=3, temperature=0).text

        def answer() -> None:
            assert llm.generate("ab", max_tokens=3, temperature=0).text == expected
            assert "".join(llm.stream("ab", max_tokens=3, temperature=0)) == expected

        assert interrupt_everywhere(answer, stride=3) > 100
