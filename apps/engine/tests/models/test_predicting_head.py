"""The block of a file that predicts the token after the next one: its logits are those of a formula.

The formula is that of llama.cpp's GLM4_MOE (graph_mtp), SGLang and vLLM, in NumPy. vLLM leaves out the embedding at the
first position, and lets the head go on from vectors before the last norm.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import changed, tensors_of, unpacked
from numpy.typing import NDArray
from predicting_models import run_head, steps_of, with_head

import backbay
from backbay import ModelFileError
from backbay_engine import RequestError
from backbay_engine.models import load_model
from backbay_engine.models.bases import Decoder
from backbay_engine.models.predicting_head import PredictingHead
from backbay_engine.steps.step import prompt_step

ROOM = 32
IDS = np.array([5, 9, 33, 12, 12, 60, 7, 41, 2, 18], np.int32)
HEADS, KV_HEADS, HEAD, ROTATED, USED = 4, 2, 8, 4, 3  # of glm4moe.gguf
EPS, BASE, SHARE_SCALE = 1e-5, 1e4, 2.5
Array = NDArray[np.float64]


@pytest.fixture(scope="module", params=[True, False], ids=["own matrices", "the model's matrices"])
def glm(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path_factory.mktemp("glm")
    return with_head(unpacked("glm4moe", folder), folder / "head.gguf", "glm4moe", own=request.param)


@pytest.mark.parametrize("backend_name", sorted(backbay.backends()))
def test_the_logits_of_a_head_are_those_of_the_formula(glm: Path, backend_name: str) -> None:
    with backbay.open(glm, backend=backend_name) as backend:
        model = load_model(backend, ROOM)
        assert isinstance(model, Decoder)
        head = PredictingHead(model)
        model.keeps_rows = True
        backend.load()
        trunk, ahead = (steps_of(each, backend, ROOM) for each in (model, head))
        logits = trunk.run(prompt_step(IDS))
        rows, output = trunk.rows, tensors_of(glm)["output.weight"]
        assert np.allclose(rows @ output.T, logits, atol=1e-3)  # the vectors before the output matrix
        guesses = run_head(ahead, IDS[1:], rows[:-1], first=0)
        own = ahead.rows[-1:]
        further = run_head(ahead, IDS[:1], own, first=len(IDS) - 1)  # any token: a guess of the head
    formula = GlmHead(glm)
    wanted, normed = formula(IDS[1:], rows[:-1])
    assert guesses == pytest.approx(wanted, abs=2e-3)
    ids, behind = np.append(IDS[1:], IDS[0]), np.concatenate([rows[:-1], normed[-1:]])
    assert further[0] == pytest.approx(formula(ids, behind)[0][-1], abs=2e-3)


class GlmHead:
    """The head of GLM 4.5 as a formula: a block with experts between a joint of two norms and an output matrix."""

    def __init__(self, path: Path) -> None:
        self.all = {name: value.astype(np.float64) for name, value in tensors_of(path).items()}

    def __call__(self, ids: NDArray[np.int32], rows: NDArray[Any]) -> tuple[Array, Array]:
        """The logits after each token and the row before it, and the vectors before the output matrix."""
        table = self.all.get("blk.3.nextn.embed_tokens.weight", self.all["token_embd.weight"])
        parts = [_rms(table[ids], self["nextn.enorm"]), _rms(rows.astype(np.float64), self["nextn.hnorm"])]
        x = np.concatenate(parts, axis=1) @ self["nextn.eh_proj"].T
        x = x + self.attention(_rms(x, self["attn_norm"]))
        x = x + self.experts(_rms(x, self["post_attention_norm"]))
        x = _rms(x, self["nextn.shared_head_norm"])
        head = self.all.get("blk.3.nextn.shared_head_head.weight", self.all["output.weight"])
        return x @ head.T, x

    def __getitem__(self, name: str) -> Array:
        return self.all[f"blk.3.{name}.weight"]

    def attention(self, x: Array) -> Array:
        n = len(x)
        q, k, v = (
            (x @ self[f"attn_{name}"].T + self.all[f"blk.3.attn_{name}.bias"]).reshape(n, -1, HEAD)
            for name in "qkv"
        )
        q, k = _turned(_rms(q, self["attn_q_norm"])), _turned(_rms(k, self["attn_k_norm"]))
        k, v = (np.repeat(each, HEADS // KV_HEADS, axis=1) for each in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(HEAD)
        scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        return np.einsum("hij,jhd->ihd", shares, v).reshape(n, -1) @ self["attn_output"].T

    def experts(self, x: Array) -> Array:
        odds = _sigmoid(x @ self["ffn_gate_inp"].T)
        chosen = np.argsort(-(odds + self.all["blk.3.exp_probs_b.bias"]), axis=1)[:, :USED]
        found = _gated(x, *(self[f"ffn_{name}_shexp"] for name in ("gate", "up", "down")))
        for n, experts in enumerate(chosen):
            shares = odds[n, experts] / odds[n, experts].sum() * SHARE_SCALE
            for expert, share in zip(experts, shares, strict=True):
                matrices = (self[f"ffn_{name}_exps"][expert] for name in ("gate", "up", "down"))
                found[n] += share * _gated(x[n], *matrices)
        return found


def _rms(x: Array, weight: Array) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _gated(x: Array, gate: Array, up: Array, down: Array) -> Array:
    g = x @ gate.T
    return (g * _sigmoid(g) * (x @ up.T)) @ down.T


def _turned(x: Array) -> Array:
    """The first half of each head rotated, (tokens, heads, head): a pair is an element and the one half that many further."""
    half = ROTATED // 2
    angles = np.outer(np.arange(len(x)), BASE ** (-np.arange(half) / half))[:, None]
    a, b = x[..., :half], x[..., half:ROTATED]
    turned = [a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)]
    return np.concatenate([*turned, x[..., ROTATED:]], axis=-1)


@pytest.mark.parametrize(
    ("metadata", "tensors", "error", "told"),
    [
        ({"glm4moe.nextn_predict_layers": 0}, {}, RequestError, "a key glm4moe.nextn_predict_layers above 0"),
        ({}, {"eh_proj": None}, RequestError, "a tensor blk.3.nextn.eh_proj.weight"),
        ({}, {"enorm": None}, ModelFileError, r"the tensors blk\.3\.nextn\.enorm\.weight \[32\]"),
    ],
)
def test_a_file_without_a_head_is_refused(
    glm: Path, tmp_path: Path, metadata: dict[str, Any], tensors: dict[str, Any], error: Any, told: str
) -> None:
    left_out = {f"blk.3.nextn.{name}.weight": value for name, value in tensors.items()}
    path = changed(glm, tmp_path / "m.gguf", tensors=left_out, metadata=metadata)
    with backbay.open(path, backend="cpu_ref") as backend:
        model = load_model(backend, ROOM)
        assert isinstance(model, Decoder)
        with pytest.raises(error, match=told):
            PredictingHead(model)


def test_a_predicting_block_that_nobody_uses_is_no_reason_to_warn(
    glm: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with backbay.open(glm, backend="cpu_ref") as backend:
        load_model(backend, ROOM)
    assert not caplog.records
