"""The scenario of latent attention on every backend, and faults that it must find."""

from __future__ import annotations

import pytest

import backbay
from backbay_conformance.plugin import Draw, Fault, lab_for
from backbay_engine.scenarios import recurrent_rules
from backbay_engine.scenarios.recurrent_rules import engine_latent_attention


def run(name: str, turns: int) -> None:
    lab = lab_for(name)
    for turn in range(turns):
        engine_latent_attention(lab, Draw(f"latent/{turn}"))


@pytest.mark.parametrize("name", sorted(backbay.backends()))
def test_both_forms_are_the_formula(name):
    run(name, 3 if name == "onnx" else 10)


@pytest.mark.parametrize("form", ["absorbed", "plain"])
def test_a_form_that_leaves_the_rotated_part_of_keys_out_is_found(form, monkeypatch):
    right = getattr(recurrent_rules, f"attend_{form}")

    def wrong(ctx, layer, parts, *rest):
        without = recurrent_rules.LatentOperands(
            parts.fixed, parts.turned.scale(ctx, 0.0), parts.latent, parts.key
        )
        return right(ctx, layer, without, *rest)

    monkeypatch.setattr(recurrent_rules, f"attend_{form}", wrong)
    with pytest.raises(Fault, match="expected"):
        run("cpu_ref", 5)
