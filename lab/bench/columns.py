"""Steps of several sequences, and prompts, on the ggml or onnx backend: with native code, without it, and llama.cpp.

    python lab/bench/columns.py --dtype q4_0 --counts 1 2 4 8 16 32 --sides native ggml llama.cpp
    python lab/bench/columns.py --backend onnx --sides native onnx llama.cpp
    python lab/bench/columns.py --backend ggml --sides native --gpu-layers 0

Each side runs in a process of its own, and they take turns. A count's rate is that of all its sequences together: their
number, divided by the median time of a step. llama.cpp has one cache for all sequences, as its server has by default.
Opening is the time until the first token of a short prompt, in a process that has imported everything.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import statistics
import time
from itertools import pairwise
from typing import Any

from engine_llama import LLAMA_CPP, PROMPT, prompt, watched
from llama_cpp_context import LlamaCppContext
from llama_file import arguments, be_side_or_compare
from sides import Side, against, serve, table, take_turns

NATIVE, BACKENDS = "native", ("ggml", "onnx")
OFF = {"BACKBAY_GGML_NATIVE": "0", "BACKBAY_ONNX_NATIVE": "0"}
SHORT = 8  # tokens of the prompt at opening
OTHERS = 8  # steps before those that are timed, and after them, in which some sequences may be missing
PREFILL = "prompt"


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--counts", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32], help="of sequences")
    parser.add_argument("--tokens", type=int, default=16, help="steps that are timed in a round")
    parser.add_argument("--depth", type=int, default=64, help="tokens before the generated ones")
    parser.add_argument(
        "--prompt", type=int, default=PROMPT, help="tokens of the prompt; 0: none is measured"
    )
    parser.add_argument(
        "--sides", nargs="+", help=f"{NATIVE}, {', '.join(BACKENDS)} (without native code), {LLAMA_CPP}"
    )
    parser.add_argument("--backend", choices=BACKENDS, default="ggml")
    parser.add_argument(
        "--gpu-layers", type=int, default=-1, help="layers of a backend on GPUs; by default all that fit"
    )
    parser.add_argument("--option", action="append", default=[], help="of the backend, as NAME=VALUE")
    args = parser.parse_args()
    llama = [LLAMA_CPP] if importlib.util.find_spec("llama_cpp") else []
    args.sides = args.sides or [NATIVE, args.backend, *llama]
    be_side_or_compare(args, be_side, compare)


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Rates of all sides by count, and of each side relative to its own for one sequence."""
    sides = [start(name, args) for name in args.sides]
    results: dict[str, Any] = {"dtype": args.dtype, "shape": args.shape, "threads": args.threads}
    results["opening"] = {side.name: side.greeting["opening"] for side in sides}
    print("opening: " + ", ".join(f"{name} {taken:.1f} s" for name, taken in results["opening"].items()))
    requests = [*([PREFILL] if args.prompt else []), *map(str, args.counts)]
    for request in requests:
        title = (
            f"{args.dtype}: prompt of {args.prompt}"
            if request == PREFILL
            else f"{args.dtype}: {request} at once"
        )
        results[request] = against(take_turns(sides, request, args.rounds), args.sides[-1])
        print(table(title, "tokens/s", results[request]), flush=True)
    one = results.get("1")
    for name in args.sides if one else ():
        ratios = {n: results[str(n)][name]["median"] / one[name]["median"] for n in args.counts}
        print(f"{name}, relative to one sequence: " + ", ".join(f"{n}: {r:.2f}" for n, r in ratios.items()))
    for side in sides:
        side.close()
    return results


def start(name: str, args: argparse.Namespace) -> Side:
    keys = ("model", "shape", "dtype", "threads", "tokens", "depth", "prompt", "backend", "gpu_layers")
    given = [f"--{key.replace('_', '-')}={getattr(args, key)}" for key in keys]
    given += [f"--option={each}" for each in args.option]
    counts = ["--counts", *map(str, args.counts)]
    return Side(name, [__file__, f"--side={name}", *given, *counts], OFF if name in BACKENDS else {})


def be_side(args: argparse.Namespace) -> None:
    """Answer with tokens per second of a prompt, or of a number of sequences."""
    kind = LlamaCpp if args.side == LLAMA_CPP else Engine
    importlib.import_module(kind.MODULE)
    begun = time.perf_counter()
    made: Any = kind(args)
    made.first_token(SHORT)
    opening = time.perf_counter() - begun

    def answer(request: str) -> dict[str, float]:
        if request == PREFILL:
            return {request: args.prompt / made.first_token(args.prompt)}
        return {request: made.rate(int(request))}

    for request in ([PREFILL] if args.prompt else []) + [str(n) for n in args.counts]:
        answer(request)  # prompts and graphs are kept
    serve({"opening": opening}, answer)


class Engine:
    """backbay_engine on a backend."""

    MODULE = "backbay_engine.api"  # `backbay_engine` itself imports it when it is used

    def __init__(self, args: argparse.Namespace) -> None:
        import backbay_engine
        from backbay import BackendParams

        self.args, self.number = args, 0
        context = max(args.prompt, args.depth + args.tokens + 2 * OTHERS) + 16
        self.llm = backbay_engine.load(
            args.model,
            args.backend,
            context=context,
            parallel=max(args.counts, default=1),
            num_threads=args.threads,
            num_gpu_layers=args.gpu_layers,
            params=BackendParams(options=dict(each.split("=", 1) for each in args.option)),
        )
        self.runs = watched(self.llm.backend)
        self.endless = dict.fromkeys(self.llm.end_ids, float("-inf"))  # no answer may end early

    def first_token(self, length: int) -> float:
        self.number += 1
        begun = time.perf_counter()
        self.llm.generate(prompt(length, self.number), max_tokens=1, temperature=0, reuse=False)
        return time.perf_counter() - begun

    def rate(self, count: int) -> float:
        self.runs.clear()
        handles = [
            self.llm.submit(
                prompt(self.args.depth, number),
                max_tokens=self.args.tokens + 2 * OTHERS,
                temperature=0,
                logit_bias=self.endless,
            )
            for number in range(count)
        ]
        for handle in handles:
            handle.result()
        middle = self.runs[-self.args.tokens - OTHERS : -OTHERS]  # of these steps, all sequences are part
        return count / statistics.median(later - begun for (begun, _), (later, _) in pairwise(middle))


class LlamaCpp:
    """llama.cpp: prompts of all sequences, then steps of one token each."""

    MODULE = "llama_cpp"

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, most = args, max(args.counts, default=1)
        cells = max(most * (args.depth + args.tokens + 8), args.prompt + 8)
        self.context = LlamaCppContext(
            args.model, cells=cells, batch=max(PROMPT, args.prompt), sequences=most, threads=args.threads
        )
        self.held = 0  # prompts in the cache

    def first_token(self, length: int) -> float:
        self.context.clear()
        self.held = 0
        begun = time.perf_counter()
        self.context.read(prompt(length))
        return time.perf_counter() - begun

    def rate(self, count: int) -> float:
        """The rate of steps after the prompts, which stay in the cache."""
        if not self.held:
            self.context.clear()
        for number in range(self.held):
            self.context.remove(number, 0 if number >= count else self.args.depth)
        for number in range(min(self.held, count), count):
            self.context.read(prompt(self.args.depth, number), number)
        self.held = count
        tokens, times = [300] * count, [time.perf_counter()]
        for n in range(self.args.tokens):
            tokens = self.context.step(tokens, self.args.depth + n)
            times.append(time.perf_counter())
        return count / statistics.median(later - begun for begun, later in pairwise(times))


if __name__ == "__main__":
    main()
