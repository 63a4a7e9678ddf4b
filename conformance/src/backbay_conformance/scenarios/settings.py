"""Settings change a backend's speed, not its results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from backbay import Backend, Context, Debug, DType, FlashAttention, ops

from ..cases.attention import attention_formula, empty_rows
from ..cases.matrix import by_expert, product
from ..cases.norm import rms_formula, softmax_formula
from ..checks.call_check import OpCall, try_call, try_calls
from ..draw.data import Integers, Numbers
from ..draw.draw import Draw
from ..suite.case import CASES, Call, Case
from ..suite.lab import Lab, scenario, with_contexts
from .large_sizes import columns

SETTINGS: tuple[dict[str, Any], ...] = (
    {"num_threads": 1},
    {"flash_attention": FlashAttention.ON},
    {"num_threads": 3},
    {"flash_attention": FlashAttention.OFF},
    {"num_threads": None, "debug": Debug()},
)
"""Settings unlike the lab's: two threads, automatic flash attention, poison and guard zones."""

WAYS: dict[str, tuple[tuple[str, str], ...]] = {
    "num_threads": (
        *(("core", "mulmat"), ("quant", "mulmat"), ("core", "sum_rows")),
        *(("core", name) for name in ("softmax", "rms_norm", "layer_norm", "rope", "silu")),
    ),
    "flash_attention": (("attention", "scaled_dot_product_attention"),) * 5,
}
"""For each setting, the ops that engines may compute in another way."""


@scenario("core", smoke=2, default=20, nightly=150)
def settings_change_no_result(lab: Lab, draw: Draw) -> None:
    """Some ops give right results with unusual settings as well."""
    settings = draw.by_turn(*SETTINGS)
    chosen = [CASES[key] for name in settings for key in WAYS.get(name, ())]
    other = Lab(lambda _, model: lab.fresh(model, **settings), lab.name)
    try:
        draw.cache = other.backend.cache_config()  # the cache configuration may depend on settings
        told = ", ".join(f"{name}={value}" for name, value in settings.items())
        try_each(other, draw, [*chosen, any_case(draw), any_case(draw)], f"with {told}")
    finally:
        other.discard()


def try_each(lab: Lab, draw: Draw, cases: Sequence[Case], told: str) -> None:
    """Try a call of each case, at turns that follow each other."""
    turn = draw.turn
    for i, case in enumerate(cases):
        draw.turn = turn + i
        call = case.draw(draw)
        draw.note(f"{call} {told}")
        try_call(lab, call, draw.mode)


THREADS = (12, 5, 16, 9, 3, 7, 10, 6, 14, 11, 15, 13, 8, 1, 2, 4)
"""Each number of threads up to 16; few divide the rows of a model."""


def shared_out(draw: Draw, n: int) -> list[OpCall]:
    """One call of each op whose rows, heads or experts several threads share, with a rest for any number of them."""

    def floats(*shape: int, dtype: DType = DType.F32) -> Any:
        return draw.operand(dtype, shape, Numbers(terms=shape[0], most=7), layout=False)

    pairs, x = floats(3, n), draw.operand(DType.F32, (32, 1), Numbers(terms=32, most=7), activated=True)
    query, key = floats(8, 18, 19), floats(8, 9, 40)
    chosen = draw.operand(DType.I32, (3, 7), Integers(0, 17), stays=True)
    attend = (query, key, floats(8, 9, 40), None, 0.125, None, None, 0.0, False)
    attended = partial(attention_formula, permuted=False)
    return [
        (ops.mulmat, Call((floats(32, n), x), product)),
        (ops.softmax, Call((pairs,), softmax_formula, exact=False)),
        (ops.mulmat, Call((floats(32, n, dtype=DType.Q8_0), x), product)),
        (ops.rms_norm, Call((pairs, None, 0.5), rms_formula, exact=False)),
        (ops.scaled_dot_product_attention, Call(attend, attended, exact=False, free=empty_rows)),
        (ops.mulmat_id, Call((floats(32, 70, 17), floats(32, 3, 7), chosen), by_expert)),
        *columns(draw, n),
    ]


@scenario("core", smoke=1, default=len(THREADS), nightly=4 * len(THREADS))
def thread_counts(lab: Lab, draw: Draw) -> None:
    """Any number of threads, also more than there are processors; a third of the ops at a time."""
    threads, n = draw.by_turn(*THREADS), draw.by_turn(14336, 11008, 9728, 4864)
    other = Lab(lambda _, model: lab.fresh(model, num_threads=threads), lab.name)
    try:
        try_calls(
            other, draw, shared_out(draw, n)[draw.by_turn(0, 1, 2) :: 3], told=f" with num_threads={threads}"
        )
    finally:
        other.discard()


OF_BATCHES = (("core", "mulmat"), ("quant", "mulmat"), ("core", "mulmat_id"))
"""Products, which a batch size may give to another device or another kernel."""


@scenario("graph", smoke=1, default=15, nightly=100)
def a_batch_size_is_a_hint(lab: Lab, draw: Draw) -> None:
    """`set_batch_size` announces a number of columns; ops on any numbers still give results as precise as declared."""
    size = draw.by_turn(32, 512, 1, 16, 2)
    other = lab.through(partial(announcing, size=size))
    try:
        cases = [*[CASES[key] for key in OF_BATCHES], any_case(draw)]
        try_each(other, draw, cases, f"after set_batch_size({size})")
    finally:
        other.discard()


def announcing(backend: Backend, size: int) -> Backend:

    def announced(ctx: Context) -> Context:
        ctx.set_batch_size(size)
        return ctx

    return with_contexts(backend, announced)


def any_case(draw: Draw) -> Case:
    return draw.pick(*CASES.values())
