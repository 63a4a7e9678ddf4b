"""Replay of a failing call: a file, and a program that does not need the suite."""

from __future__ import annotations

import json
from base64 import b85decode, b85encode
from pathlib import Path
from typing import Any
from zlib import compress, decompressobj
from zlib import error as zlib_error

import numpy as np

from backbay import Backend, BackendParams, DType, OptionError
from backbay.internals import read_regular, replacing
from backbay.ops import Yarn

from ..draw.operand import Operand
from ..numbers.comparison import result_bound
from ..numbers.encoding import Array, decode, from_bytes
from ..numbers.number import Number
from ..report.report import Outcome
from ..suite.case import Call
from ..suite.lab import OpenSettings
from ..suite.profiles import SUITE_VERSION
from ..workloads.model_calls import LIKE
from .selection import AGAIN, Item, RunSettings, names

LARGEST = 1 << 26  # bytes of a replay file
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


def take_data(call: Call, recorded: Outcome) -> str:
    """Let the call have the data of a recorded failure, if it is the same call; why they cannot be its data, or ""."""
    if not recorded.operands or str(call) != recorded.call:
        return ""
    data, operands = [_unpacked(text) for text in recorded.operands], list(call.operands())
    try:
        for part, operand in zip(data, operands, strict=True):
            from_bytes(part, operand.dtype, operand.shape)
    except ValueError as error:
        return str(error)
    call.recorded = {recorded.variant: data}
    return ""


def _packed(data: bytes) -> str:
    return b85encode(compress(data, 9)).decode()


def _unpacked(text: str) -> bytes:
    """The bytes of a packed text; ValueError for another text, or if they are more than any replay file holds."""
    unpacking = decompressobj()
    try:
        data = unpacking.decompress(b85decode(text), MOST_RECORDED + 1)
    except zlib_error as error:
        raise ValueError(f"data that were not packed: {error}") from None
    if len(data) > MOST_RECORDED or not unpacking.eof:
        raise ValueError("more data than any replay file holds, or a part of some")
    return data


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
        data = json.loads(read_regular(path, LARGEST))
        if data["suite"] != SUITE_VERSION:
            raise OptionError(
                f"{path} was written by suite {data['suite']}, this is {SUITE_VERSION}; its program still runs"
            )
        return _settings(data), _item(data["item"]), _failure(data)
    except OSError as error:
        raise OptionError(f"the replay file {path} cannot be read: {error.strerror or error}") from error
    except OptionError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = error if isinstance(error, ValueError) else repr(error)
        raise OptionError(f"{path} is not a replay file of this suite: {why}") from error


def _settings(data: dict[str, Any]) -> RunSettings:
    opening, like = data.get("options", {}), data["like"]
    _require(all(isinstance(text, str) for text in (data["backend"], like, data.get("device", ""))), "a name")
    _require(isinstance(opening, dict), "the options")
    _require(type(data["seed"]) is int, "the seed")
    return RunSettings(data["backend"], data["seed"], opening=OpenSettings.from_dict(data), like=like)


def _item(text: Any) -> Item:
    """The item of a text, which the suite must have; a model's calls are looked for when the model is read."""
    _require(isinstance(text, str) and text.count("/") == 2, "the item")
    profile, name, turn = text.split("/")
    item = Item(profile, name, AGAIN if turn == "again" else int(turn))
    _require(item.turn >= AGAIN and (profile == LIKE or (profile, name) in names()), f"the item {text!r}")
    return item


def _failure(data: dict[str, Any]) -> Outcome:
    kept = {key: data[key] for key in ("item", "check", "call", "variant", "operands", "choices")}
    _require(isinstance(kept["check"], str) and isinstance(kept["call"], str), "the check or the call")
    _require(type(kept["variant"]) is int, "the variant")
    choices = kept["choices"]
    _require(isinstance(choices, list) and all(type(n) is int and n >= 0 for n in choices), "the choices")
    _require(isinstance(kept["operands"], list), "the operands")
    _require(sum(len(_unpacked(text)) for text in kept["operands"]) <= MOST_RECORDED, "the operands")
    return Outcome(**kept)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{what} is none of this suite's")


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
        with replacing(path) as (file,):
            np.save(file, array)
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
