"""A 1B Llama of random weights on the onnx backend, beside llama-cpp-python on the same file if it is installed.

    python lab/bench/onnx_llama.py --model one_b.q4_0.gguf --sides llama.cpp fast exact

Ratios are to the first side; rates above 1, times and memory below 1 speak for backbay. All include reading the last
token's logits. Private memory excludes the caches, and is a fraction of the file's size.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from typing import Any

import numpy as np
from ggml_llama import CELLS, LLAMA_CPP, PROMPT, SHORT, TOKENS, LlamaCpp, agreement
from llama_file import SHAPES, arguments, be_side_or_compare
from llama_graph import Llama, memory
from numpy.typing import NDArray
from sides import Side, against, serve, table, take_turns

OPTIONS = {
    "fast": {"precision": "fast"},
    "exact": {"precision": "exact"},
    "shared": {"precision": "fast", "threads": "shared"},
}


def main() -> None:
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--tokens", type=int, default=16, help="decoded in a round")
    parser.add_argument("--sides", nargs="+", help=f"of {LLAMA_CPP}, {', '.join(OPTIONS)}")
    parser.add_argument("--measure", nargs="+", default=["decode", "prefill", "memory", "host"])
    args = parser.parse_args()
    both = [LLAMA_CPP, "fast"] if importlib.util.find_spec("llama_cpp") else ["fast", "exact"]
    args.sides = args.sides or both
    be_side_or_compare(args, be_side, compare)


# -- the sides ---------------------------------------------------------------------------------------------


def be_side(args: argparse.Namespace) -> None:
    made = LlamaCpp(args) if args.side == LLAMA_CPP else Onnx(args)
    made.open()
    logits = made.run(TOKENS[:SHORT], 0)

    def answer(request: str) -> dict[str, float]:
        begun = time.perf_counter()
        if request == "prefill":
            made.run(TOKENS[:PROMPT], 0)
            return {"prefill": PROMPT / (time.perf_counter() - begun)}
        if request == "decode":
            for n in range(PROMPT, PROMPT + args.tokens):
                made.run(TOKENS[n : n + 1], n)
            return {"decode": args.tokens / (time.perf_counter() - begun)}
        if request == "memory":
            return {"memory": (memory()["RssAnon"] - made.cache_size()) / (args.model.stat().st_size / 2**20)}
        return made.costs()

    serve({"logits": logits[:64].tolist()}, answer)


class Onnx:
    """A Llama in ops of the contract, on the onnx plugin."""

    def __init__(self, args: argparse.Namespace) -> None:
        import backbay

        self.args, self.module = args, backbay
        self.steps: dict[int, Any] = {}

    def open(self) -> None:
        options = OPTIONS[self.args.side]
        params = self.module.BackendParams(num_threads=self.args.threads, options=options)
        self.backend = self.module.open(self.args.model, backend="onnx", params=params)
        self.backend.load()
        self.llama = Llama(self.backend, SHAPES[self.args.shape], CELLS, self.module.DType.F32)

    def run(self, tokens: NDArray[np.int32], first: int) -> NDArray[np.float32]:
        count = len(tokens)
        if count not in self.steps:
            history = {1: PROMPT + 256, SHORT: 256, PROMPT: PROMPT}[count]  # as llama.cpp pads it
            self.steps[count] = self.llama.step(count, history)
        logits: NDArray[np.float32] = self.steps[count].run(tokens, first)
        return logits

    def cache_size(self) -> float:
        """MiB of the caches."""
        shape = SHAPES[self.args.shape]
        return 2 * 4 * shape.layers * shape.kv_width * CELLS / 2**20

    def costs(self) -> dict[str, float]:
        """Time of a decoding step outside of ONNX Runtime's run, and of one more context of the same kind."""
        token = TOKENS[:1]
        self.run(token, PROMPT)
        step = self.steps[1]
        compiled = step.ctx.recording._plan._compiled
        session, compiled.session = compiled.session, Idle()
        beside = []
        for _ in range(400):
            begun = time.perf_counter()
            step.run(token, PROMPT)
            beside.append(time.perf_counter() - begun)
        compiled.session = session
        taken = []
        for history in (384, 512, 640, 896):
            begun = time.perf_counter()
            further = self.llama.step(1, history)
            traced = time.perf_counter()
            further.ctx.reserve()
            taken.append((traced - begun, time.perf_counter() - traced))
        traced, bound = (1e3 * statistics.median(times) for times in zip(*taken, strict=True))
        sessions = float(self.backend.sessions.created)
        return {
            "host": 1e6 * statistics.median(beside),
            "traced": traced,
            "bound": bound,
            "sessions": sessions,
        }


class Idle:
    """Replaces a session, so that a step takes only the time of core, the plugin and the caller."""

    def run_with_iobinding(self, *given: Any) -> None:
        pass


# -- comparing ---------------------------------------------------------------------------------------------


def compare(args: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {"dtype": args.dtype, "shape": args.shape, "threads": args.threads}
    sides = [start(name, args) for name in args.sides]
    for name, error in agreement(sides).items():
        print(f"  {name}: normalized squared error of the logits to {args.sides[0]}'s {error:.1e}")
    for what, rounds in (("prefill", max(2, args.rounds // 2)), ("decode", args.rounds)):
        if what in args.measure:
            results[what] = against(take_turns(sides, what, rounds), args.sides[0])
            print(table(f"{args.dtype}: {what}", "tokens/s", results[what]), flush=True)
    ours = [side for side in sides if side.name != LLAMA_CPP]
    if "memory" in args.measure:
        results["memory"] = {side.name: side.ask("memory")["memory"] for side in ours}
        for name, share in results["memory"].items():
            print(f"  {name}: private memory {share:.2f} of the file, caches left out")
    if "host" in args.measure:
        results["host"] = {side.name: side.ask("host") for side in ours}
        for name, told in results["host"].items():
            print(f"  {name}: {told['host']:.0f} us of a step is not ONNX Runtime's run; a further context of a known "
                  f"structure {told['bound']:.1f} ms, traced in {told['traced']:.1f} ms; {told['sessions']:.0f} sessions")  # fmt: skip
    for side in sides:
        side.close()
    return results


def start(name: str, args: argparse.Namespace) -> Side:
    given = [f"--{key}={getattr(args, key)}" for key in ("model", "shape", "dtype", "threads", "tokens")]
    return Side(name, [__file__, f"--side={name}", *given])


if __name__ == "__main__":
    main()
