"""The onnx backend beside onnxruntime-genai on the same q4_0 weights, with the same threads.

    python lab/bench/onnx_genai.py --model one_b.q4_0.gguf --folder one_b.genai

Ratios are to onnxruntime-genai; rates above 1 speak for backbay. Both compute only the last token's logits, and
include reading them. backbay's threads do not spin; onnxruntime-genai's threads do, unless `--rest` is given.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import time
from pathlib import Path
from typing import Any

import numpy as np
from genai_model import ensure_folder
from ggml_llama import CELLS, PROMPT, SHORT, TOKENS, agreement
from llama_file import SHAPES, arguments, be_side_or_compare
from numpy.typing import NDArray
from onnx_llama import Onnx
from sides import Side, against, serve, table, take_turns

GENAI = "onnxruntime-genai"


def main() -> None:
    parser = arguments(__doc__, rounds=7)
    parser.set_defaults(dtype="q4_0")
    parser.add_argument("--tokens", type=int, default=16, help="decoded in a round")
    parser.add_argument("--folder", type=Path, help=f"the model for {GENAI}; beside --model if not told")
    parser.add_argument(
        "--measure", nargs="+", default=["prefill", "decode"], help="decode alone: after 16 tokens"
    )
    parser.add_argument("--rest", action="store_true", help=f"threads of {GENAI} do not spin either")
    args = parser.parse_args()
    be_side_or_compare(args, be_side, compare)


class GenAI:
    """The same steps through onnxruntime-genai."""

    def __init__(self, args: argparse.Namespace) -> None:
        import onnxruntime_genai

        self.args, self.module = args, onnxruntime_genai

    def open(self) -> None:
        threads = f'"intra_op_num_threads": {self.args.threads}'
        rest = ', "session.intra_op.allow_spinning": "0"' if self.args.rest else ""
        config = self.module.Config(str(self.args.folder))
        config.overlay(f'{{"model": {{"decoder": {{"session_options": {{{threads}{rest}}}}}}}}}')
        self.model = self.module.Model(config)
        params = self.module.GeneratorParams(self.model)
        params.set_search_options(max_length=CELLS, batch_size=1)
        self.generator = self.module.Generator(self.model, params)

    def run(self, tokens: NDArray[np.int32], first: int) -> NDArray[np.float32]:
        """Compute the last token's logits."""
        if self.generator.token_count() != first:
            self.generator.rewind_to(first)
        self.generator.append_tokens(tokens)
        logits: NDArray[np.float32] = self.generator.get_logits()
        return logits.reshape(-1)


def be_side(args: argparse.Namespace) -> None:
    made: Any = GenAI(args) if args.side == GENAI else Onnx(args)
    made.open()
    logits = made.run(TOKENS[:SHORT], 0)
    first = PROMPT if "prefill" in args.measure else SHORT
    if first == PROMPT:
        made.run(TOKENS[:PROMPT], 0)  # warm up: first runs are slow on both sides

    def answer(request: str) -> dict[str, float]:
        begun = time.perf_counter()
        if request == "prefill":
            made.run(TOKENS[:PROMPT], 0)
            return {"prefill": PROMPT / (time.perf_counter() - begun)}
        for n in range(first, first + args.tokens):
            made.run(TOKENS[n : n + 1], n)
        return {"decode": args.tokens / (time.perf_counter() - begun)}

    serve({"logits": logits.tolist(), "version": importlib.metadata.version("onnxruntime")}, answer)


def compare(args: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {"shape": args.shape, "threads": args.threads}
    args.folder = ensure_folder(
        args.folder or args.model.with_suffix(".genai"), args.model, SHAPES[args.shape]
    )
    sides = [start(name, args) for name in (GENAI, "fast")]
    for side in sides:
        print(f"  {side.name}: onnxruntime {side.greeting['version']}")
    print(f"  normalized squared error between their logits {agreement(sides)['fast']:.1e}")
    for what, rounds in (("prefill", max(2, args.rounds // 2)), ("decode", args.rounds)):
        if what in args.measure:
            results[what] = against(take_turns(sides, what, rounds), GENAI)
            print(table(f"{args.dtype}: {what}", "tokens/s", results[what]), flush=True)
    for side in sides:
        side.close()
    return results


def start(name: str, args: argparse.Namespace) -> Side:
    given = [f"--{key}={getattr(args, key)}" for key in ("model", "folder", "shape", "threads", "tokens")]
    return Side(
        name, [__file__, f"--side={name}", *given, "--measure", *args.measure, *["--rest"] * args.rest]
    )


if __name__ == "__main__":
    main()
