"""Settings change a backend's speed, not its results."""

from __future__ import annotations

from typing import Any

import numpy as np

from backbay import Debug, FlashAttention

from ..checks.call_check import try_call
from ..draw.draw import Draw
from ..numbers.comparison import must_equal
from ..suite.case import CASES, Case
from ..suite.lab import Lab
from ..suite.scenario import scenario

SETTINGS: tuple[dict[str, Any], ...] = (
    {"num_threads": 1},
    {"flash_attention": FlashAttention.ON},
    {"num_threads": 3},
    {"flash_attention": FlashAttention.OFF},
    {"num_threads": None, "debug": Debug()},
)
"""Settings unlike the lab's: two threads, automatic flash attention, poison and guard zones."""

WAYS: dict[str, tuple[tuple[str, str], ...]] = {
    "num_threads": (("core", "mulmat"), ("quant", "mulmat"), ("core", "sum_rows")),
    "flash_attention": (("attention", "scaled_dot_product_attention"),) * 5,
}
"""For each setting, the ops that engines may compute in another way."""


@scenario("core", smoke=2, default=20, nightly=150)
def settings_change_no_result(lab: Lab, draw: Draw) -> None:
    """Some ops give right results with unusual settings as well."""
    turn = draw.turn
    settings = SETTINGS[turn % len(SETTINGS)]
    chosen = [CASES[key] for name in settings for key in WAYS.get(name, ())]
    other = Lab(lambda _, model: lab.fresh(model, **settings), lab.name)
    try:
        draw.cache = other.backend.cache_config()  # the cache configuration may depend on settings
        for i, case in enumerate([*chosen, any_case(draw), any_case(draw)]):
            draw.turn = turn + i
            call = case.draw(draw)
            draw.note(f"{call} with {', '.join(f'{name}={value}' for name, value in settings.items())}")
            try_call(other, call, draw.mode)
    finally:
        other.discard()


@scenario("graph", smoke=1, default=6, nightly=40)
def a_batch_size_is_a_hint(lab: Lab, draw: Draw) -> None:
    """`set_batch_size` announces a number of columns; other numbers still give right results."""
    with lab.backend.new_context() as ctx:
        ctx.set_batch_size(draw.pick(1, 2, 32, 512))
        k, n, m = draw.pick(32, 8, 64), draw.pick(16, 1, 33), draw.pick(4, 1, 33, 64)
        rng = np.random.default_rng(draw.below(1 << 16))
        w, x = rng.integers(-3, 4, (n, k)), rng.integers(-3, 4, (m, k))
        y = ctx.from_floats(w).mulmat(ctx, ctx.input().from_floats(x))
        ctx.compute(y)
        must_equal(y.numpy(), x @ w.T, f"a product of {m} columns after set_batch_size")


def any_case(draw: Draw) -> Case:
    return draw.pick(*CASES.values())
