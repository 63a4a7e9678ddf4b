"""Random graphs of random shapes, strides and dtypes in worker processes: whatever core lets in must not kill one.

python plugins/ggml/tools/fuzz.py --count 50000 --workers 2
"""

from __future__ import annotations

import argparse
import concurrent.futures
import faulthandler
import inspect
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import backbay
from backbay import OPS, BackbayError, Context, DType, NoMemoryError, Tensor, UnsupportedOpError

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from rpc_servers import serving

FLOATS = (DType.F32, DType.F32, DType.F32, DType.F16, DType.BF16)
INTEGERS = (DType.I32, DType.I64)
QUANTIZED = (
    DType.Q8_0,
    DType.Q4_0,
    DType.Q5_1,
    DType.Q4_K,
    DType.Q6_K,
    DType.IQ4_NL,
    DType.MXFP4,
    DType.IQ2_XXS,
    DType.Q8_1,
)
SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 65504.0, 1e30, 1e-30)
LARGEST = 1 << 16  # elements; larger ones take time and show nothing new
BATCH = 50
Batch = tuple[int, int]  # the first seed, and how many
TOLD = 5000  # graphs after which it says how far it is
PATIENCE = 240  # seconds for one graph; one that takes longer hangs


class Fuzzer:
    """One random graph: leaves, views and ops on whatever there is, computed twice."""

    def __init__(self, ctx: Context, seed: int) -> None:
        self.ctx, self.rng = ctx, np.random.default_rng(seed)
        self.tensors: list[Tensor] = []
        self.ids: list[tuple[Tensor, int]] = []
        self.leaves: list[Tensor] = []
        self.log: list[str] = []

    def extent(self) -> int:
        return int(self.rng.choice([0, 1, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 64]))

    def shape(self, dtype: DType = DType.F32) -> tuple[int, ...]:
        rank = int(self.rng.integers(0, 5))
        shape = [self.extent() for _ in range(rank)]
        if dtype.is_quantized:
            shape = [dtype.block_size * int(self.rng.integers(0, 3)), *shape[1:]]
        while np.prod([n or 1 for n in shape]) > LARGEST:
            shape = [*shape[:1], *[n // 2 for n in shape[1:]]]
        return tuple(shape)

    def leaf(self, dtype: DType | None = None, shape: tuple[int, ...] | None = None) -> Tensor:
        if dtype is None:
            dtype = self.pick((*FLOATS, *FLOATS, *INTEGERS, self.pick(QUANTIZED)))
        shape = self.shape(dtype) if shape is None else shape
        made = (self.ctx.input() if self.rng.random() < 0.3 else self.ctx).empty(dtype, *shape)
        self.fill(made)
        self.leaves.append(made)
        self.tensors.append(made)
        return made

    def fill(self, leaf: Tensor) -> None:
        size = int(np.prod(leaf.shape))
        if leaf.dtype.is_integer:
            leaf.from_ints(self.rng.integers(-3, 4, size))
        elif leaf.dtype.is_quantized:
            leaf.from_bytes(self.rng.integers(0, 256, leaf.nbytes, dtype=np.uint8))
        else:
            values = self.rng.standard_normal(size).astype(np.float32)
            if size and self.rng.random() < 0.2:
                values[self.rng.integers(0, size, 3)] = self.rng.choice(SPECIAL, 3)
            leaf.from_floats(values)

    def pick(self, options: Any) -> Any:
        return options[int(self.rng.integers(0, len(options)))]

    def operand(self) -> Tensor:
        return self.pick(self.tensors) if self.tensors and self.rng.random() < 0.7 else self.leaf()

    def view(self) -> Tensor:
        """A view of something, of any geometry that core takes."""
        x, rank = self.operand(), int(self.rng.integers(1, 5))
        kind = self.pick(("permute", "slice", "view", "reshape"))
        if kind == "permute":
            return x.permute(self.ctx, *self.rng.permutation(max(x.rank, rank)).tolist())
        if kind == "slice":
            dim = int(self.rng.integers(0, max(x.rank, 1)))
            low, high = sorted(self.rng.integers(0, x.dim(dim) + 1, 2).tolist())
            return x.slice(self.ctx, dim, low, high, int(self.rng.integers(1, 4)))
        if kind == "reshape":
            return x.reshape(self.ctx, *self.rng.permutation(x.shape).tolist())
        size = x.dtype.type_size
        shape = [
            int(self.rng.integers(1, 6)) * x.dtype.block_size,
            *[int(self.rng.integers(1, 5)) for _ in range(rank - 1)],
        ]
        steps = [int(n) * size for n in self.rng.integers(0, 40, rank - 1)]
        return x.view(self.ctx, int(self.rng.integers(0, 8)) * size, shape, steps)

    def id_leaf(self, shape: tuple[int, ...], bound: int) -> Tensor:
        made = self.ctx.empty(self.pick((DType.I32, DType.I32, DType.I64)), *shape)
        made.from_ints(self.rng.integers(0, max(bound, 1), int(np.prod(shape))))
        self.ids.append((made, bound))
        return made

    def op(self) -> Any:
        """An op with arguments that have some chance of being taken."""
        op = self.pick(list(OPS.values()))
        if op.view:
            return self.view()
        x = self.operand()
        if (
            x.dtype.is_quantized
            and self.rng.random() < 0.6
            and op.name not in ("mulmat", "rows", "cast", "mulmat_id")
        ):
            x = self.leaf(self.pick(FLOATS))
        arguments = getattr(self, f"args_{op.name}", self.plain)(op, x)
        if arguments is None:
            return None
        self.log.append(f"{op.name}({x}, {', '.join(map(str, arguments))})")
        return getattr(arguments[0] if op.name == "__" else x, op.name)(self.ctx, *arguments)

    def plain(self, op: Any, x: Tensor) -> list[Any]:
        """Something of the right kind for each parameter."""
        made: list[Any] = []
        for parameter in op.parameters[1:]:
            if parameter.is_operand and parameter.is_optional and self.rng.random() < 0.5:
                made.append(None)
            elif parameter.is_operand:
                made.append(self.like(x, parameter.name))
            elif parameter.default is not inspect.Parameter.empty and self.rng.random() < 0.6:
                break
            else:
                made.append(self.value(parameter))
        return made

    def like(self, x: Tensor, name: str) -> Tensor:
        """Mostly what fits: the same shape, a row of it, or one that it repeats."""
        if name == "ids":
            return self.id_leaf((self.extent(),), max(1, x.dim(1)))
        chance = self.rng.random()
        dtype = x.dtype if x.dtype.is_float and self.rng.random() < 0.7 else self.pick(FLOATS)
        if chance < 0.45:
            return self.leaf(dtype, x.shape)
        if chance < 0.65:
            return self.leaf(dtype, x.shape[:1])
        if chance < 0.8:
            return self.leaf(dtype, tuple(1 if self.rng.random() < 0.5 else n for n in x.shape))
        return self.operand()

    def value(self, parameter: Any) -> Any:
        name = parameter.name
        if name == "dtype":
            return self.pick((*FLOATS, *INTEGERS, DType.Q8_0, DType.Q4_0, DType.Q4_K))
        if name == "kind":
            return self.pick(("upper-diag", "upper", "lower-diag", "lower"))
        if name in ("min", "s", "value", "eps", "alpha"):
            return float(self.pick((0.0, 1e-6, 0.5, 2.0)))
        if name in ("max", "limit"):
            return float(self.pick((2.0, 7.0, np.inf)))
        if name in ("lower", "left", "unit_diagonal"):
            return bool(self.rng.random() < 0.5)
        if parameter.variadic:
            return self.extent()
        return int(
            self.pick((0, 1, 1, 2, 3, 1 << 30)) if self.rng.random() < 0.05 else self.pick((0, 1, 1, 2, 3))
        )

    # -- ops whose operands must fit each other ----------------------------------------------------------

    def args_mulmat(self, _op: Any, x: Tensor) -> list[Any]:
        repeats = [n * int(self.rng.integers(1, 3)) for n in (x.dim(2), x.dim(3))]
        return [self.leaf(self.pick(FLOATS), (x.dim(0), self.extent(), *repeats))]

    args_mulmat_full_prec = args_mulmat

    def args_mulmat_id(self, _op: Any, x: Tensor) -> list[Any]:
        used, tokens = self.extent(), self.extent()
        ids = self.id_leaf((used, tokens), x.dim(2))
        return [self.leaf(self.pick(FLOATS), (x.dim(0), self.pick((1, used)), tokens)), ids]

    def args_add_id(self, _op: Any, x: Tensor) -> list[Any]:
        experts = 1 + self.extent()
        return [
            self.leaf(self.pick(FLOATS), (x.dim(0), experts)),
            self.id_leaf((x.dim(1), x.dim(2)), experts),
        ]

    def args_rows(self, _op: Any, x: Tensor) -> list[Any]:
        a, b = (x.dim(n) if x.dim(n) > 1 else self.extent() for n in (2, 3))
        return [self.id_leaf((self.extent(), a, b), x.dim(1))]

    def args_set_rows(self, _op: Any, x: Tensor) -> list[Any]:
        count = self.extent() if x.dim(1) else 0
        src = self.leaf(self.pick((*FLOATS, *INTEGERS)), (x.dim(0), count, x.dim(2), x.dim(3)))
        return [src, self.id_leaf((count, self.pick((1, x.dim(2))), self.pick((1, x.dim(3)))), x.dim(1))]

    def args_copy(self, _op: Any, x: Tensor) -> list[Any]:
        dtype = self.pick((*FLOATS, *INTEGERS, DType.Q8_0, DType.Q4_K))
        target = self.leaf(dtype, tuple(self.rng.permutation(x.shape).tolist()))
        return [
            target if self.rng.random() < 0.5 else target.permute(self.ctx, *self.rng.permutation(4).tolist())
        ]

    def args_set(self, _op: Any, x: Tensor) -> list[Any]:
        part = tuple(int(self.rng.integers(0, n + 1)) for n in x.shape)
        return [self.leaf(self.pick(FLOATS), part), int(self.rng.integers(0, 4)) * x.dtype.type_size]

    def args_concat(self, _op: Any, x: Tensor) -> list[Any]:
        dim = int(self.rng.integers(0, 4))
        shape = [x.dim(n) for n in range(max(x.rank, dim + 1))]
        shape[dim] = x.dtype.block_size * int(self.rng.integers(0, 3)) if dim == 0 else self.extent()
        return [self.leaf(x.dtype, tuple(shape)), dim]

    def args_stack(self, op: Any, x: Tensor) -> list[Any]:
        other, dim = self.args_concat(op, x)
        return [dim, other]

    def args_repeat(self, _op: Any, x: Tensor) -> list[Any]:
        return [int(self.rng.integers(0, 4)), int(self.rng.integers(0, 4))]

    def args_repeat_4d(self, _op: Any, x: Tensor) -> list[Any]:
        return [x.dim(n) * int(self.rng.integers(0, 3)) for n in range(4)]

    def args_top_k(self, _op: Any, x: Tensor) -> list[Any]:
        return [int(self.rng.integers(0, x.dim(0) + 1))]

    def args_contiguous(self, _op: Any, x: Tensor) -> list[Any]:
        return self.rng.permutation(x.shape).tolist() if self.rng.random() < 0.5 else []

    def args_chunk(self, _op: Any, x: Tensor) -> list[Any]:
        return [int(self.rng.integers(0, max(1, x.rank))), 1 + self.extent() * x.dtype.block_size]

    def args_chunk_sections(self, _op: Any, x: Tensor) -> list[Any]:
        low = int(self.rng.integers(0, x.dim(0) + 1))
        return [0, low, x.dim(0) - low]

    def args_interpolate(self, _op: Any, x: Tensor) -> list[Any]:
        return [[self.extent() for _ in range(max(x.rank, 1))], self.pick(("nearest", "bilinear"))]

    def args_avg_pool2d(self, _op: Any, x: Tensor) -> list[Any]:
        return [
            1 + int(self.rng.integers(0, 4)),
            1 + int(self.rng.integers(0, 3)),
            float(self.rng.integers(0, 5)) / 2,
        ]

    def windows(self, count: int) -> list[int]:
        made = [
            int(n)
            for n in (
                *self.rng.integers(1, 4, count),
                *self.rng.integers(0, 4, count),
                *self.rng.integers(1, 3, count),
            )
        ]
        if self.rng.random() < 0.05:
            made[int(self.rng.integers(0, len(made)))] = 1 << 30
        return made

    def args_conv2d(self, _op: Any, x: Tensor) -> list[Any]:
        data = self.leaf(
            self.pick(FLOATS), (self.extent(), self.extent(), x.dim(2), int(self.rng.integers(0, 3)))
        )
        return [data, *self.windows(2)]

    args_im2col = args_conv2d

    def args_conv3d(self, _op: Any, x: Tensor) -> list[Any]:
        c = self.pick([n for n in (1, 2, x.dim(3)) if n and x.dim(3) % n == 0] or [1])
        data = self.leaf(
            self.pick(FLOATS),
            (self.extent(), self.extent(), self.extent() % 9, c * int(self.rng.integers(0, 3))),
        )
        return [data, c, *self.windows(3)]

    def args_conv1d_dw(self, _op: Any, x: Tensor) -> list[Any]:
        return [self.leaf(self.pick(FLOATS), (self.extent() % 5, 1, x.dim(1))), *self.windows(1)]

    def args_rope(self, _op: Any, x: Tensor) -> list[Any]:
        mode = self.pick(("normal", "neox", "multi-section", "vision"))
        head = x.dim(0)
        dim = (
            head // 2 if mode == "vision" else 2 * int(self.rng.integers(1, head // 2 + 1)) if head > 1 else 2
        )
        many = 4 if mode in ("multi-section", "vision") else 1
        positions = self.leaf(DType.I32, (many * x.dim(2),))
        sections = {"multi-section": (1, 1, 0, 0), "vision": (dim - dim // 3, dim // 3, 0, 0)}.get(
            mode, (0, 0, 0, 0)
        )
        factors = self.leaf(DType.F32, (dim,)) if self.rng.random() < 0.5 else None
        yarn = (64, 1.0, 1.0, 32.0, 1.0) if self.rng.random() < 0.3 else None
        return [positions, dim, 1e4, float(self.pick((1.0, 0.5))), mode, factors, sections, yarn]

    def args_ssm_conv(self, _op: Any, x: Tensor) -> list[Any]:
        return [self.leaf(self.pick(FLOATS), (int(self.rng.integers(1, 5)), x.dim(1)))]

    def args_ssm_scan(self, _op: Any, x: Tensor) -> list[Any]:
        states, hd, heads, slots = (x.dim(n) for n in range(4))
        tokens, sequences = int(self.rng.integers(0, 4)), int(self.rng.integers(0, 3)) if slots else 0
        groups = self.pick([n for n in (1, 2, heads) if n and heads % n == 0] or [1])
        kind = self.pick(FLOATS)
        return [
            self.leaf(kind, (hd, heads, tokens, sequences)),
            self.leaf(kind, (heads, tokens, sequences)),
            self.leaf(kind, (self.pick((1, states)), heads)),
            self.leaf(kind, (states, groups, tokens, sequences)),
            self.leaf(kind, (states, groups, tokens, sequences)),
            self.id_leaf((sequences,), slots),
        ]

    def args_solve_tri(self, _op: Any, x: Tensor) -> list[Any]:
        lower, left, unit = (bool(n) for n in self.rng.integers(0, 2, 3))
        n, m = x.dim(0), self.extent()
        return [self.leaf(self.pick(FLOATS), ((m, n) if left else (n, m)) + x.shape[2:]), lower, left, unit]

    def args_diag(self, _op: Any, x: Tensor) -> list[Any]:
        return []

    def args_scaled_dot_product_attention(self, _op: Any, _x: Tensor) -> None:
        """Traced here, because the receiver must fit as well."""
        kind = self.pick((DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0))
        d, dv = (
            (32 * int(self.rng.integers(1, 3)) for _ in range(2))
            if kind.is_quantized
            else (self.extent(), self.extent())
        )
        kv_heads, history, tokens, batch = (int(n) for n in self.rng.integers(0, 5, 4))
        history *= int(self.rng.choice([1, 1, 16, 200]))
        heads = kv_heads * int(self.rng.integers(1, 4))
        query = self.leaf(self.pick(FLOATS), (d, heads, tokens, batch))
        key, value = (
            self.leaf(kind, (d, kv_heads, history, batch)),
            self.leaf(kind, (dv, kv_heads, history, batch)),
        )
        rows = tokens + int(self.rng.integers(0, 3))
        mask_shape = (history, rows, self.pick((1, heads)), self.pick((1, batch)))
        mask = self.leaf(self.pick((DType.F16, DType.F32)), mask_shape) if self.rng.random() < 0.6 else None
        sinks = self.leaf(DType.F32, (heads,)) if self.rng.random() < 0.3 else None
        vmla = self.leaf(self.pick(FLOATS), (dv, 3, heads)) if self.rng.random() < 0.3 else None
        self.tensors.append(
            query.scaled_dot_product_attention(
                self.ctx,
                key,
                value,
                mask,
                scale=0.3,
                sinks=sinks,
                vmla=vmla,
                softcap=float(self.pick((0.0, 2.0))),
            )
        )

    # -- one graph ---------------------------------------------------------------------------------------

    def run(self) -> str:
        for _ in range(int(self.rng.integers(1, 12))):
            try:
                made = self.op()
            except BackbayError:
                continue
            for tensor in made if isinstance(made, list) else [made]:
                if tensor is not None and tensor.nbytes < 8 * LARGEST:
                    self.tensors.append(tensor)
        outputs = [t for t in self.tensors if t.op is not None and self.rng.random() < 0.5][:4]
        if not outputs:
            return "empty"
        try:
            self.ctx.compute(*outputs)
            for leaf in self.leaves:
                if not leaf.leaf.id_uses:
                    self.fill(leaf)
            self.ctx.compute(*outputs)
        except (UnsupportedOpError, NoMemoryError) as refusal:
            return "refused" if isinstance(refusal, UnsupportedOpError) else "memory"
        for tensor in outputs:
            tensor.bytes()
        return "ran"


def run_batch(first: int, count: int, backend_name: str, spread: bool) -> dict[str, int]:
    """Some graphs in this process; an exception that is not backbay's is a finding too."""
    with serving() if spread else nullcontext() as server:
        params = backbay.BackendParams(num_threads=2, options={"rpc": server.endpoint} if server else {})
        return run_graphs(first, count, backend_name, params)


def run_graphs(first: int, count: int, backend_name: str, params: backbay.BackendParams) -> dict[str, int]:
    tally: dict[str, int] = {}
    with backbay.open(None, backend=backend_name, params=params) as backend:
        for seed in range(first, first + count):
            with backend.new_context() as ctx:
                fuzzer = Fuzzer(ctx, seed)
                faulthandler.dump_traceback_later(PATIENCE, exit=True)
                try:
                    outcome = fuzzer.run()
                except Exception:  # whatever it is, it is a finding
                    trace = traceback.format_exc(limit=-6)
                    raise RuntimeError(f"seed {seed}: {fuzzer.log}\n{trace}") from None
            tally[outcome] = tally.get(outcome, 0) + 1
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--backend", default="ggml")
    parser.add_argument(
        "--rpc", action="store_true", help="over the CPU and a second device, an RPC server's"
    )
    options = parser.parse_args()
    # Spinning threads of many small graphs hinder each other: asleep, they are up to thirty times as fast.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    started, tally, findings = time.monotonic(), Counter[str](), 0
    last = options.first + options.count
    batches = [
        (first, min(options.batch, last - first)) for first in range(options.first, last, options.batch)
    ]
    while batches:
        # A process that dies takes its pool along. What was being run is run again, each in a pool of its own.
        lost, found = run_batches(batches, options.workers, options, tally)
        findings += found
        suspects, batches = lost[: 2 * options.workers], lost[2 * options.workers :]
        for batch in suspects:
            died, found = run_batches([batch], 1, options, tally)
            findings += found + len(died)
            for first, count in died:
                print(f"a process died within {count} graphs from seed {first}", flush=True)
    print(f"{options.count} graphs in {time.monotonic() - started:.0f} s: {dict(tally)}, {findings} findings")
    return int(findings > 0)


def run_batches(
    batches: list[Batch], workers: int, options: argparse.Namespace, tally: Counter[str]
) -> tuple[list[Batch], int]:
    """Run batches in spawned workers; returns those that a dying process took along, and the number of findings."""
    lost, findings, spawn = [], 0, multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        runs = {pool.submit(run_batch, *batch, options.backend, options.rpc): batch for batch in batches}
        for run in concurrent.futures.as_completed(runs):
            try:
                tally.update(run.result())
                if tally.total() % TOLD < options.batch:
                    print(f"{tally.total()} graphs so far: {dict(tally)}", file=sys.stderr, flush=True)
            except BrokenProcessPool:
                lost.append(runs[run])
            except RuntimeError as error:
                findings += 1
                print(error)
    return sorted(lost), findings


if __name__ == "__main__":
    sys.exit(main())
