"""Settings change a backend's speed, not its results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from backbay import Backend, Context, Debug, FlashAttention

from ..checks.call_check import try_call
from ..draw.draw import Draw
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
    settings = SETTINGS[draw.turn % len(SETTINGS)]
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
    """The backend, each of whose contexts gets a batch size from now on."""
    make = backend.new_context

    def new_context(*args: Any, **keywords: Any) -> Context:
        ctx = make(*args, **keywords)
        ctx.set_batch_size(size)
        return ctx

    vars(backend)["new_context"] = new_context
    return backend


def any_case(draw: Draw) -> Case:
    return draw.pick(*CASES.values())
