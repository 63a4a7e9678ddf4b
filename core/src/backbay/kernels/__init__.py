"""The kernels of a GraphBackend over modules of the array API standard, and the choice of its device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .. import ops
from ..backend.kernels.array_devices import DeviceTrial, choose_device, try_device
from ..graph.graph import Node
from ..ops.op_declaration import Op
from . import elementwise as elementwise
from . import movement as movement
from . import reductions as reductions
from . import sequence as sequence
from . import spatial as spatial
from .table import extended, kernel, scan_steps, solve_rows

__all__ = ["DeviceTrial", "array_kernels", "choose_device", "count_temporaries", "scan_steps", "try_device"]

Function = Callable[..., Any]


def array_kernels(
    xp: Any,
    *,
    erfc: Function | None = None,
    solve_triangular: Function | None = None,
    scan: Function | None = None,
) -> dict[Op[Any, Any], Function]:
    """Kernels of all ops without a composite, and of some that gain by a kernel; they write nothing in place.

    xp                 a module of the array API standard (2024): NumPy, jax.numpy, CuPy, `array_api_compat.torch`
    erfc               the complementary error function; without it, gelu_erf has no kernel
    solve_triangular   of (a, b, lower, unit_diagonal), batches of matrices: a^-1 b; without it, rows are a loop in Python
    scan               as `jax.lax.scan`; without it, tokens of a recurrent state are a loop in Python

    A backend replaces kernels that its engine has in a better form: `{**array_kernels(xp), ops.softmax: softmax}`.
    """
    scan = scan or partial(scan_steps, xp)
    solve_triangular = solve_triangular or partial(solve_rows, xp)
    more: dict[Op[Any, Any], Function | None] = {
        ops.gelu_erf: erfc, ops.solve_tri: solve_triangular, ops.ssm_scan: scan, ops.delta_rule: scan
    }  # fmt: skip
    table: dict[Op[Any, Any], Function] = {op: partial(function, xp) for op, function in kernel.items()}
    return table | {op: partial(extended[op], xp, function) for op, function in more.items() if function}


def count_temporaries(node: Node) -> int:
    """The elements that a kernel makes beside its result: powers, the matrices of chosen experts, windows of an image."""
    if node.op is ops.softmax:
        return node.size
    if node.op is ops.mulmat_id:
        w, x, ids = node.args
        return int(ids.size * w.dim(0) * w.dim(1) + ids.size * x.dim(0))
    if node.op in (ops.conv2d, ops.conv3d):
        weight = node.args[0]
        kernels = max(weight.dim(3) // (node.args[2] if node.op is ops.conv3d else 1), 1)
        return int(
            2 * (node.size // kernels) * (weight.size // kernels)
        )  # a product wants them in another order
    return 0
