"""Steps of several sequences, and prompts, on the ggml backend: with native code, without it, and llama.cpp.

    python bench/columns.py --dtype q4_0 --counts 1 2 4 8 16 32 --sides native ggml llama.cpp

Each side runs in a process of its own, and they take turns. A count's rate is that of all its sequences together: their
number, divided by the median time of a step. llama.cpp runs through its C interface, with one cache for all sequences, as its server has by default.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import statistics
import time
from itertools import pairwise
from typing import Any

import numpy as np
from engine_llama import LLAMA_CPP, PROMPT, prompt, watched
from llama_file import arguments, be_side_or_compare
from sides import Side, against, serve, table, take_turns

NATIVE, GGML = "native", "ggml"
OFF = {"BACKBAY_GGML_NATIVE": "0"}
PREFILL = "prompt"


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32], help="of sequences")
    parser.add_argument("--tokens", type=int, default=16, help="steps that are timed in a round")
    parser.add_argument("--depth", type=int, default=64, help="tokens before the generated ones")
    parser.add_argument(
        "--prompt", type=int, default=PROMPT, help="tokens of the prompt; 0: none is measured"
    )
    parser.add_argument("--sides", nargs="+", help=f"{NATIVE}, {GGML} (without native code), {LLAMA_CPP}")
    args = parser.parse_args()
    llama = [LLAMA_CPP] if importlib.util.find_spec("llama_cpp") else []
    args.sides = args.sides or [NATIVE, GGML, *llama]
    be_side_or_compare(args, be_side, compare)


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Rates of all sides by count, and of each side relative to its own for one sequence."""
    sides = [start(name, args) for name in args.sides]
    results: dict[str, Any] = {"dtype": args.dtype, "shape": args.shape, "threads": args.threads}
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
    keys = ("model", "shape", "dtype", "threads", "tokens", "depth", "prompt")
    given = [f"--{key}={getattr(args, key)}" for key in keys]
    counts = ["--counts", *map(str, args.counts)]
    return Side(name, [__file__, f"--side={name}", *given, *counts], OFF if name == GGML else {})


def be_side(args: argparse.Namespace) -> None:
    """Answer with tokens per second of a prompt, or of a number of sequences."""
    made: Any = LlamaCpp(args) if args.side == LLAMA_CPP else Engine(args)

    def answer(request: str) -> dict[str, float]:
        if request == PREFILL:
            return {request: args.prompt / made.first_token(args.prompt)}
        return {request: made.rate(int(request))}

    for request in ([PREFILL] if args.prompt else []) + [str(n) for n in args.counts]:
        answer(request)  # prompts and graphs are kept
    serve({}, answer)


class Engine:
    """backbay_engine on the ggml backend."""

    def __init__(self, args: argparse.Namespace) -> None:
        import backbay_engine

        self.args, self.number = args, 0
        context = max(args.prompt, args.depth + 2 * args.tokens) + 16
        self.llm = backbay_engine.load(
            args.model, "ggml", context=context, parallel=max(args.counts), num_threads=args.threads
        )
        self.runs = watched(self.llm.backend)

    def first_token(self, length: int) -> float:
        self.number += 1
        begun = time.perf_counter()
        self.llm.generate(prompt(length, self.number), max_tokens=1, temperature=0, reuse=False)
        return time.perf_counter() - begun

    def rate(self, count: int) -> float:
        self.runs.clear()
        handles = [
            self.llm.submit(prompt(self.args.depth, number), max_tokens=2 * self.args.tokens, temperature=0)
            for number in range(count)
        ]
        for handle in handles:
            handle.result()
        middle = self.runs[-self.args.tokens - 8 : -8]  # of these steps, all sequences are part
        return count / statistics.median(later - begun for (begun, _), (later, _) in pairwise(middle))


class LlamaCpp:
    """llama.cpp: prompts of all sequences, then steps of one token each, chosen greedily."""

    def __init__(self, args: argparse.Namespace) -> None:
        import llama_cpp as lib

        self.lib, self.args = lib, args
        self.quiet = lib.llama_log_callback(lambda level, message, data: None)
        lib.llama_log_set(self.quiet, None)
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(
            str(args.model).encode(), lib.llama_model_default_params()
        )
        params = lib.llama_context_default_params()
        most = max(args.counts)
        params.n_ctx = max(most * (args.depth + args.tokens + 8), args.prompt + 8)
        params.n_batch = params.n_ubatch = max(PROMPT, args.prompt)
        params.n_seq_max, params.kv_unified = most, True
        params.n_threads = params.n_threads_batch = args.threads
        self.context = lib.llama_init_from_model(self.model, params)
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        self.held = 0  # prompts in the cache

    def first_token(self, length: int) -> float:
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)
        self.held = 0
        begun = time.perf_counter()
        self._decode([(token, n, 0) for n, token in enumerate(prompt(length))], last=True)
        self._chosen(-1)
        return time.perf_counter() - begun

    def rate(self, count: int) -> float:
        """The rate of steps after the prompts, which stay in the cache."""
        memory = self.lib.llama_get_memory(self.context)
        if not self.held:
            self.lib.llama_memory_clear(memory, True)
        for number in range(self.held):
            self.lib.llama_memory_seq_rm(memory, number, 0 if number >= count else self.args.depth, -1)
        for number in range(min(self.held, count), count):
            ids = prompt(self.args.depth, number)
            self._decode([(token, n, number) for n, token in enumerate(ids)], last=True)
        self.held = count
        tokens, times = [300] * count, [time.perf_counter()]
        for n in range(self.args.tokens):
            self._decode([(token, self.args.depth + n, number) for number, token in enumerate(tokens)])
            tokens = [self._chosen(number) for number in range(count)]
            times.append(time.perf_counter())
        return count / statistics.median(later - begun for begun, later in pairwise(times))

    def _decode(self, items: list[tuple[int, int, int]], *, last: bool = False) -> None:
        """Tokens with their positions and sequences; logits of all, or of the last one."""
        batch = self.lib.llama_batch_init(len(items), 0, 1)
        batch.n_tokens = len(items)
        for n, (token, position, sequence) in enumerate(items):
            batch.token[n], batch.pos[n], batch.n_seq_id[n] = token, position, 1
            batch.seq_id[n][0] = sequence
            batch.logits[n] = not last or n == len(items) - 1
        if self.lib.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama_decode failed")
        self.lib.llama_batch_free(batch)

    def _chosen(self, index: int) -> int:
        logits = self.lib.llama_get_logits_ith(self.context, index)
        held = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float * self.vocab)).contents
        return int(np.frombuffer(held, np.float32).argmax())


if __name__ == "__main__":
    main()
