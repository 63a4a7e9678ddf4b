"""Compares each kind of model with transformers, on files that llama.cpp's converter writes.

    python engine/tools/compare_kinds --converter ~/llama.cpp
    python engine/tools/compare_kinds --converter ~/llama.cpp --kinds gemma2 olmo2 --backends onnx
    python engine/tools/compare_kinds --converter ~/llama.cpp --store engine/tests/data/kinds

Needs torch, transformers and the sources of llama.cpp. Models are small and random. The numbers are mean square errors
over the mean square of the results of transformers, in f32. --store writes the files of the tests, which run without
torch; --keep keeps the model files. A kind is described in a few lines, in decoders.py and the files beside it.
"""

from __future__ import annotations

import argparse
import lzma
import os
import sys
import tarfile
import tempfile
import traceback
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

os.environ["TQDM_DISABLE"] = "1"  # the converter's progress

import numpy as np
import transformers
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "tests")]

import decoders  # noqa: E402
import encoders  # noqa: E402
import mixtures  # noqa: E402
import model_scripts as scripts  # noqa: E402
import recurrent  # noqa: E402
from files import add_pooling, convert  # noqa: E402
from kind import Kind, make  # noqa: E402
from truth import embeddings, truth  # noqa: E402

import backbay  # noqa: E402
from backbay import DType  # noqa: E402
from backbay.discovery import open_model  # noqa: E402
from backbay.gguf import ModelFile  # noqa: E402
from backbay_engine.plugin import load_model  # noqa: E402

KINDS: dict[str, Kind] = {**decoders.KINDS, **mixtures.KINDS, **encoders.KINDS, **recurrent.KINDS}


def truths(kind: Kind, names: list[str]) -> dict[str, NDArray[np.float32]]:
    """The results of transformers by script."""
    if kind.pooling is not None:
        return {"texts": embeddings(kind, scripts.TEXTS)}
    return {name: truth(kind, scripts.KIND_SCRIPTS[name]) for name in names}


def compare(path: Path, kind: Kind, backend_name: str, expected: dict[str, NDArray[np.float32]]) -> list[str]:
    """The errors of each script, as text; over the limit in bold."""
    cells = []
    with backbay.open(path, backend=backend_name) as backend:
        model = load_model(backend, scripts.CAPACITY)
        backend.load()
        for script, wanted in expected.items():
            error = scripts.nmse(scripts.answers(backend, model, script, DType.F32), wanted)
            cells.append(f"{error:.1e}" if error < kind.limit else f"**{error:.1e}**")
    return cells


def rows(name: str, args: argparse.Namespace, folder: Path) -> Iterator[list[str]]:
    """A row for each backend."""
    kind = KINDS[name]
    try:
        make(kind, folder / name)
        path = convert(folder / name, folder / f"{name}.gguf", args.converter, kind)
        add_pooling(folder / name, kind)
        expected = truths(kind, ["short"] if args.store else [*scripts.KIND_SCRIPTS])
        for backend_name in args.backends:
            yield [name, backend_name, *compare(path, kind, backend_name, expected)]
            yield ["", "its folder", *compare(folder / name, kind, backend_name, expected)]
        if unequal := differing(path, folder / name):
            yield ["", "**unlike the converter's**", ", ".join(unequal)]
    except Exception as error:
        if args.verbose:
            traceback.print_exc()
        yield [name, "**error**", f"{type(error).__name__}: {error}"]
        return
    if args.store:
        store(path, args.store / name, expected)
        if (args.store / f"{name}.hf.xz").exists() or args.folders:
            store_folder(folder / name, args.store / f"{name}.hf.xz")


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


def store(path: Path, target: Path, expected: dict[str, NDArray[np.float32]]) -> None:
    """Write the packed model file, whose weights have few values, and the expected results."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.with_suffix(".gguf.xz").write_bytes(lzma.compress(path.read_bytes(), preset=9))
    halves = {script: found.astype(np.float16) for script, found in expected.items()}
    np.savez_compressed(target.with_suffix(".npz"), **halves)


def store_folder(folder: Path, target: Path) -> None:
    """Write the packed folder, for tests that open it."""
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size = path.stat().st_size
            archive.addfile(entry, BytesIO(path.read_bytes()))
    target.write_bytes(lzma.compress(packed.getvalue(), preset=9))


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
    parser.add_argument("--verbose", action="store_true", help="show the traceback of an error")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print("| kind | backend |", *(f"{script} |" for script in scripts.KIND_SCRIPTS))
    print("|---|---|" + "---|" * len(scripts.KIND_SCRIPTS))
    agrees = True
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.kinds:
            for row in rows(name, args, args.keep or Path(scratch)):
                print("|", " | ".join(row), "|", flush=True)
                agrees &= not any("**" in cell for cell in row)
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
