"""The rules of recurrent models on every backend, and faults that the scenarios must find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import backbay
from backbay import Tensor
from backbay_conformance.plugin import Draw, Fault, Lab, lab_for
from backbay_engine.cache import RecurrentCache
from backbay_engine.scenarios.recurrent_rules import (
    engine_delta_rule,
    engine_low_rank_rule,
    engine_state_space,
)

RULES = [engine_delta_rule, engine_low_rank_rule, engine_state_space]
INSTALLED = sorted(backbay.backends())


def run(rule: Callable[[Lab, Draw], None], name: str, turns: int) -> None:
    lab = lab_for(name)
    for turn in range(turns):
        rule(lab, Draw(f"rules/{turn}"))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", INSTALLED)
def test_prompts_that_are_cut_agree_with_the_rule_token_by_token(name: str, rule) -> None:
    run(rule, name, 4 if name == "onnx" else 12)


@pytest.mark.parametrize("rule", RULES)
def test_states_of_a_wrong_row_are_found(rule, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = RecurrentCache._planned

    def swapped(self, step, sources, targets):
        return planned(self, step, sources[::-1], targets)

    monkeypatch.setattr(RecurrentCache, "_planned", swapped)
    with pytest.raises(Fault, match="expected"):
        run(rule, "cpu_ref", 30)


@pytest.mark.parametrize("rule", RULES[:2])
def test_a_state_that_skips_a_chunk_is_found(rule, monkeypatch: pytest.MonkeyPatch) -> None:
    sliced = Tensor.slice

    def first_only(x, ctx, dim, low, high, step=1):
        return (
            sliced(x, ctx, dim, 0, 1) if (dim, high) == (2, low + 1) else sliced(x, ctx, dim, low, high, step)
        )

    monkeypatch.setattr(Tensor, "slice", first_only)
    with pytest.raises(Fault, match="expected"):
        run(rule, "cpu_ref", 30)
