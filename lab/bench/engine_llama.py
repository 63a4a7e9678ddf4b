"""The engine's generation loop compared with llama.cpp's: greedy, the same file, the same threads.

    python lab/bench/engine_llama.py --dtype q4_0 --sides llama.cpp ggml onnx

Each side uses its own libggml, or one that it names, as in `ggml@.../ggml/lib`; with
`BACKBAY_GGML_LIB=.../llama_cpp/lib` all use the same. llama.cpp runs through its C interface and its own greedy sampler,
which is faster than llama-cpp-python's classes. Parallel sequences are compared with one sequence of the same engine.
Host time is the time between two runs of the backend, with a model of 16 tiny layers and 32000 logits.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from llama_file import SHAPES, arguments, be_side_or_compare, write_model
from llama_graph import memory
from sides import Side, against, library_of, serve, table, take_turns

LLAMA_CPP = "llama.cpp"
CONTEXT = 1024
PROMPT = 512
PARALLEL = 4


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--tokens", type=int, default=32, help="generated in a round")
    parser.add_argument("--depth", type=int, default=128, help="tokens before the generated ones")
    parser.add_argument("--sides", nargs="+", help=f"{LLAMA_CPP}, and names of backends")
    parser.add_argument("--measure", nargs="+", default=["host", "decode", "prefill", "parallel", "memory"])
    args = parser.parse_args()
    args.sides = args.sides or [*([LLAMA_CPP] if importlib.util.find_spec("llama_cpp") else []), "ggml"]
    be_side_or_compare(args, be_side, compare)


def prompt(length: int, number: int = 0) -> list[int]:
    """Token ids that share no prefix with another prompt."""
    return [300 + number, *((np.arange(1, length) * 7 + number) % 1000 + 300).tolist()]


# -- the sides ---------------------------------------------------------------------------------------------


def be_side(args: argparse.Namespace) -> None:
    made: Any = LlamaCpp(args) if args.side == LLAMA_CPP else Engine(args)
    tokens = made.generate(prompt(args.depth), args.tokens)[0]

    def answer(request: str) -> dict[str, float]:
        if request == "prefill":
            return {request: PROMPT / made.first_token(prompt(PROMPT))}
        if request == "decode":
            return {request: made.generate(prompt(args.depth), args.tokens)[1]}
        if request == "parallel":
            return {request: made.generate_many(args.depth, args.tokens)}
        return {request: memory()[request]}

    serve({"tokens": tokens}, answer)


class Engine:
    """backbay_engine on a backend; the name ggml*4, for example, runs four sequences."""

    def __init__(self, args: argparse.Namespace) -> None:
        import backbay_engine

        name, _, parallel = args.side.partition("*")
        name = name.partition("@")[0]
        self.llm = backbay_engine.load(
            args.model, name, context=CONTEXT, parallel=int(parallel or 1), num_threads=args.threads
        )

    def first_token(self, ids: list[int]) -> float:
        begun = time.perf_counter()
        self.llm.generate(ids, max_tokens=1, temperature=0, reuse=False)
        return time.perf_counter() - begun

    def generate(self, ids: list[int], count: int) -> tuple[list[int], float]:
        """The tokens, and tokens per second after the first token; the prompt is cached from the last round."""
        made = self.llm.generate(ids, max_tokens=count + 1, temperature=0)
        return made.tokens, made.timings.rate

    def generate_many(self, depth: int, count: int) -> float:
        """Tokens per second of all sequences together, after the first token."""
        begun = time.perf_counter()
        handles = [
            self.llm.submit(prompt(depth, number), max_tokens=count, temperature=0)
            for number in range(PARALLEL)
        ]
        total = sum(len(handle.result().tokens) for handle in handles)
        return total / (time.perf_counter() - begun)


class LlamaCpp:
    """llama.cpp's own loop: decode, and its greedy sampler."""

    def __init__(self, args: argparse.Namespace) -> None:
        import llama_cpp as lib

        self.lib = lib
        self.quiet = lib.llama_log_callback(lambda level, message, data: None)
        lib.llama_log_set(self.quiet, None)
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(
            str(args.model).encode(), lib.llama_model_default_params()
        )
        if not self.model:
            raise SystemExit(f"llama.cpp does not load {args.model}")
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = CONTEXT, PROMPT, PROMPT
        params.n_threads = params.n_threads_batch = args.threads
        self.context = lib.llama_init_from_model(self.model, params)
        self.sampler = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        lib.llama_sampler_chain_add(self.sampler, lib.llama_sampler_init_greedy())
        self.held: list[int] = []

    def first_token(self, ids: list[int]) -> float:
        self.held = []
        begun = time.perf_counter()
        self._feed(ids)
        return time.perf_counter() - begun

    def generate(self, ids: list[int], count: int) -> tuple[list[int], float]:
        same = len(ids) - 1 if self.held[: len(ids) - 1] == ids[:-1] else 0
        self.held = self.held[:same]
        tokens = [self._feed(ids[same:])]
        begun = time.perf_counter()
        for _ in range(count):
            tokens.append(self._feed(tokens[-1:]))
        return tokens, count / (time.perf_counter() - begun)

    def _feed(self, ids: list[int]) -> int:
        """Decode these tokens; returns the next token."""
        lib = self.lib
        lib.llama_memory_seq_rm(lib.llama_get_memory(self.context), 0, len(self.held), -1)
        held = (lib.llama_token * len(ids))(*ids)  # the batch only points to it
        if lib.llama_decode(self.context, lib.llama_batch_get_one(held, len(ids))) != 0:
            raise SystemExit("llama_decode failed")
        self.held += ids
        return int(lib.llama_sampler_sample(self.sampler, self.context, -1))


# -- comparing ---------------------------------------------------------------------------------------------


def compare(args: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {"dtype": args.dtype, "shape": args.shape, "threads": args.threads}

    def tell(key: str, title: str, unit: str, answers: dict[str, list[float]], reference: str) -> None:
        results[key] = against(answers, reference)
        print(table(f"{args.dtype}: {title}", unit, results[key]), flush=True)

    if "host" in args.measure:
        results["host"] = host_time()
        print(f"host time per token outside of the backend {results['host']:>16.0f} us", flush=True)
    if {"decode", "prefill", "memory"} & set(args.measure):
        sides = [start(name, args) for name in args.sides]
        results["agreement"] = agreement(sides)
        for what, rounds in (("decode", args.rounds), ("prefill", max(2, args.rounds // 2))):
            if what in args.measure:
                tell(what, what, "tokens/s", take_turns(sides, what, rounds), args.sides[0])
        if "memory" in args.measure:
            tell("memory", "resident memory", "MiB", take_turns(sides, "VmRSS", 1), args.sides[0])
        for side in sides:
            side.close()
    if "parallel" in args.measure:
        for name in (name for name in args.sides if name != LLAMA_CPP):
            answers = parallel(name, args)
            tell(f"parallel {name}", f"{PARALLEL} at once", "tokens/s", answers, f"{name}, one")
    return results


def start(name: str, args: argparse.Namespace) -> Side:
    given = [
        f"--{key}={getattr(args, key)}" for key in ("model", "shape", "dtype", "threads", "tokens", "depth")
    ]
    return Side(name, [__file__, f"--side={name}", *given], library_of(name))


def agreement(sides: list[Side]) -> dict[str, int]:
    """How many leading tokens each side has in common with the first side."""
    base = sides[0].greeting["tokens"]
    same = {}
    for side in sides[1:]:
        pairs = zip(side.greeting["tokens"], base, strict=True)
        same[side.name] = next((n for n, (a, b) in enumerate(pairs) if a != b), len(base))
        print(
            f"  {side.name}: the first {same[side.name]} of {len(base)} tokens are those of {sides[0].name}"
        )
    return same


def parallel(name: str, args: argparse.Namespace) -> dict[str, list[float]]:
    side = start(f"{name}*{PARALLEL}", args)
    side.ask("parallel")  # warm up: prompts and graphs are cached afterwards
    answers: dict[str, list[float]] = {f"{name}, one": [], f"{name}, {PARALLEL} at once": []}
    for _ in range(args.rounds):
        for key, request in zip(answers, ("decode", "parallel"), strict=True):
            answers[key].append(side.ask(request)[request])
    side.close()
    return answers


def host_time(count: int = 200, rounds: int = 5) -> float:
    """Microseconds between the backend's runs, in the fastest round."""
    import backbay_engine

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "host.gguf"
        write_model(path, SHAPES["host"], "q8_0")
        with backbay_engine.load(path, "ggml", context=CONTEXT, num_threads=1) as llm:
            runs = watched(llm.backend)
            medians = []
            for _ in range(rounds + 1):
                runs.clear()
                llm.generate(prompt(16), max_tokens=count, temperature=0)
                gaps = [begun - ended for (_, ended), (begun, _) in pairwise(runs)]
                medians.append(statistics.median(gaps))
    return 1e6 * min(medians[1:])


def watched(backend: Any) -> list[tuple[float, float]]:
    """Record when each run of a backend begins and ends."""
    runs: list[tuple[float, float]] = []
    run = backend.run

    def watched(*args: Any) -> None:
        begun = time.perf_counter()
        run(*args)
        runs.append((begun, time.perf_counter()))

    backend.run = watched
    return runs


if __name__ == "__main__":
    main()
