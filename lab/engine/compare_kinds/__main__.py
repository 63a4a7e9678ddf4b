"""Compares each kind of model with transformers, on files that llama.cpp's converter writes.

    python lab/engine/compare_kinds --converter ~/llama.cpp
    python lab/engine/compare_kinds --converter ~/llama.cpp --kinds gemma2 olmo2 --backends onnx
    python lab/engine/compare_kinds --converter ~/llama.cpp --llama --page docs/reference/kinds.md
    python lab/engine/compare_kinds --converter ~/llama.cpp --store apps/engine/tests/data/kinds

Needs torch, transformers and the sources of llama.cpp. With --others, kinds that transformers lacks are compared with
transcriptions by others, and so is the one here; Jina BERT always is. Models are small and random. The numbers are mean square errors
over the mean square of the results of transformers, in f32. --llama compares llama.cpp as well (with llama-cpp-python),
and --page writes the numbers into a page, docs/reference/kinds.md, where other kinds keep their rows. --store writes the files of the tests, which run without
torch; --keep keeps the model files. A kind is described in a few lines, in decoders.py and the files beside it.
"""

from __future__ import annotations

import argparse
import lzma
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

os.environ["TQDM_DISABLE"] = "1"  # the converter's progress

import numpy as np
import transformers
from numpy.typing import NDArray

TOOL = Path(__file__).resolve().parent
sys.path[:0] = [str(TOOL), str(TOOL.parent), str(TOOL.parents[2] / "apps/engine/tests")]

import decoders  # noqa: E402
import encoders  # noqa: E402
import mixtures  # noqa: E402
import model_scripts as scripts  # noqa: E402
import recurrent  # noqa: E402
from differences import DIFFERENCES  # noqa: E402
from files import add_pooling, convert  # noqa: E402
from kind import Kind, make  # noqa: E402
from others import HERE, OTHERS  # noqa: E402
from packed_folders import store_folder  # noqa: E402
from page import CHANGED, LLAMA_CPP, cell, page  # noqa: E402
from truth import Model, in_llama_cpp, in_torch, of_texts, truth  # noqa: E402

import backbay  # noqa: E402
from backbay import DType  # noqa: E402
from backbay.discovery import open_model  # noqa: E402
from backbay.gguf import ModelFile  # noqa: E402
from backbay_engine.plugin import load_model  # noqa: E402

KINDS: dict[str, Kind] = {**decoders.KINDS, **mixtures.KINDS, **encoders.KINDS, **recurrent.KINDS}


Errors = dict[str, float]
"""By script."""


def results(kind: Kind, model: Model, names: list[str]) -> dict[str, NDArray[np.float32]]:
    """What a model of another library gives, by script."""
    if kind.pooling is not None:
        return {"texts": of_texts(model)}
    return {name: truth(model, scripts.KIND_SCRIPTS[name]) for name in names}


def compare(path: Path, backend_name: str, expected: dict[str, NDArray[np.float32]]) -> Errors:
    """The errors of a backend."""
    with backbay.open(path, backend=backend_name) as backend:
        model = load_model(backend, scripts.CAPACITY)
        backend.load()
        found = {script: scripts.answers(backend, model, script, DType.F32) for script in expected}
        return errors_of(found, expected)


def errors_of(found: dict[str, NDArray[np.float32]], expected: dict[str, NDArray[np.float32]]) -> Errors:
    return {script: scripts.nmse(found[script], wanted) for script, wanted in expected.items()}


def sides(name: str, args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Errors | str]]:
    """The errors of llama.cpp and of each backend, or what went wrong."""
    kind = KINDS[name]
    try:
        make(kind, folder / name)
        path = convert(folder / name, folder / f"{name}.gguf", args.converter, kind)
        add_pooling(folder / name, kind)
        names = ["short"] if args.store else [*scripts.KIND_SCRIPTS]
        expected = results(kind, in_torch(kind), names)
        if (transcription := transcribed(name, args.others)) is not None:
            ours, expected = expected, results(kind, transcription, names)
            yield "transcription", errors_of(ours, expected)
    except Exception as error:
        yield "transformers", told(error, args)
        return
    if args.llama:
        yield LLAMA_CPP, of_llama_cpp(kind, path, expected, args)
        if (changed := without_difference(name, folder, names, args)) is not None:
            yield CHANGED, changed
    for backend_name in args.backends:
        try:
            yield backend_name, compare(path, backend_name, expected)
            yield f"{backend_name}, the folder", compare(folder / name, backend_name, expected)
        except Exception as error:
            yield backend_name, told(error, args)
    if unequal := differing(path, folder / name):
        yield "the folder", f"unlike the converter's: {', '.join(unequal)}"
    if args.store:
        store(path, args.store / name, expected)
        if (args.store / f"{name}.hf.xz").exists() or args.folders:
            store_folder(folder / name, args.store / f"{name}.hf.xz")


def of_llama_cpp(
    kind: Kind, path: Path, expected: dict[str, NDArray[np.float32]], args: argparse.Namespace
) -> Errors | str:
    """The errors of llama.cpp, or what went wrong."""
    try:
        with in_llama_cpp(kind, path) as model:
            return errors_of(results(kind, model, [*expected]), expected)
    except Exception as error:
        return told(error, args)


def without_difference(
    name: str, folder: Path, names: list[str], args: argparse.Namespace
) -> Errors | str | None:
    """The errors of llama.cpp without the known reason of its difference; None if there is no such change."""
    known = DIFFERENCES.get(name)
    changed = known.changed(KINDS[name]) if known is not None else None
    if changed is None:
        return None
    make(changed, folder / f"{name}-changed")
    path = convert(folder / f"{name}-changed", folder / f"{name}-changed.gguf", args.converter, changed)
    return of_llama_cpp(changed, path, results(changed, in_torch(changed), names), args)


def transcribed(name: str, folder: Path | None) -> Model | None:
    """The transcription by others that judges a kind; those of other projects only if their folder is given."""
    if name in HERE:
        return HERE[name](KINDS[name])
    return OTHERS[name](KINDS[name], folder) if folder and name in OTHERS else None


def differing(converted: Path, folder: Path) -> list[str]:
    """The tensors that a folder gives otherwise than the converter's file; one rounding more or less is no difference."""
    with open_model(converted) as ours, open_model(folder) as theirs:
        both = [name for name in ours.tensors if name in theirs.tensors]
        unequal = [name for name in both if not close(ours, theirs, name)]
        return sorted({*ours.tensors} ^ {*theirs.tensors}) + unequal


def close(ours: ModelFile, theirs: ModelFile, name: str) -> bool:
    a, b = ours.data(name), theirs.data(name)
    if np.array_equal(a, b):
        return True
    return name.endswith("ssm_a") and np.allclose(a.view("<f4"), b.view("<f4"), rtol=2e-7, atol=0)


def told(error: Exception, args: argparse.Namespace) -> str:
    if args.verbose:
        traceback.print_exc()
    return f"{type(error).__name__}: {error}"


def store(path: Path, target: Path, expected: dict[str, NDArray[np.float32]]) -> None:
    """Write the packed model file, whose weights have few values, and the expected results."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.with_suffix(".gguf.xz").write_bytes(lzma.compress(path.read_bytes(), preset=9))
    halves = {script: found.astype(np.float16) for script, found in expected.items()}
    np.savez_compressed(target.with_suffix(".npz"), **halves)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--converter", type=Path, required=True, help="the folder of llama.cpp's sources")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--backends", nargs="+", default=sorted(backbay.backends()))
    parser.add_argument("--store", type=Path)
    parser.add_argument("--folders", action="store_true", help="store the folders of transformers too")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--llama", action="store_true", help="compare llama.cpp too")
    parser.add_argument(
        "--others", type=Path, help="take transcriptions by others; their folder: see others.py"
    )
    parser.add_argument("--page", type=Path, help="write the numbers into a page, with --llama")
    parser.add_argument("--verbose", action="store_true", help="show the traceback of an error")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print("| kind | backend |", *(f"{script} |" for script in scripts.KIND_SCRIPTS))
    print("|---|---|" + "---|" * len(scripts.KIND_SCRIPTS))
    agrees, found = True, {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.kinds:
            found[name] = dict(sides(name, args, args.keep or Path(scratch)))
            for side, errors in found[name].items():
                cells = (
                    [cell(error, KINDS[name].limit) for error in errors.values()]
                    if isinstance(errors, dict)
                    else [f"**{errors}**"]
                )
                print("|", " | ".join([name, side, *cells]), "|", flush=True)
                agrees &= side == LLAMA_CPP or not any("**" in each for each in cells)
    if args.page:
        limits = {name: kind.limit for name, kind in KINDS.items()}
        before = args.page.read_text() if args.page.exists() else ""
        args.page.write_text(page(found, limits, args.backends, before))
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
