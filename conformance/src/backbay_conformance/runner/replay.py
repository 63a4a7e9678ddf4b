"""Replay of a failing call: a file, and a program that does not need the suite."""

from __future__ import annotations

import json
from base64 import b85decode, b85encode
from pathlib import Path
from typing import Any
from zlib import compress, decompress

import numpy as np

from backbay import BackbayError, Backend, BackendParams, DType
from backbay.ops import Yarn

from ..draw.operand import Operand
from ..numbers.comparison import result_bound
from ..numbers.encoding import Array, decode
from ..numbers.number import Number
from ..report.report import Outcome
from ..suite.case import Call
from ..suite.lab import OpenSettings
from ..suite.profiles import SUITE_VERSION
from .selection import AGAIN, Item, RunSettings

LONGEST = 20000
"""The most characters of a program; a longer one is replaced by a comment on how to write its data."""
FEW = 64  # the most numbers of a leaf that a program shows; more are packed into a text
PACKED = "data("  # the call by which a program unpacks the data of a leaf
MOST_RECORDED = 1 << 22
"""The most bytes of a call's operands in a replay file; a larger call's data are drawn again."""


def record_data(call: Call, outcome: Outcome) -> None:
    """Note the data that a failed call's operands hold."""
    held = [operand.raw for operand in call.operands() if operand.raw is not None]
    if sum(raw.nbytes for raw in held) <= MOST_RECORDED:
        outcome.variant, outcome.operands = call.variant, [_packed(raw.tobytes()) for raw in held]


def take_data(call: Call, recorded: Outcome) -> None:
    """Let the call have the data of a recorded failure, if it is the same call."""
    if recorded.operands and str(call) == recorded.call:
        call.recorded = {recorded.variant: [decompress(b85decode(text)) for text in recorded.operands]}


def _packed(data: bytes) -> str:
    return b85encode(compress(data, 9)).decode()


def as_file(outcome: Outcome, settings: RunSettings) -> dict[str, Any]:
    """The contents of a replay file: the run, the call with its choices and data, and the failure."""
    kept = ("item", "choices", "dtype", "mode", "check", "message", "call", "variant", "operands", "script")
    return {
        "suite": SUITE_VERSION,
        "backend": settings.backend,
        **settings.opening.as_dict(),
        "seed": settings.seed,
        "like": settings.like,
        **{key: getattr(outcome, key) for key in kept},
    }


def read_file(path: str | Path) -> tuple[RunSettings, Item, Outcome]:
    """The run, the item and the failure of a replay file."""
    try:
        data = json.loads(Path(path).read_text())
        if data["suite"] != SUITE_VERSION:
            raise BackbayError(
                f"{path} was written by suite {data['suite']}, this is {SUITE_VERSION}; its program still runs"
            )
        (profile, name, turn), opening = data["item"].split("/"), OpenSettings.from_dict(data)
        run = RunSettings(data["backend"], int(data["seed"]), opening=opening, like=str(data["like"]))
        kept = {key: data[key] for key in ("item", "check", "call", "variant", "operands", "choices")}
        return run, Item(profile, name, AGAIN if turn == "again" else int(turn)), Outcome(**kept)
    except OSError as error:
        raise BackbayError(f"the replay file {path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BackbayError(f"{path} is not a replay file of this suite: {error!r}") from error


def dump(folder: Path, call: Call, expected: list[Any], got: list[Array], dtypes: list[DType]) -> list[Path]:
    """A call as NumPy files: operands, expected results, the bounds of rounded results, and actual results."""
    arrays: dict[str, Array] = {}
    for i, operand in enumerate(call.operands()):
        arrays[f"operand{i}"] = operand.decoded
    for i, (want, dtype) in enumerate(zip(expected, dtypes, strict=False)):
        arrays[f"expected{i}"] = want.value if isinstance(want, Number) else want
        if isinstance(want, Number):
            arrays[f"bound{i}"] = result_bound(want, dtype)
    for i, have in enumerate(got):
        arrays[f"got{i}"] = have
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / f"{name}.npy" for name in arrays]
    for path, array in zip(written, arrays.values(), strict=True):
        np.save(path, array)
    return written


def script(call: Call, name: str, backend: Backend, expected: Array | None) -> str:
    """A short program that runs the call on the backend of a name, and prints its results and the expected results."""
    operands = list(call.operands())
    names = {id(operand): f"a{i}" for i, operand in enumerate(operands)}
    leaves = [f"{names[id(operand)]} = {_leaf(operand, backend)}" for operand in operands]
    packed = any(PACKED in leaf for leaf in leaves)
    lines = [f"import backbay{', base64, zlib' if packed else ''}", "from backbay import DType"]
    lines += ["from backbay.ops import Yarn"] if any(isinstance(value, Yarn) for value in call.args) else []
    lines += ["def data(text): return zlib.decompress(base64.b85decode(text))"] if packed else []
    layer = ".layer(0)" if backend.params.gpu_layers else ""  # leaves of no layer lie on the host
    module, colon, kind = name.partition(":")
    shown = f"__import__({module!r}, fromlist=['_']).{kind}" if colon else repr(name)
    lines.append(f"ctx = backbay.open(None, backend={shown}{_params(backend.params)}).new_context(){layer}")
    lines += [*leaves, f"y = {_traced(call, names)}", "y = y if isinstance(y, list) else [y]"]
    lines += ["ctx.compute(*y)", "print(*[t.numpy() for t in y], sep='\\n')"]
    if expected is not None and expected.size <= 64:
        lines.append(f"print('expected', {_literal(expected.tolist())})")
    text = "\n".join(lines) + "\n"
    if len(text) <= LONGEST:
        return text
    return (
        "# too large to print: a run with --failures FOLDER writes a file for each failure,\n"
        f"# and `backbay conform --repro FILE --dump FOLDER` then writes its data\n# {call}\n"
    )


def _params(params: BackendParams) -> str:
    """The threads, options and placement of a run as an argument; empty if it has none of them."""
    shown = [f"num_threads={params.num_threads}"] if params.num_threads else []
    shown += [f"options={dict(params.options)!r}"] if params.options else []
    if params.gpu_layers is not None:
        listed = ", ".join(f"backbay.GPULayers({gpu.id!r}, {list(gpu.layers)})" for gpu in params.gpu_layers)
        shown.append(f"gpu_layers=backbay.GPULayersList([{listed}])")
    return f", params=backbay.BackendParams({', '.join(shown)})" if shown else ""


def _leaf(operand: Operand, backend: Backend) -> str:
    source, shape = operand.source.dtype, "".join(f", {n}" for n in operand.source.shape)
    steps = operand.layout.code(backend, source)
    raw, kind = operand.layout.embed(operand.stored), operand.dtype
    plain = source is kind and not kind.is_quantized
    if plain and raw.size <= FEW and not np.isnan(operand.decoded).any():  # a NaN may have bits of its own
        made = "from_ints" if kind.is_integer else "from_floats"
        numbers = _literal(decode(raw, kind).reshape(-1).tolist())
        return f"ctx.empty(DType.{kind.name}{shape}).{made}({numbers}){steps}"
    text = _packed(operand.bytes())
    return f"ctx.from_bytes(DType.{source.name}, {PACKED}{text!r}){shape}){steps}"


def _literal(numbers: Any) -> str:
    """Numbers as Python text; repr writes infinities and NaN as names that Python does not know."""
    return repr(numbers).replace("nan", "float('nan')").replace("inf", "float('inf')")


def _traced(call: Call, names: dict[int, str]) -> str:
    shown = []
    for parameter, value in zip(call.op.parameters[1:], call.args[1:], strict=True):
        if parameter.variadic:
            shown += [_shown(item, names) for item in value]
        else:
            keyword = f"{parameter.name}=" if parameter.keyword_only else ""
            shown.append(f"{keyword}{_shown(value, names)}")
    return f"{names[id(call.args[0])]}.{call.op.name}({', '.join(['ctx', *shown])})"


def _shown(value: Any, names: dict[int, str]) -> str:
    if isinstance(value, Operand):
        return names[id(value)]
    if isinstance(value, DType):
        return f"DType.{value.name}"
    return _literal(value)
