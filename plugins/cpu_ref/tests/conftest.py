"""A backend without a model, a context of it, and ops called on arrays."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from backbay import Context, Spec
from backbay_cpu_ref import CpuRef


@pytest.fixture(scope="module")
def backend() -> Iterator[CpuRef]:
    with CpuRef() as backend:
        yield backend


@pytest.fixture
def ctx(backend: CpuRef) -> Iterator[Context]:
    with backend.new_context() as ctx:
        yield ctx


@pytest.fixture
def call(backend: CpuRef) -> Callable[..., Any]:
    """An op on arrays and specs, traced and computed."""

    def call(op: str, *args: Any, **attributes: Any) -> Any:
        with backend.new_context() as ctx:
            x, *others = (leaf(ctx, value) for value in args)
            y = getattr(x, op)(ctx, *others, **{name: leaf(ctx, value) for name, value in attributes.items()})
            ctx.compute(y)
            return y.numpy()

    return call


def leaf(ctx: Context, value: Any) -> Any:
    if isinstance(value, Spec):
        return ctx.empty(value.dtype, *value.shape)
    if isinstance(value, np.ndarray):
        return ctx.from_floats(value) if value.dtype.kind == "f" else ctx.from_ints(value)
    return value
