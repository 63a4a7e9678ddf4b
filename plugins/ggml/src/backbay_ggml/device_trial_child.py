"""The child process of a device's trial: it runs the cases, compares each with the CPU, and measures products.

It prints a line of JSON when a case begins and one with its result. Whatever kills it is the result of the case begun.
"""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from typing import final

import numpy as np

from backbay import BackendParams, Context, DType, GPULayers, GPULayersList, Tensor
from backbay.internals import Array, Bytes, reporter

from .backend import Ggml
from .devices import device_trial
from .devices.trial_cases import CASES, TrialLeafMaker

CLOSE = 2e-2  # of numbers near 1; faults give other numbers altogether
MEASURED = (DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0, DType.Q4_K, DType.Q6_K)
ATTENDED = (DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0)
INNER, FEW, ROWS, HEAD, CELLS = 512, 8, 64, 64, 512
BATCHES = (1, 7, 48)  # columns: one, few and many take different code
OF_PRODUCTS = ((3e-7, DType.F32), (1.5e-4, DType.F16), (1.2e-3, DType.BF16), (2e-2, DType.Q8_0))
OF_ATTENTION = ((5e-6, DType.F32), (7e-4, DType.F16), (6e-3, DType.BF16), (5e-2, DType.Q8_0))
"""The most error of a result, relative to the sum of its terms' magnitudes, with operands rounded to a dtype."""
ROUNDED_TO_BF16 = 2.0**-8  # the most error of a result that was rounded to bf16
SUMMED_IN_HALF = 3e-4  # a larger error of positive terms comes from sums in f16
Product = Callable[[Tensor, Context, Tensor], Tensor]


def expert_product(weight: Tensor, ctx: Context, x: Tensor) -> Tensor:
    """The product with the only expert, of which each token asks."""
    (inner, rows), tokens = weight.shape, x.dim(1)
    ids = ctx.layer(0).from_ints(np.zeros((tokens, 1), np.int32))
    experts = weight.reshape(ctx, inner, rows, 1)
    return experts.mulmat_id(ctx, x.reshape(ctx, inner, 1, tokens), ids)


@final
class DeviceTrial:
    """A device beside the CPU."""

    def __init__(self, device: Ggml, cpu: Ggml) -> None:
        self._device, self._cpu = device, cpu

    def wrong(self, name: str) -> str:
        """What is wrong with a case on the device; empty if nothing is."""
        got, expected = (self._run(backend, name) for backend in (self._device, self._cpu))
        if np.allclose(got, expected, rtol=CLOSE, atol=CLOSE, equal_nan=True):
            return ""
        place = int(np.argmax(~np.isclose(got, expected, rtol=CLOSE, atol=CLOSE, equal_nan=True)))
        return f"{got[place]:g} in place of {expected[place]:g}"

    def _run(self, backend: Ggml, name: str) -> Array:
        with backend.new_context() as ctx:
            result = CASES[name](TrialLeafMaker(ctx, self.quantized))
            ctx.compute(result)
            return result.numpy().reshape(-1).astype(np.float64)

    def quantized(self, data: Array, dtype: DType) -> Bytes:
        """Numbers as blocks, made by the CPU."""
        with self._cpu.new_context() as ctx:
            made = ctx.from_floats(data.reshape(-1)).cast(ctx, dtype)
            ctx.compute(made)
            return np.frombuffer(made.bytes(), np.uint8)

    # -- precision ---------------------------------------------------------------------------------------

    def product(self, dtype: DType, multiply: Product) -> tuple[DType, DType]:
        """The dtypes of operands and of sums in products with weights of a dtype."""
        worst, summed, rounded = 0.0, 0.0, 0.0
        for columns, inner in product(BATCHES, (INNER,) if dtype.is_quantized else (INNER, INNER - 1, FEW)):
            weight, x = (_normal(count, inner) for count in (ROWS, columns))
            if inner > FEW:  # of few terms, errors do not cancel
                worst = max(worst, self._error_of_product(dtype, weight, x, multiply))
            exact, positive = _held_exactly(columns, inner), np.abs(weight) / 2
            held = positive if dtype.is_quantized else _held_exactly(ROWS, inner)
            summed = max(summed, self._error_of_product(dtype, held, exact, multiply))
            if not dtype.is_quantized:
                rounded = max(rounded, self._error_of_product(dtype, *_of_ten_bits(columns, inner), multiply))
        judged = _judged(dtype, worst, summed, OF_PRODUCTS)
        if not rounded or max(rounded, summed) > ROUNDED_TO_BF16 or judged[0] is DType.Q8_0:
            return judged
        return DType.BF16, DType.BF16

    def _error_of_product(self, dtype: DType, weight: Array, x: Array, multiply: Product) -> float:
        with self._device.new_context() as ctx:
            bench = TrialLeafMaker(ctx, self.quantized)
            w, columns = bench.leaf(weight, dtype), bench.leaf(x)
            y = multiply(w, ctx, columns)
            ctx.compute(y)
            exact = w.numpy().astype(np.float64)
            terms = np.abs(x.astype(np.float64)) @ np.abs(exact).T
            return _worst(y.numpy().reshape(terms.shape) - x.astype(np.float64) @ exact.T, terms)

    def attention(self, dtype: DType) -> tuple[DType, DType]:
        """The dtypes of operands and of sums in attention over a cache of a dtype."""
        worst, summed = 0.0, 0.0
        for tokens in BATCHES:
            q, k, v = (_normal(*shape) for shape in ((tokens, 4, HEAD), (CELLS, 2, HEAD), (CELLS, 2, HEAD)))
            worst = max(worst, self._error_of_attention(dtype, q, k, v))
            summed = max(summed, self._error_of_attention(dtype, q / 64, k, _held_exactly(CELLS, 2, HEAD)))
        return _judged(dtype, worst, summed, OF_ATTENTION)

    def _error_of_attention(self, dtype: DType, q: Array, k: Array, v: Array) -> float:
        with self._device.new_context() as ctx:
            bench = TrialLeafMaker(ctx, self.quantized)
            query, key, value = bench.leaf(q), bench.leaf(k, dtype), bench.leaf(v, dtype)
            y = query.scaled_dot_product_attention(ctx, key, value, None, scale=0.125)
            ctx.compute(y)
            keys, values = (np.repeat(each.numpy().astype(np.float64), 2, axis=1) for each in (key, value))
            scores = np.einsum("thd,chd->htc", q.astype(np.float64), keys) * 0.125
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            exact, terms = (np.einsum("htc,chd->thd", weights, each) for each in (values, np.abs(values)))
            return _worst(y.numpy() - exact, terms)


def _worst(errors: Array, terms: Array) -> float:
    """The largest error relative to its terms; infinity if one is NaN, which is larger than nothing."""
    found = float(np.max(np.abs(errors) / terms))
    return np.inf if np.isnan(found) else found


def _of_ten_bits(columns: int, inner: int) -> tuple[Array, Array]:
    """Weights and columns whose products, 895, have ten bits; bf16, to which a device may round them, has eight."""
    weight, x = np.zeros((ROWS, inner), np.float32), np.zeros((columns, inner), np.float32)
    weight[:, 0], x[:, 0] = 5, 179
    return weight, x


def _normal(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def _held_exactly(*shape: int) -> Array:
    """Positive numbers that every dtype of operands holds exactly, 8-bit codes with a scale too."""
    made = np.random.default_rng(shape).integers(1, 128, shape).astype(np.float32)
    made[..., ::16] = 127
    return made / 128


def _judged(
    dtype: DType, worst: float, summed: float, tiers: Sequence[tuple[float, DType]]
) -> tuple[DType, DType]:
    """The dtypes of operands and of sums, by the errors with any operands, and of sums of positive, exact operands.

    The errors of 8-bit codes and of bf16 are alike; with quantized weights, nothing rounds to bf16.
    """
    fitting = [
        kind for bound, kind in tiers if worst <= bound and not (dtype.is_quantized and kind is DType.BF16)
    ]
    if not fitting:
        raise ArithmeticError(f"products are wrong by {worst:.1g} of their terms")
    return (DType.F16, DType.F16) if summed > SUMMED_IN_HALF else (fitting[0], DType.F32)


Step = tuple[str, Callable[[], str | tuple[DType, DType]]]


def trial_steps(trial: DeviceTrial) -> list[Step]:
    """What the trial does, by name."""
    made: list[Step] = [(name, partial(trial.wrong, name)) for name in CASES]
    for dtype in MEASURED:
        made += [
            (device_trial.PRODUCT.format(dtype), partial(trial.product, dtype, Tensor.mulmat)),
            (
                device_trial.PRODUCT_IN_FULL.format(dtype),
                partial(trial.product, dtype, Tensor.mulmat_full_prec),
            ),
            (device_trial.PRODUCT_OF_EXPERTS.format(dtype), partial(trial.product, dtype, expert_product)),
        ]
    return made + [
        (device_trial.ATTENTION.format(dtype), partial(trial.attention, dtype)) for dtype in ATTENDED
    ]


def step_outcome(step: Callable[[], str | tuple[DType, DType]]) -> dict[str, str | list[str]]:
    """A step's result, or its error: whatever that is, the device does not do it."""
    try:
        result = step()
    except Exception as error:  # noqa: BLE001
        return {"error": f"{type(error).__name__}: {error}"}
    return {"result": result if isinstance(result, str) else list(map(str, result))}


def main(arguments: Sequence[str]) -> int:
    """Run the steps from a number on."""
    tell = reporter()
    device, first = arguments[0], int(arguments[1])
    device_trial.leave_untried()
    with ExitStack() as opened:
        placed = [GPULayersList([GPULayers(device, range(1))]), GPULayersList([])]
        trial = DeviceTrial(
            *(opened.enter_context(Ggml(None, BackendParams(gpu_layers=each))) for each in placed)
        )
        listed = trial_steps(trial)
        for number, (name, step) in enumerate(listed[first:], first):
            faulthandler.dump_traceback_later(device_trial.PATIENCE, exit=True)
            tell(begun=name, number=number, of=len(listed))
            tell(**step_outcome(step))
        faulthandler.cancel_dump_traceback_later()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
