"""Tokens that a small model or the model's own head guesses, with none: tokens per second of the same model, in turns.

    python lab/bench/engine_draft.py --sides ggml onnx
    python lab/bench/engine_draft.py --head
    python lab/bench/engine_draft.py --head --recurrent

The small model is the first two layers of the large one. Where the other layers change nothing, all guesses are right;
where they are random, none is. A head is a layer beside those of the model. A real draft or head lies between the two. --recurrent takes
Qwen 3.5 with 19 layers, whose head attends.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from engine_speculation import measured, told
from kind_files import Sizes, write_kind
from llama_file import SHAPES, arguments, write_model
from sides import Side, library_of, serve, write_json

CONTEXT, PROMPT = 1024, 256
HEARD = 2  # layers
RECURRENT = Sizes(width=2048, hidden=6144, layers=19, vocab=32000)
GIVEN = ("threads", "tokens", "parallel")  # to each side


def main() -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--parallel", type=int, default=1, help="answers at once")
    parser.add_argument("--sides", nargs="+", default=["ggml"], help="names of backends")
    parser.add_argument("--head", action="store_true", help="the model's own head guesses")
    parser.add_argument("--recurrent", action="store_true", help="a recurrent model, with --head")
    parser.add_argument("--draft", type=Path)
    args = parser.parse_args()
    if args.side:
        be_side(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        write_json(args.json, compare(args, Path(folder)))


def be_side(args: argparse.Namespace) -> None:
    import backbay_engine

    name = args.side.partition("@")[0]
    sizes: dict[str, Any] = {"context": CONTEXT, "parallel": args.parallel, "num_threads": args.threads}
    source = {"speculate": "mtp"} if args.draft is None else {"draft": args.draft}
    llm = backbay_engine.load(args.model, name, **source, **sizes)
    rng = np.random.default_rng(0)
    prompts = rng.integers(300, llm.vocabulary_size, (args.parallel, PROMPT)).tolist()

    def answer(request: str) -> dict[str, Any]:
        guessed = bool(request.partition("|")[2])
        handles = [
            llm.submit(prompt, max_tokens=args.tokens, temperature=0, speculate=guessed) for prompt in prompts
        ]
        timings = [handle.result().timings for handle in handles]
        return {
            "rate": sum(each.tokens - 1 for each in timings) / max(each.generation for each in timings),
            "guessed": sum(each.guessed_tokens for each in timings),
            "right": sum(each.accepted_tokens for each in timings),
        }

    serve({}, answer)


def compare(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    shape = SHAPES[args.shape]
    files = {title: folder / f"{title}.gguf" for title in ("right", "wrong")}
    draft = [f"--draft={folder / 'draft.gguf'}"]
    if args.head:
        draft, more = [], replace(shape, layers=shape.layers + 1)
        for title, path in files.items():
            if args.recurrent:
                write_kind(path, "qwen35", RECURRENT, args.dtype, right=title == "right")
            else:
                write_model(path, more, args.dtype, heard=0, right=title == "right")
    else:
        write_model(files["right"], shape, args.dtype, heard=HEARD)
        write_model(files["wrong"], shape, args.dtype)
        write_model(folder / "draft.gguf", replace(shape, layers=HEARD), args.dtype)
    results: dict[str, Any] = {"dtype": args.dtype, "shape": args.shape, "parallel": args.parallel}
    given = [f"--{key}={getattr(args, key)}" for key in GIVEN]
    for name in args.sides:
        results[name] = {}
        for title in ("right", "wrong"):
            which = [f"--model={files[title]}", *draft]
            side = Side(name, [__file__, f"--side={name}", *which, *given], library_of(name))
            results[name][title] = measured(side.ask, title, args.rounds)
            print(f"{name}: all guesses are {title}: {told(results[name][title])}", flush=True)
            side.close()
    return results


if __name__ == "__main__":
    main()
