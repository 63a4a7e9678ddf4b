"""Recurrent models beside attention of the same width: the speed of prompts and of decoding, per weight.

    python lab/bench/engine_kinds.py --dtype q8_0 --sides llama.cpp ggml onnx

The models are random, with one width and number of blocks (lab/bench/kind_files.py). Models differ in their number of
weights, so the table also gives weights times tokens in a second. llama.cpp runs the same files, where it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from engine_llama import LLAMA_CPP, PROMPT, Engine, LlamaCpp, prompt
from kind_files import TENSORS, Sizes, write_kind
from sides import Side, serve, side_arguments, take_turns, write_json

REFERENCE = "llama"  # attention in every block


def main() -> None:
    parser = side_arguments(__doc__, rounds=4)
    parser.add_argument("--kinds", nargs="+", default=list(TENSORS), choices=TENSORS)
    parser.add_argument("--dtype", default="q8_0", choices=("q4_0", "q8_0", "f16", "f32"))
    parser.add_argument("--sides", nargs="+", help=f"{LLAMA_CPP}, and names of backends")
    parser.add_argument("--width", type=int, default=Sizes.width)
    parser.add_argument("--layers", type=int, default=Sizes.layers)
    parser.add_argument("--model", type=Path)
    args = parser.parse_args()
    if args.side:
        be_side(args)
        return
    args.sides = args.sides or [*([LLAMA_CPP] if importlib.util.find_spec("llama_cpp") else []), "ggml"]
    with tempfile.TemporaryDirectory() as folder:
        write_json(args.json, compare(args, Path(folder)))


def be_side(args: argparse.Namespace) -> None:
    made: Any = (LlamaCpp if args.side == LLAMA_CPP else Engine)(
        SimpleNamespace(side=args.side, model=args.model, threads=args.threads)
    )

    def answer(request: str) -> dict[str, float]:
        if request == "prompt":
            return {request: PROMPT / made.first_token(prompt(PROMPT))}
        return {request: made.generate(prompt(128), 24)[1]}

    serve({"tokens": made.generate(prompt(64), 4)[0]}, answer)


def compare(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Tokens per second of every kind and side; all take turns, so that they meet the same machine."""
    sizes = Sizes(width=args.width, hidden=3 * args.width, layers=args.layers)
    sides, weights = [], {}
    for kind in args.kinds:
        path = folder / f"{kind}.gguf"
        write_kind(path, kind, sizes, args.dtype)
        weights[kind] = path.stat().st_size
        for name in args.sides:
            given = [f"--side={name}", f"--model={path}", f"--threads={args.threads}"]
            sides.append(Side(f"{kind} {name}", [__file__, *given]))
    results: dict[str, Any] = {"dtype": args.dtype, "width": args.width, "layers": args.layers}
    for request in ("prompt", "decode"):
        answers = take_turns(sides, request, args.rounds)
        results[request] = {name: statistics.median(found) for name, found in answers.items()}
        print(f"{args.dtype}: {request:32} tokens/s    of {REFERENCE}    per weight, of {REFERENCE}")
        for name, speed in results[request].items():
            kind, _, side = name.partition(" ")
            base = results[request].get(f"{REFERENCE} {side}", speed)
            share = weights[kind] / weights.get(REFERENCE, weights[kind])
            print(f"  {name:38} {speed:8.0f} {speed / base:11.2f} {share * speed / base:20.2f}", flush=True)
    for each in sides:
        each.close()
    return results


if __name__ == "__main__":
    main()
