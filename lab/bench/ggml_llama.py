"""A 1B Llama of random weights on the ggml backend beside llama-cpp-python on the same libggml.

    BACKBAY_GGML_LIB=.../llama_cpp/lib python lab/bench/ggml_llama.py --dtype q4_0 --json q4_0.json

Ratios are to llama.cpp; rates above 1, times and memory below 1 speak for backbay. Both include reading the last
token's logits. Without llama-cpp-python, only backbay's ways to load weights are compared: mapped, copied, auto. A
side may name a library of its own: `auto@.../ggml/lib`.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from llama_file import SHAPES, Shape, arguments, be_side_or_compare, write_model
from llama_graph import Llama, memory
from numpy.typing import NDArray
from sides import Side, against, evict, library_of, serve, table, take_turns

LLAMA_CPP = "llama.cpp"
CELLS = 1024
PROMPT = 512
SHORT = 16  # tokens of the prompt before the first token
TOKENS = np.arange(CELLS, dtype=np.int32) * 7 % 1000 + 300


def main() -> None:
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--tokens", type=int, default=16, help="decoded in a round")
    parser.add_argument(
        "--sides", nargs="+", help=f"of {LLAMA_CPP}, mapped, copied, auto, each of ours with @FOLDER"
    )
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count the processor's time: beside busy neighbours, with one thread",
    )
    parser.add_argument("--measure", nargs="+", default=["first", "decode", "prefill", "memory", "host"])
    args = parser.parse_args()
    args.sides = args.sides or default_sides()
    be_side_or_compare(args, be_side, compare)


def default_sides() -> list[str]:
    return [LLAMA_CPP, "auto"] if importlib.util.find_spec("llama_cpp") else ["mapped", "copied", "auto"]


# -- the sides ---------------------------------------------------------------------------------------------


def be_side(args: argparse.Namespace) -> None:
    made = LlamaCpp(args) if args.side == LLAMA_CPP else Backbay(args)
    clock = time.process_time if args.cpu_time else time.perf_counter
    before = clock()
    made.open()
    logits = made.run(TOKENS[:SHORT], 0)
    taken = clock() - before

    def answer(request: str) -> dict[str, float]:
        begun = clock()
        if request == "prefill":
            made.run(TOKENS[:PROMPT], 0)
            return {"prefill": PROMPT / (clock() - begun)}
        if request == "decode":
            for n in range(PROMPT, PROMPT + args.tokens):
                made.run(TOKENS[n : n + 1], n)
            return {"decode": args.tokens / (clock() - begun)}
        return {request: memory()[request]}

    serve({"first": taken, "logits": logits[:64].tolist()}, answer)


class Backbay:
    """A Llama in ops of the contract, on the ggml plugin."""

    def __init__(self, args: argparse.Namespace) -> None:
        import backbay  # before the clock starts, like llama_cpp

        self.args, self.module, self.policy = args, backbay, args.side.partition("@")[0]
        self.steps: dict[int, Any] = {}

    def open(self) -> None:
        params = self.module.BackendParams(num_threads=self.args.threads, options={"weights": self.policy})
        backend = self.module.open(self.args.model, backend="ggml", params=params)
        backend.load()
        self.llama = Llama(backend, SHAPES[self.args.shape], CELLS)

    def run(self, tokens: NDArray[np.int32], first: int) -> NDArray[np.float32]:
        count = len(tokens)
        if count not in self.steps:
            history = {1: PROMPT + 256, SHORT: 256, PROMPT: PROMPT}[count]  # as llama.cpp pads it
            self.steps[count] = self.llama.step(count, history)
        step = self.steps[count]
        logits: NDArray[np.float32] = step.run(tokens, first)
        return logits


class LlamaCpp:
    """The same model through llama.cpp's C interface."""

    def __init__(self, args: argparse.Namespace) -> None:
        import llama_cpp

        self.args, self.lib = args, llama_cpp
        self.quiet = llama_cpp.llama_log_callback(lambda level, message, data: None)
        llama_cpp.llama_log_set(self.quiet, None)
        llama_cpp.llama_backend_init()

    def open(self) -> None:
        lib = self.lib
        self.model = lib.llama_model_load_from_file(
            str(self.args.model).encode(), lib.llama_model_default_params()
        )
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = CELLS, PROMPT, PROMPT
        params.n_threads = params.n_threads_batch = self.args.threads
        self.context = lib.llama_init_from_model(self.model, params)
        self.vocab = SHAPES[self.args.shape].vocab

    def run(self, tokens: NDArray[np.int32], first: int) -> NDArray[np.float32]:
        lib, count = self.lib, len(tokens)
        lib.llama_memory_seq_rm(lib.llama_get_memory(self.context), 0, first, -1)
        held = (lib.llama_token * count)(*tokens.tolist())  # the batch only points to it
        if lib.llama_decode(self.context, lib.llama_batch_get_one(held, count)) != 0:
            raise SystemExit("llama_decode failed")
        return np.array(np.ctypeslib.as_array(lib.llama_get_logits_ith(self.context, -1), (self.vocab,)))


# -- comparing ---------------------------------------------------------------------------------------------


def compare(args: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {"dtype": args.dtype, "shape": args.shape, "threads": args.threads}
    reference = args.sides[0]

    def tell(key: str, title: str, unit: str, answers: dict[str, list[float]]) -> None:
        results[key] = against(answers, reference)
        print(table(f"{args.dtype}: {title}", unit, results[key]), flush=True)

    if "host" in args.measure:
        results["host"] = host_time()
        print(f"host time of a decoding step, 16 layers {results['host']:>16.0f} us")
    if "first" in args.measure:
        for key, cold, title in (
            ("first", False, "open to first token, file cached"),
            ("first_cold", True, "open to first token, file not cached"),
        ):
            tell(key, title, "s", first_tokens(args, cold))
    if {"decode", "prefill", "memory"} & set(args.measure):
        sides = [start(name, args) for name in args.sides]
        results["logits"] = agreement(sides)
        for name, error in results["logits"].items():
            print(f"  {name}: normalized squared error of the logits {error:.1e}")
        if "prefill" not in args.measure:
            take_turns(sides, "prefill", 1)  # decode steps attend to the prompt
        for what, rounds in (("prefill", max(2, args.rounds // 2)), ("decode", args.rounds)):
            if what in args.measure:
                tell(what, what, "tokens/s", take_turns(sides, what, rounds))
        if "memory" in args.measure:
            tell("memory", "resident memory", "MiB", take_turns(sides, "VmRSS", 1))
            tell("peak", "largest resident memory", "MiB", take_turns(sides, "VmHWM", 1))
        for side in sides:
            side.close()
    return results


def start(name: str, args: argparse.Namespace) -> Side:
    given = [f"--{key}={getattr(args, key)}" for key in ("model", "shape", "dtype", "threads", "tokens")]
    given += ["--cpu-time"] if args.cpu_time else []
    return Side(name, [__file__, f"--side={name}", *given], library_of(name))


def first_tokens(args: argparse.Namespace, cold: bool) -> dict[str, list[float]]:
    """Seconds from opening a model to its first logits, in fresh processes."""
    found: dict[str, list[float]] = {name: [] for name in args.sides}
    for _ in range(max(2, args.rounds // 2)):
        for name in args.sides:
            if cold:
                evict(args.model)
            side = start(name, args)
            found[name].append(side.greeting["first"])
            side.close()
    return found


def agreement(sides: list[Side]) -> dict[str, float]:
    """The error of each side's logits against the first side's."""
    base = np.array(sides[0].greeting["logits"])
    return {
        side.name: float(((np.array(side.greeting["logits"]) - base) ** 2).sum() / (base**2).sum())
        for side in sides[1:]
    }


def host_time() -> float:
    """Microseconds of a decoding step outside of ggml's run of the graph."""
    import backbay

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "host.gguf"
        write_model(path, SHAPES["host"], "q8_0")
        with backbay.open(path, backend="ggml", params=backbay.BackendParams(num_threads=1)) as backend:
            backend.load()
            return _host_time(backend, SHAPES["host"])


def _host_time(backend: Any, shape: Shape) -> float:
    step = Llama(backend, shape, CELLS).step(1, 256)
    step.run([3], 5)
    plan = step.ctx.recording._plan
    beside = []
    for _ in range(1000):
        begun = time.perf_counter()
        step.ids.from_ints([3])
        step.positions.from_ints([5])
        step.cells.from_ints([5])
        step.ctx.compute(step.logits)
        middle = time.perf_counter()
        plan._lib.ggml_graph_compute(plan.graph, plan._cplan)
        beside.append(2 * middle - begun - time.perf_counter())
    return 1e6 * statistics.median(beside)


if __name__ == "__main__":
    main()
