"""Run a model on two backends, and show where their results differ: block by block, then op by op."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import inf, sqrt
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from backbay import BackbayError, Backend, Context, DType, Tensor, UnsupportedOpError
from backbay.cli import add_json, say, say_json, table

from ..cache.contract import ROUNDOFFS
from ..images.image import Image
from ..llm import LLM
from ..local.opening.load_checks import dtype_of
from ..media.content_parts import Media, modality_of
from ..media.encoder import EncoderPass
from ..media.prompts import prompt_parts
from ..port.request_maker import UserPrompt
from ..profiles.plots import depth_chart
from .model_arguments import (
    add_image_arguments,
    add_model_arguments,
    add_plot_argument,
    open_model,
    write_plot,
)

TOKENS = 16
UNITS = {**ROUNDOFFS, DType.I32: 0.0, DType.I64: 0.0}
QUANTIZED_UNIT = 2.0**-7  # 8-bit activations with a scale for each block
ROUNDINGS = 8  # roundings within one op


def add_arguments(parser: ArgumentParser) -> None:
    add_model_arguments(parser)
    add = parser.add_argument
    add("--a", default="cpu_ref", metavar="NAME", help="the reference: any installed backend (cpu_ref)")
    add("--b", required=True, metavar="NAME", help="the backend to compare with it")
    add("-p", "--prompt", help=f"the prompt; by default {TOKENS} random tokens")
    add_image_arguments(parser, "a picture before the prompt: the encoder is compared, too")
    add("--all", action="store_true", help="list all ops, not only those beyond their bound")
    add_plot_argument(parser, "plot the error through the model's depth")
    add_json(parser)


def run(args: Namespace) -> int:
    """Exit status 1 if an op's error exceeds the bound of the backend's stated precision."""
    with ExitStack() as stack:
        a, b = (stack.enter_context(open_model(args, name)) for name in (args.a, args.b))
        text = random_tokens(a.vocabulary_size) if args.prompt is None else args.prompt
        prompt = [*(Image(path) for path in args.image), text] if args.image else text
        through, singly = block_differences(a, b, prompt), list(op_differences(a, b, prompt))
    broken = [op for op in singly if op.broken]
    if args.json:
        first = broken[0].name if broken else None
        say_json({"blocks": as_dicts(through), "ops": as_dicts(singly), "first": first})
    else:
        print_differences(through, singly if args.all else broken, singly)
        kept = {dtype_of(args.kv_dtype, llm.backend) for llm in (a, b) if llm.cache is not None}
        if not broken and explained_by_f16(through, singly, cached=len(kept) > 1 and DType.F16 in kept):
            say(f"rounding to f16, by {ROUNDOFFS[DType.F16]:.1e} each time, explains the whole difference")
    if args.plot:
        title = f"{Path(args.model).name}: {args.b} beside {args.a}"
        errors = {"relative error": [x.error for x in through]}
        write_plot(args, depth_chart(title, [block.name for block in through], errors))
    return 1 if broken else 0


def random_tokens(vocabulary: int) -> list[int]:
    return [int(id) for id in np.random.default_rng(0).integers(0, vocabulary, TOKENS)]


def print_differences(
    through: list[TensorDifference], shown: list[TensorDifference], singly: list[TensorDifference]
) -> None:
    say(table(("after", "relative error"), [(x.name, f"{x.error:.2e}") for x in through], right=(1,)))
    say()
    if shown:
        rows = []
        for x in shown:
            bound = "" if x.bound is None else f"{x.bound:.1e}"
            rows.append((x.name, f"{x.error:.2e}", bound, "beyond" if x.broken else "", x.note))
        say(table(("op, on equal operands", "error", "bound", "", "result"), rows, right=(1, 2)))
    broken = [x for x in shown if x.broken]
    all_well = f"all {len(singly)} ops are within their bounds"
    say(f"first op beyond its bound: {broken[0].name}" if broken else all_well)


def explained_by_f16(
    through: list[TensorDifference], singly: list[TensorDifference], *, cached: bool
) -> bool:
    """Whether f16, in which one of the backends alone keeps its cache, or computes, explains the largest difference."""
    unit, worst = ROUNDOFFS[DType.F16], max((x.error for x in through), default=0.0)
    rounded = cached or any(x.roundoff == unit for x in singly)
    return rounded and unit / ROUNDINGS < worst <= unit * ROUNDINGS


def as_dicts(differences: list[TensorDifference]) -> list[dict[str, Any]]:
    fields = ("name", "error", "bound", "broken", "note")
    return [{name: getattr(x, name) for name in fields} for x in differences]


@dataclass(frozen=True)
class TensorDifference:
    """The relative error of a tensor between two backends: norm of the difference over norm of the tensor."""

    name: str
    error: float
    bound: float | None = None  # of the expected error, if known
    note: str = ""
    roundoff: float = 0.0  # of the coarsest type that the op is computed in

    @property
    def broken(self) -> bool:
        return self.bound is not None and not self.error <= self.bound


def relative_error(expected: NDArray[Any], found: NDArray[Any]) -> float:
    """Norm of the difference over norm of the expected; infinite if only one of two values is finite."""
    left, right = expected.astype(np.float64).ravel(), found.astype(np.float64).ravel()
    finite = np.isfinite(left)
    if not np.array_equal(finite, np.isfinite(right)):
        return inf
    left, right = left[finite], right[finite]
    norm = float(np.linalg.norm(left))
    distance = float(np.linalg.norm(left - right))
    return distance / norm if norm else (inf if distance else 0.0)


def block_differences(a: LLM, b: LLM, prompt: UserPrompt) -> list[TensorDifference]:
    """The errors of the model's named tensors and of its result, in order; those of the encoder come first."""
    found: list[TensorDifference] = []
    for picture in _pictures(prompt):
        with traced_encoder(a, picture) as left, traced_encoder(b, picture) as right:
            found += _differences(left.values(), right.values())
    return found + _differences(*(llm.step_cache.tapped(llm.step(prompt)) for llm in (a, b)))


def op_differences(a: LLM, b: LLM, prompt: UserPrompt) -> Iterator[TensorDifference]:
    """The error of each op of `b` on the operands of `a`, in running order; those of the encoder come first."""
    for picture in _pictures(prompt):
        with traced_encoder(a, picture) as traced:
            yield from _compared(traced, b.encoders[modality_of(picture)].backend)
    with a.step_cache.traced(a.step(prompt)) as step:
        yield from _compared(TracedPass(step.ctx, step.result, step.batch.taps, a.backend), b.backend)


def _pictures(prompt: UserPrompt) -> list[Media]:
    parts = prompt_parts(prompt)
    return parts.media if parts is not None else []


def _differences(
    left: Mapping[str, NDArray[Any]], right: Mapping[str, NDArray[Any]]
) -> list[TensorDifference]:
    return [
        TensorDifference(name, relative_error(x, right[name])) for name, x in left.items() if name in right
    ]


def _compared(traced: TracedPass, other: Backend) -> Iterator[TensorDifference]:
    walked = list(ancestors(traced.result))
    names = {tensor: name for name, tensor in traced.taps.items()}
    place = f"{traced.prefix}input"
    traced.ctx.compute(traced.result, *[x for x in walked if x.leaf is None])
    counts: dict[str, int] = {}
    for x in walked:
        if x.op is not None and not x.op.view and x.op.writes is None:
            layer = x.placement.layer
            where = f"{traced.prefix}layer {layer}" if layer is not None else place
            number = counts[where] = counts.get(where, 0) + 1
            yield _replayed(x, other, f"{where} #{number} {x.op.name}", traced.backend)
        place = f"after {names[x]}" if x in names else place


def ancestors(result: Tensor) -> Iterator[Tensor]:
    """A tensor and all its operands, direct and indirect; operands come first."""
    seen: set[Tensor] = set()
    stack = [(result, False)]
    while stack:
        tensor, ready = stack.pop()
        if ready:
            yield tensor
        elif tensor not in seen:
            seen.add(tensor)
            stack.append((tensor, True))
            operands = tensor.op.flat_operands(tensor.args) if tensor.op is not None else ()
            stack += [(operand, False) for operand in reversed(list(operands))]


def _replayed(x: Tensor, backend: Backend, name: str, source: Backend) -> TensorDifference:
    """The error of one op on the other backend."""
    assert x.op is not None
    with backend.new_context() as ctx:
        moved: dict[Tensor, Tensor] = {}
        args = [_moved(value, ctx, backend, moved) for value in x.args]
        given = dict(zip((parameter.name for parameter in x.op.parameters), args, strict=True))
        if given.get("cache_config_applied"):  # two backends may lay out their caches differently
            given["cache_config_applied"] = False
            if source.cache_config().permuted_v:
                given["value"] = given["value"].permute(ctx, 1, 2, 0).contiguous(ctx)
        keywords = {p.name: given[p.name] for p in x.op.parameters if p.keyword_only}
        first, *others = [given[p.name] for p in x.op.parameters if not p.keyword_only]
        try:
            y = getattr(first, x.op.name)(ctx, *others, **keywords)
            ctx.compute(y)
        except UnsupportedOpError as error:
            return TensorDifference(name, 0.0, note=str(error))
        operands = [given[p.name] for p in x.op.parameters if p.is_operand and not p.variadic]
        bound, unit = expected_error(backend, x, operands)
        return TensorDifference(name, relative_error(x.numpy(), y.numpy()), bound, str(x), unit)


def _moved(value: Any, ctx: Context, backend: Backend, moved: dict[Tensor, Tensor]) -> Any:
    """An argument for the other backend: its own weight, or a leaf with the same bytes."""
    if isinstance(value, tuple):
        return tuple(_moved(item, ctx, backend, moved) for item in value)
    if not isinstance(value, Tensor):
        return value
    weight = backend.get(value.leaf.name) if value.leaf is not None and value.leaf.name else None
    moved[value] = weight or ctx.from_bytes(value.dtype, value.bytes(), *value.shape)
    return moved[value]


def expected_error(backend: Backend, x: Tensor, operands: Sequence[Tensor | None]) -> tuple[float, float]:
    """A generous bound of an op's error, by the backend's stated precision, and the coarsest roundoff of the op."""
    assert x.op is not None
    if x.op.moves:
        unit = UNITS.get(x.dtype, QUANTIZED_UNIT)
        return unit, unit
    stated = backend.precision(x.op, operands)
    depth = max((operand.dim(0) for operand in operands if operand is not None), default=1)
    units = [UNITS.get(dtype, QUANTIZED_UNIT) for dtype in (stated.activation, stated.weight, x.dtype)]
    accumulate = UNITS.get(stated.accumulate, QUANTIZED_UNIT)
    return ROUNDINGS * (sum(units) + sqrt(depth) * accumulate), max(*units, accumulate)


@final
@dataclass(frozen=True)
class TracedPass:
    """A forward pass in a context, and its named tensors."""

    ctx: Context
    result: Tensor
    taps: Mapping[str, Tensor]
    backend: Backend
    prefix: str = ""

    def values(self) -> dict[str, NDArray[Any]]:
        """The values of the named tensors."""
        self.ctx.compute(*self.taps.values())
        return {name: tensor.numpy() for name, tensor in self.taps.items()}


@contextmanager
def traced_encoder(llm: LLM, picture: Media) -> Iterator[TracedPass]:
    """The encoder of a model over a picture, or the first piece of a sound."""
    encoder = llm.encoders.get(modality_of(picture))
    if encoder is None:
        raise BackbayError("the model has no encoder")
    pieces = encoder.family.pieces(llm.prepare(picture))[:1]
    whole = EncoderPass(encoder.backend, encoder.network, pieces, whole=True)
    try:
        start, *blocks = whole.states
        taps = {"encoder start": start, **{f"encoder blk.{n}": x for n, x in enumerate(blocks)}}
        taps["encoder rows"] = whole.result
        yield TracedPass(whole.ctx, whole.result, taps, encoder.backend, "encoder ")
    finally:
        whole.close()
