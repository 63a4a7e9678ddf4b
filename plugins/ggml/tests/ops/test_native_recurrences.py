"""The delta rule and the selective scan, by native code and by ggml."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backbay
from backbay import BackendParams, Context, Tensor
from backbay.internals import Array
from backbay_ggml import Ggml
from backbay_ggml.library.library import load_library
from backbay_native import MOST_KEYS, NativeCode

FORMS = ("gated", "removing", "scan")
SHAPES = ((64, 64, 1, 9), (128, 40, 2, 3), (40, 17, 2, 1), (16, 1, 1, 20), (MOST_KEYS + 1, 3, 1, 2))
"""Of keys, values, sequences and tokens."""
HEADS = 3


@pytest.fixture(params=["native", "ggml"])
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Whose code computes."""
    native = request.getfixturevalue("native_code") if request.param == "native" else NativeCode(None)
    monkeypatch.setattr(load_library(), "native", native)
    return request.param


def operands(form: str, keys: int, values: int, sequences: int, tokens: int) -> list[Array]:
    rng = np.random.default_rng(keys)
    each = sequences, tokens, HEADS
    s, v = (rng.standard_normal(shape) for shape in ((sequences, HEADS, values, keys), (*each, values)))
    q, k = (rng.uniform(-1, 1, (*each, keys)) / keys**0.5 for _ in range(2))
    decay, share = rng.uniform(-1, 0, (*each, keys)), rng.uniform(0, 1, (*each, 1))
    if form == "scan":
        a, ids = rng.uniform(-1, 0, (HEADS, 1)), np.arange(sequences)[::-1].astype(np.int32)
        return [s, v, rng.standard_normal(each), a, k[:, :, :1], q[:, :, :1], ids]
    return [s, q, k, v, decay, share, *([k] if form == "removing" else [])]


def made(ctx: Context, form: str, given: list[Array]) -> Tensor:
    s, *others = (ctx.from_ints(x) if x.dtype == np.int32 else ctx.from_floats(np.float32(x)) for x in given)
    return s.ssm_scan(ctx, *others) if form == "scan" else s.delta_rule(ctx, *others)


def computed(form: str, given: list[Array], threads: int = 2) -> tuple[Array, str]:
    """The result, and the name of the op that makes it."""
    with Ggml(None, BackendParams(num_threads=threads)) as backend, backend.new_context() as ctx:
        y = made(ctx, form, given)
        ctx.compute(y)
        return y.numpy(), "\n".join(ctx.recording._plan.report())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_heads_of_any_size_recur(form: str, shape: tuple[int, ...], code: str) -> None:
    given = operands(form, *shape)
    found, report = computed(form, given)
    with backbay.open(None, backend="cpu_ref") as backend, backend.new_context() as ctx:
        y = made(ctx, form, given)
        ctx.compute(y)
        np.testing.assert_allclose(found, y.numpy(), rtol=1e-4, atol=1e-4)
    assert ("custom" in report) == (code == "native" and shape[0] <= MOST_KEYS)


@pytest.mark.parametrize("form", FORMS)
def test_threads_and_cuts_between_tokens_change_no_bit(form: str, native_code, monkeypatch) -> None:
    monkeypatch.setattr(load_library(), "native", native_code)
    keys, values, tokens = 64, 20, 19
    given = operands(form, keys, values, 1, tokens)
    whole = computed(form, given)[0]
    np.testing.assert_array_equal(computed(form, given, threads=1)[0], whole)
    state, outputs = given[0], list[Array]()
    for low, high in ((0, 1), (1, 12), (12, tokens)):
        cut = [x[:, low:high] if x.ndim > 1 and x.shape[:2] == (1, tokens) else x for x in given]
        found = computed(form, [state, *cut[1:]])[0]
        outputs.append(found[: (high - low) * HEADS * values])
        state = found[len(outputs[-1]) :].reshape(given[0].shape)
    np.testing.assert_array_equal(np.concatenate([*outputs, state.ravel()]), whole)


@pytest.mark.parametrize("form", FORMS)
def test_processors_without_avx512_get_the_same_results(
    form: str, native_code, native_code_without_avx512, monkeypatch
) -> None:
    given, found = operands(form, 40, 17, 2, 5), list[Array]()
    for native in (native_code, native_code_without_avx512):
        monkeypatch.setattr(load_library(), "native", native)
        found.append(computed(form, given)[0])
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-5)


def test_infinities_and_nan_stay_in_their_head(native_code, monkeypatch) -> None:
    monkeypatch.setattr(load_library(), "native", native_code)
    given = operands("scan", 1, 3, 1, 4)
    usual = computed("scan", given)[0]
    given[1] = given[1].copy()
    given[1][0, 2, 1] = [np.inf, np.nan, 1]
    found = computed("scan", given)[0][: 4 * HEADS * 3].reshape(4, HEADS, 3)
    others = usual[: 4 * HEADS * 3].reshape(4, HEADS, 3)
    np.testing.assert_array_equal(found[:, [0, 2]], others[:, [0, 2]])
    assert np.isinf(found[2, 1, 0])
    assert np.isnan(found[2:, 1, 1]).all()
