"""Which operands ggml's CPU code supports, in a table of our own: ggml's answers are not always true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from backbay import Op, Spec, ops

from ..library.library import Library

Specs = Sequence[Spec | None]
Rule = Callable[[Library, Specs], str]
CAST_LIMIT = 1 << 32  # elements; ggml counts quantized elements in 32 bits when it converts them
COMPOSED_WHEN_EMPTY = (ops.scaled_dot_product_attention,)
"""Ops that core's composites compute if an operand is empty."""
RULES: dict[Op[Any, Any], Rule] = {}
"""Functions that tell why an op does not run on some operands; an empty text if it does."""


def why_unsupported(library: Library, op: Op[Any, Any], specs: Specs) -> str:
    """Why an op does not run on some operands; an empty text if it does."""
    for spec in specs:
        if spec is not None and not library.knows(spec.dtype):
            return f"ggml {library.version} does not know {spec.dtype}"
    return RULES[op](library, specs) if op in RULES else ""


def has_long_heads(specs: Specs) -> bool:
    """Whether a delta rule of RWKV has heads of more than 64 elements, for which GPUs compute nonsense or abort."""
    s, removed = specs[0], specs[6] if len(specs) > 6 else None
    assert s is not None
    return removed is not None and max(s.dim(0), s.dim(1)) > 64


def _rule(*of: Op[Any, Any]) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(of, rule))
        return rule

    return register


@_rule(ops.mulmat, ops.mulmat_full_prec, ops.mulmat_id)
def _product(library: Library, specs: Specs) -> str:
    return _multiplies(library, specs[0])


@_rule(ops.rows)
def _rows(library: Library, specs: Specs) -> str:
    return _dequantizes(library, specs[0])


@_rule(ops.cast)
def _cast(library: Library, specs: Specs) -> str:
    x = specs[0]
    assert x is not None
    if x.dtype.is_quantized and x.size >= CAST_LIMIT:
        return f"ggml converts fewer than {CAST_LIMIT} quantized elements at a time"
    return _dequantizes(library, x)


@_rule(ops.copy)
def _copy(library: Library, specs: Specs) -> str:
    x, dst = _both(specs)
    if x.dtype is dst.dtype:
        return ""
    return _cast(library, specs) or _quantizes(library, dst)


@_rule(ops.set_rows)
def _set_rows(library: Library, specs: Specs) -> str:
    x, src = _both(specs)
    if x.dim(0) > x.dtype.block_size and x.stride(0) != x.dtype.type_size:
        return "the elements of each row of the destination must adjoin"
    if x.dtype.is_quantized and src.dtype is x.dtype:
        return f"rows of {x.dtype} cannot be copied unchanged; cast them first"
    return _dequantizes(library, src) or _quantizes(library, x)


@_rule(ops.scaled_dot_product_attention)
def _attention(library: Library, specs: Specs) -> str:
    _query, key, value, _mask, _sinks, vmla = specs
    for product in (key, vmla):
        if product is not None and (why := _multiplies(library, product)):
            return why
    return _dequantizes(library, value) or _multiplies(library, value)


def _both(specs: Specs) -> tuple[Spec, Spec]:
    first, second = specs[0], specs[1]
    assert first is not None
    assert second is not None
    return first, second


def _multiplies(library: Library, weight: Spec | None) -> str:
    assert weight is not None
    return "" if library.can_multiply(weight.dtype) else f"ggml does not multiply {weight.dtype}"


def _dequantizes(library: Library, x: Spec | None) -> str:
    assert x is not None
    if not x.dtype.is_quantized or library.can_dequantize(x.dtype):
        return ""
    return f"ggml does not read {x.dtype}"


def _quantizes(library: Library, x: Spec) -> str:
    readable = not x.dtype.is_quantized or library.can_quantize(x.dtype)
    return "" if readable else f"ggml does not make {x.dtype}"
