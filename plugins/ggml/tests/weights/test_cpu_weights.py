"""Weights that are copied into a faster arrangement."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from gguf_files import write_gguf

import backbay
from backbay import BackendParams, CancelledError, OptionError
from backbay_ggml.library.library import load_library
from backbay_ggml.weights.arrangement_trial_child import LARGER
from backbay_ggml.weights.arrangements import AMX, REPACK, buffer_types, trial_result, usable_arrangements

RNG = np.random.default_rng(11)
repacking = pytest.mark.skipif(
    REPACK not in buffer_types(load_library()), reason="this library rearranges no weights"
)


@pytest.fixture(scope="module", params=["Q4_0", "Q8_0", "F16"])
def path(request, tmp_path_factory):
    """A model of products, in one dtype."""
    dtype, tensors = GGMLQuantizationType[request.param], []
    for name in ("token_embd", "blk.0.attn_q", "blk.0.attn_odd", "blk.1.ffn_up", "output"):
        rows = 37 if name == "blk.0.attn_odd" else 64
        numbers = RNG.standard_normal((rows, 256)).astype(np.float32)
        data = numbers.astype(np.float16) if request.param == "F16" else quants.quantize(numbers, dtype)
        tensors.append((f"{name}.weight", data, dtype))
    return write_gguf(tmp_path_factory.mktemp("models") / f"{request.param}.gguf", 2, tensors)


def opened(path, **options):
    return backbay.open(path, backend="ggml", params=BackendParams(num_threads=2, options=options))


def products(backend, batch: int):
    """Every weight's product, its rows and its bytes."""
    with backend.new_context() as ctx:
        x = ctx.from_floats(np.random.default_rng(2).standard_normal((batch, 256)))
        weights = [backend.get(name) for name in backend.model.tensors]
        made = [w.mulmat(ctx, x) for w in weights]
        made += [w.rows(ctx, ctx.from_ints([3, 0])) for w in weights]
        made.append(weights[1].mulmat(ctx, x.permute(ctx, 1, 0).contiguous(ctx).permute(ctx, 1, 0)))
        made.append(weights[1].mulmat(ctx, x.reshape(ctx, 256, 1, 1, batch)).reshape(ctx, 64, batch))
        ctx.compute(*made)
        return [tensor.numpy() for tensor in made], [w.bytes() for w in weights]


@pytest.mark.parametrize("batch", [1, 5, 33])
def test_results_do_not_depend_on_the_policy(path, batch) -> None:
    found = []
    for policy in ("mapped", "copied", "auto"):
        with opened(path, weights=policy) as backend:
            backend.load()
            found.append(products(backend, batch))
    for arrays, raw in found[1:]:
        assert raw == found[0][1]
        for ours, mapped in zip(arrays, found[0][0], strict=True):
            np.testing.assert_allclose(ours, mapped, rtol=1e-4, atol=1e-3)
    for copied, auto in zip(found[1][0], found[2][0], strict=True):
        np.testing.assert_array_equal(copied, auto)


@repacking
def test_weights_with_an_arrangement_are_copied_and_booked(path) -> None:
    with opened(path) as backend:
        names = set(backend.weights.on_cpu.copies)
        library, dtype = backend.library, str(backend.model.tensors["output.weight"].dtype)
        copied = any(dtype in trial_result(library, each).types for each in buffer_types(library))
        assert names == ({"blk.0.attn_q.weight", "blk.1.ffn_up.weight", "output.weight"} if copied else set())
        total = sum(info.nbytes for info in backend.model.tensors.values())
        allowed = LARGER if "Q8_0" in str(path) else 1.02  # AMX tiles of q8_0 are larger
        assert total <= backend.memory().total() <= allowed * total


def test_a_dry_run_books_the_same(path) -> None:
    totals = []
    for alloc in (True, False):
        with backbay.open(path, backend="ggml", params=BackendParams(alloc_memory=alloc)) as backend:
            totals.append(backend.memory().total())
    assert totals[0] == totals[1]


def test_loading_reports_progress_and_can_be_cancelled(path) -> None:
    seen: list[float] = []
    with opened(path, weights="copied") as backend:
        cancel = threading.Event()
        cancel.set()
        with pytest.raises(CancelledError):
            backend.load(cancel=cancel)
        backend.load(progress=seen.append)
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0.0, 1.0)
    assert len(seen) > 2


def test_an_unknown_policy_is_refused(path) -> None:
    with pytest.raises(OptionError, match="weights"):
        opened(path, weights="painted")


@pytest.mark.skipif(AMX not in buffer_types(load_library()), reason="this library or machine has no AMX")
def test_amx_is_used_only_if_it_works_and_pays(tmp_path, path) -> None:
    result = trial_result(load_library(), AMX)
    assert not (result.why_not and result.types)
    names = [arrangement.name for arrangement in usable_arrangements(load_library())]
    assert (AMX in names) is bool(result.types)
    with opened(path) as backend:
        backend.load()
        found, plain = products(backend, 33), None
    with opened(path, weights="mapped") as backend:
        backend.load()
        plain = products(backend, 33)
    for ours, mapped in zip(found[0], plain[0], strict=True):
        np.testing.assert_allclose(ours, mapped, rtol=1e-3, atol=1e-2)
