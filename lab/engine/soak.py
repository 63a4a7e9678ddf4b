"""Soak test: many mixed requests at once must end as each does alone; memory must stay flat, the cache empty.

python lab/engine/soak.py MODEL --backend ggml --requests 2000

The memory of the process settles within the first 500 requests, in which the allocator comes to its final size.

With `--all`, tokens are guessed, beginnings are kept in a folder, answers have formats, and some of them are saved in the
middle, cancelled, restored and go on: each must still be as alone, where nothing of this happens.

With a model that sees, half of the requests have pictures, and some of these pictures are damaged; the store must keep
to its budget, and be empty at the end. Some requests have rows of their own, beside pictures and without.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from backbay import BackbayError
from backbay_engine import (
    LLM,
    Completion,
    ContextOverflowError,
    Handle,
    Image,
    ImageError,
    LogitsError,
    RequestError,
    Rows,
    Snapshot,
    load,
)
from backbay_engine.runner.speculation import StepTimes

SIZES, PICTURES, ROWS = [(20, 30), (30, 20), (9, 9)], 6, 4
SETTLES, LEAK = (
    1000,
    8.0,
)  # from so many requests on, the second half may take so many MiB more than the first
BROKEN = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAJUlEQVR4"
)  # the data of a PNG end early


KINDS = {"plain": 0.55, "shift": 0.15, "cancel": 0.15, "refused": 0.08, "failing": 0.07}
ALL_KINDS = {
    "plain": 0.2,
    "shift": 0.1,
    "cancel": 0.1,
    "refused": 0.05,
    "failing": 0.05,
    "repeats": 0.2,
    "format": 0.15,
    "moved": 0.15,
}
FORMATS = ["[ab]{3,20}", ["yes", "no", "perhaps"], {"type": "integer", "minimum": 3, "maximum": 4000}]


@dataclass
class Asked:
    """A request, and its intended end."""

    prompt: list[Any]  # ids, or parts
    options: dict[str, Any]
    kind: str
    cancel_after: int | None = None  # pieces
    alone: Any = field(default=None, repr=False)


def draw(
    rng: np.random.Generator, llm: LLM, openings: list[list[int]], kinds: Mapping[str, float] = KINDS
) -> Asked:
    """A random request; many share a prefix."""
    vocabulary, context = llm.vocabulary_size, llm.context
    length = int(rng.integers(1, context // 2))
    prompt = rng.integers(0, vocabulary, length).tolist()
    if rng.random() < 0.5:
        opening = openings[rng.integers(len(openings))]
        prompt = (opening + prompt)[: context // 2]
    options: dict[str, Any] = {"max_tokens": int(rng.integers(1, 24)), "seed": int(rng.integers(1 << 31))}
    options |= {"temperature": 0} if rng.random() < 0.5 else {"temperature": 1.0, "top_k": 20}
    kind = rng.choice(list(kinds), p=list(kinds.values()))
    if kind == "shift":
        prompt = (prompt * (context // len(prompt) + 1))[: context - int(rng.integers(1, 8))]
        options |= {
            "num_keep": int(rng.integers(0, 8)),
            "logit_bias": dict.fromkeys(llm.tokenizer.end_ids, float("-inf")),
        }
    elif kind == "repeats":
        prompt, options["stop"] = (prompt[:5] * context)[: context // 2], ["ab", "zz"]
    elif kind == "format":
        options["response_format"] = FORMATS[rng.integers(len(FORMATS))]
    elif kind == "refused":
        prompt = [[], [vocabulary], [-1], [0] * (context + 1)][rng.integers(4)]
    elif kind == "failing":
        options["logit_bias"] = dict.fromkeys(range(vocabulary), float("-inf"))
    after = int(rng.integers(0, 12)) if kind == "cancel" else None
    asked = Asked(prompt, options, str(kind), after)
    if "image" in llm.modalities and kind != "refused" and rng.random() < 0.5:
        asked = seeing(rng, asked)
    if llm.model.row_widths and kind != "refused" and rng.random() < 0.3:
        asked = with_rows(rng, asked, llm.model.row_widths[0])
    return asked


def seeing(rng: np.random.Generator, asked: Asked) -> Asked:
    """The request with one to three pictures between its tokens; some are damaged."""
    parts: list[Any] = []
    for _ in range(int(rng.integers(1, 4))):
        size, number = SIZES[rng.integers(len(SIZES))], int(rng.integers(PICTURES))
        shown = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
        parts += [asked.prompt[: int(rng.integers(1, 12))], Image(shown)]
    if rng.random() < 0.1:
        parts.append(Image(BROKEN))
        asked.kind = "broken"
    return replace(asked, prompt=[*parts, asked.prompt[-5:]])


def with_rows(rng: np.random.Generator, asked: Asked, width: int) -> Asked:
    """The request with rows in the place of some of its tokens; many requests have the same rows."""
    parts: list[Any] = [asked.prompt] if isinstance(asked.prompt[0], int) else list(asked.prompt)
    at = int(rng.choice([n for n, part in enumerate(parts) if isinstance(part, list)]))
    begin = int(rng.integers(len(parts[at])))
    ids, rest = parts[at][begin : begin + 8], parts[at][begin + 8 :]
    rows = np.random.default_rng(int(rng.integers(ROWS))).standard_normal((len(ids), width))
    return replace(asked, prompt=[*parts[:at], parts[at][:begin], Rows(rows), rest, *parts[at + 1 :]])


def outcome(
    llm: LLM, asked: Asked, handle: Handle[Completion] | None = None, counted: Counter[str] | None = None
) -> Any:
    """The outcome of a request: its tokens and finish reason, or the kind of its error; its timings are counted."""
    try:
        completion = (handle or llm.submit(asked.prompt, **asked.options)).result()
    except BackbayError as error:
        return type(error).__name__
    if counted is not None:
        timings = completion.timings
        for name in ("guessed_tokens", "accepted_tokens", "reused_tokens", "resumed_tokens"):
            counted[name] += getattr(timings, name)
    return completion.tokens, completion.finish_reason


def expected(asked: Asked, found: Any) -> bool:
    if asked.kind == "refused":
        refusals = (RequestError.__name__, ContextOverflowError.__name__)
        return found in refusals and asked.alone == found
    if asked.kind == "broken":
        cancelled = asked.cancel_after is not None and not isinstance(found, str)
        return asked.alone == ImageError.__name__ and (cancelled or found == asked.alone)
    if asked.kind == "failing":
        return found == LogitsError.__name__ and asked.alone == found
    if asked.kind == "cancel" and not isinstance(found, str):
        tokens, _ = found
        return tokens == asked.alone[0][: len(tokens)]
    return found == asked.alone


def together(
    llm: LLM, requests: list[Asked], at_once: int, counted: Counter[str]
) -> tuple[list[Any], list[float]]:
    """Run all requests, `at_once` at a time, and record the memory of the process."""
    results: list[Any] = [None] * len(requests)
    running: deque[tuple[int, Handle[Completion]]] = deque()
    sizes: list[float] = []
    for n, asked in enumerate(requests):
        while len(running) >= at_once:
            done, handle = running.popleft()
            results[done] = outcome(llm, requests[done], handle, counted)
        try:
            handle = llm.submit(asked.prompt, **asked.options)
        except BackbayError as error:
            results[n] = type(error).__name__
            continue
        if asked.cancel_after is not None:
            time.sleep(asked.cancel_after / 1000)
            handle.cancel()
        if asked.kind == "moved":
            handle = moved(llm, handle, n)
        running.append((n, handle))
        if n % 50 == 0:
            sizes.append(resident())
            progress(n, len(requests), "together")
    for done, handle in running:
        results[done] = outcome(llm, requests[done], handle, counted)
    return results, sizes


def moved(llm: LLM, handle: Handle[Completion], number: int) -> Handle[Completion]:
    """The same answer, saved after some of its tokens, cancelled, restored and going on."""
    for _ in zip(range(number % 7), handle.steps(), strict=False):
        pass
    data = bytes(llm.save(handle).to_bytes())
    handle.cancel()
    snapshot = llm.restore(Snapshot.from_bytes(data))
    return llm.submit(list(snapshot.prompt), **snapshot.options)


def alone(llm: LLM, requests: list[Asked]) -> None:
    for n, asked in enumerate(requests):
        try:
            asked.alone = outcome(llm, Asked(asked.prompt, {**asked.options, "reuse": False}, asked.kind))
        except BackbayError as error:
            asked.alone = type(error).__name__
        if n % 50 == 0:
            progress(n, len(requests), "alone")


def resident() -> float:
    """The memory of this process in MiB."""
    fields = Path("/proc/self/status").read_text().split("VmRSS:")
    return int(fields[1].split()[0]) / 1024


def leaks(sizes: list[float], requests: int) -> bool:
    """Whether the memory of the process grew all the time."""
    middle = len(sizes) // 2
    return requests >= SETTLES and max(sizes[middle:]) > max(sizes[:middle]) + LEAK


def progress(done: int, total: int, what: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{what}: {done}/{total}   ")


def opened(args: argparse.Namespace, sizes: Mapping[str, Any], folder: str) -> LLM:
    """The model on which all requests run together; many tokens are guessed, as if steps of all sizes took equally long."""
    if args.all:
        StepTimes.known, StepTimes.seconds = (lambda self, tokens: 1.0), (lambda self, tokens, base: 1.0)  # type: ignore[method-assign]
    more = {"speculate": "ngram", "cache_dir": folder, "cache_bytes": 1 << 20} if args.all else {}
    return load(args.model, args.backend, parallel=args.at_once, **sizes, **more)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--projector")
    parser.add_argument("--store-bytes", type=int, default=16384)
    parser.add_argument("--backend", default="ggml")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--context", type=int, default=96)
    parser.add_argument("--kv-dtype", default="f16")
    parser.add_argument(
        "--all", action="store_true", help="guesses, formats, snapshots and kept beginnings too"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    sizes = {"context": args.context, "batch": 64, "kv_dtype": args.kv_dtype}
    sizes |= {"projector": args.projector, "store_bytes": args.store_bytes}
    counted: Counter[str] = Counter()
    kinds = ALL_KINDS if args.all else KINDS
    with TemporaryDirectory() as folder, opened(args, sizes, folder) as llm:
        openings = [rng.integers(0, llm.vocabulary_size, 20).tolist() for _ in range(4)]
        requests = [draw(rng, llm, openings, kinds) for _ in range(args.requests)]
        with load(args.model, args.backend, parallel=1, **sizes) as single:
            alone(single, requests)
        results, grown = together(llm, requests, args.at_once, counted)
        over = llm.store.counters.bytes > args.store_bytes if "image" in llm.modalities else False
        llm.forget()
        used = llm.cache.used + (llm.store.counters.bytes if "image" in llm.modalities else 0)
    wrong = [n for n, asked in enumerate(requests) if not expected(asked, results[n])]
    middle = len(grown) // 2
    report = {
        "requests": len(requests),
        "kinds": dict(Counter(asked.kind for asked in requests)),
        "tokens": dict(counted),
        "wrong": len(wrong),
        "cells and bytes of pictures in use at the end": used,
        "MiB at the start, in the middle, at the end": [grown[0], grown[middle], grown[-1]],
    }
    print(
        json.dumps(report, indent=2)
        if args.json
        else "\n".join(f"{name}: {value}" for name, value in report.items())
    )
    for n in wrong[:5]:
        print(
            f"request {n} ({requests[n].kind}): {results[n]} where alone it gave {requests[n].alone}",
            file=sys.stderr,
        )
    return 1 if wrong or used or over or leaks(grown, len(requests)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
