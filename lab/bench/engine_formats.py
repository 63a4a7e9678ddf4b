"""Answers with a format, and with none: the time from one step to the next, in turns, on the same model.

    python lab/bench/engine_formats.py --shape one_b_128k --sides ggml

The share of a format is what a step takes longer with it. The first answer of a format, which compiles the vocabulary,
is told apart.
"""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import pairwise
from typing import Any

import numpy as np
from llama_file import arguments, be_side_or_compare
from sides import Side, library_of, serve

CONTEXT, PROMPT = 1024, 128
FORMATS: dict[str, Any] = {
    "JSON schema": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}},
            "age": {"type": "integer"},
        },
        "required": ["name", "tags", "age"],
    },
    "regular expression": "[a-z ]{400,}",
    "any JSON": {"type": "object"},
}


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--tokens", type=int, default=48, help="of each answer")
    parser.add_argument("--sides", nargs="+", default=["ggml"], help="names of backends")
    be_side_or_compare(parser.parse_args(), be_side, compare)


def be_side(args: argparse.Namespace) -> None:
    import backbay_engine

    name = args.side.partition("@")[0]
    llm = backbay_engine.load(args.model, name, context=CONTEXT, num_threads=args.threads)
    ids = [300, *((np.arange(1, PROMPT) * 7) % 1000 + 300).tolist()]
    begins: list[float] = []
    run = llm.step_cache.run

    def watched(*given: Any) -> Any:
        begins.append(time.perf_counter())
        return run(*given)

    llm.step_cache.run = watched  # type: ignore[method-assign,assignment]

    def answer(request: str) -> dict[str, Any]:
        wanted = FORMATS.get(request)
        begins.clear()
        begun = time.perf_counter()
        llm.generate(ids, max_tokens=args.tokens, seed=1, response_format=wanted)
        periods = [after - before for before, after in pairwise(begins)][2:]
        return {"period": statistics.median(periods), "first": begins[0] - begun, "steps": len(periods)}

    serve({}, answer)


def compare(args: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {"dtype": args.dtype, "shape": args.shape, "threads": args.threads}
    given = [f"--{key}={getattr(args, key)}" for key in ("model", "shape", "dtype", "threads", "tokens")]
    for name in args.sides:
        side = Side(name, [__file__, f"--side={name}", *given], library_of(name))
        side.ask("none")
        for title in FORMATS:
            first = side.ask(title)["first"]
            pairs = [(side.ask("none")["period"], side.ask(title)) for _ in range(args.rounds)]
            plain = statistics.median(each for each, _ in pairs)
            shaped = statistics.median(each["period"] for _, each in pairs)
            share = statistics.median(1 - each / one["period"] for each, one in pairs)
            results[f"{name}: {title}"] = {"plain": plain, "format": shaped, "share": share, "first": first}
            print(
                f"{name}: {title:20} {1e3 * plain:6.2f} ms a step without, {1e3 * shaped:6.2f} ms with: "
                f"{share:6.1%} of a step; {pairs[-1][1]['steps']} steps; the first began after {first:.2f} s",
                flush=True,
            )
        side.close()
    return results


if __name__ == "__main__":
    main()
