"""Scenarios with pictures: they pass on every backend, and notice faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cache_lives import INSTALLED, fill_once, live, lives_on, permuted

from backbay import DType
from backbay_conformance.plugin import Draw, Fault, lab_for
from backbay_engine.cache.attention.media import (
    BoundMediaCrossAttentionCache,
    MediaCrossAttentionCache,
)
from backbay_engine.encoders.contract import EncoderInputs
from backbay_engine.models import batch
from backbay_engine.scenarios.image_encoder import engine_encoder_contexts, engine_mixed_steps
from backbay_engine.scenarios.picture_cache import MediaCrossAttentionMachine

SCENARIOS = [engine_mixed_steps, engine_encoder_contexts]


@pytest.mark.parametrize("name", INSTALLED)
def test_caches_of_pictures_live_on_every_backend(name: str) -> None:
    live(MediaCrossAttentionMachine, lab_for(name), "pictures", 0, lives_on(name), actions=30)


def test_caches_of_pictures_live_where_values_are_permuted_and_masks_padded() -> None:
    live(MediaCrossAttentionMachine, lab_for(permuted(32, 32, DType.F32)), "pictures", 100, 8, actions=30)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", INSTALLED)
def test_scenarios_with_pictures_pass_on_every_backend(name: str, scenario: Callable[..., None]) -> None:
    for turn in range(2):
        scenario(lab_for(name), Draw(f"seeing/{turn}"))


def padding_is_seen(patch: pytest.MonkeyPatch) -> None:
    views = MediaCrossAttentionCache._views

    def more(self: MediaCrossAttentionCache, run: Any) -> Any:
        for view in views(self, run):
            cells = [(low, low + self._room) for low, _ in view.cells]
            yield type(view)(view.begin, view.end, cells, view.after)

    patch.setattr(MediaCrossAttentionCache, "_views", more)


def pictures_do_not_move(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("backbay_engine.cache.attention.cross_attention._moved", lambda shown, gap: shown)


def masks_are_those_of_the_step_before(patch: pytest.MonkeyPatch) -> None:
    fill_once(patch, BoundMediaCrossAttentionCache)


@pytest.mark.parametrize("plant", [padding_is_seen, pictures_do_not_move, masks_are_those_of_the_step_before])
def test_a_life_notices_what_is_wrong(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(Fault):
        live(MediaCrossAttentionMachine, lab_for("cpu_ref"), "pictures", 0, 40, actions=30)


def test_the_scenarios_notice_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_sources", lambda step: np.arange(step.size, dtype=np.int32))
    with pytest.raises(Fault, match="mixed wrongly"):
        engine_mixed_steps(lab_for("cpu_ref"), Draw("fault"))
    monkeypatch.setattr(EncoderInputs, "fill", lambda self, pictures: None)
    with pytest.raises(Fault, match="an encoder's rows differ"):
        engine_encoder_contexts(lab_for("cpu_ref"), Draw("fault"))
