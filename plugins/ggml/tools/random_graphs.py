"""Random graphs from a seed, with random shapes, strides and dtypes."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from backbay import OPS, BackbayError, Context, DType, NoMemoryError, Tensor, UnsupportedOpError

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
LARGEST = 1 << 16  # elements; larger tensors take more time and find no more faults


class RandomGraph:
    """A graph of leaves, views and ops, with arguments that core often accepts; `run` computes it twice."""

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
        """A view of any geometry that core accepts."""
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
        """An op with arguments that core may accept."""
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
        return getattr(x, op.name)(self.ctx, *arguments)

    def plain(self, op: Any, x: Tensor) -> list[Any]:
        """An argument of the right kind for each parameter."""
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
        """An operand that mostly fits: of the same shape, a row, or a shape that is repeated."""
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
        """Trace the op with a first operand chosen to fit it."""
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
