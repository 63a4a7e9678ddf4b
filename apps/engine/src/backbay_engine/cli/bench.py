"""Measure how fast a model reads prompts and generates, on one or several backends."""

from __future__ import annotations

import statistics
import sys
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from backbay import BackendUnavailableError, OptionError, backends
from backbay.cli import add_json, note, say, say_json, table

from ..arguments import LARGEST
from ..llm import LLM
from ..profiles.plots import bar_chart
from .model_arguments import (
    ProgressBar,
    add_backend_arguments,
    add_image_arguments,
    add_model_arguments,
    add_number_arguments,
    add_plot_argument,
    add_worker_arguments,
    chosen_backend,
    open_model,
    trained_context,
    write_plot,
)

PROMPT, GENERATE = 512, 128  # tokens, by default
LESS = ", or what the model was trained for if that is less"


def add_arguments(parser: ArgumentParser) -> None:
    add_model_arguments(parser)
    add_backend_arguments(parser, several=True)
    add_worker_arguments(parser)
    numbers = [
        ("prompt", 0, LARGEST, f"tokens of the prompt; 0 skips this test ({PROMPT}{LESS})"),
        ("generate", 0, LARGEST, f"tokens to generate; 0 skips this test ({GENERATE}{LESS})"),
        ("rounds", 1, LARGEST, "rounds; backends take turns"),
    ]
    add_number_arguments(parser, numbers, rounds=5)
    add_image_arguments(
        parser, "a picture: also time its preparation, its encoding, and the first token after it"
    )
    add_plot_argument(parser, "draw the rates")
    add_json(parser)


@dataclass
class TokenRates:
    """Tokens per second, round by round."""

    backend: str
    tests: dict[str, list[float]] = field(default_factory=dict)

    def summary(self) -> dict[str, tuple[float, float]]:
        """Mean and deviation of each test."""
        found = {}
        for name, values in self.tests.items():
            found[name] = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
        return found


def run(args: Namespace) -> int:
    set_token_counts(args)
    with ExitStack() as stack:
        models = models_of(args, stack)
        with ProgressBar(sys.stderr, "measuring") as bar:
            for done in range(args.rounds + 1):  # the first round warms up
                for rates, llm in models:
                    measured = measure(llm, args)
                    if done:
                        for test, rate in measured.items():
                            rates.tests.setdefault(test, []).append(rate)
                bar.show((done + 1) / (args.rounds + 1))
    results = {rates.backend: rates.summary() for rates, _ in models}
    print_rates(results, args)
    return 0


def models_of(args: Namespace, stack: ExitStack) -> list[tuple[TokenRates, LLM]]:
    """The model on each backend that is asked for; with `--backend all`, on each that works."""
    every = args.backend == "all"
    names = sorted(backends()) if every else (args.backend or chosen_backend(args)).split(",")
    models = list[tuple[TokenRates, LLM]]()
    for name in names:
        try:
            models.append((TokenRates(name), stack.enter_context(open_model(args, name))))
        except BackendUnavailableError as error:
            if not every:
                raise
            note(f"left out: {error}")
    if not models:
        raise BackendUnavailableError("no installed backend works; `backbay doctor` says why")
    return models


def set_token_counts(args: Namespace) -> None:
    """Set the numbers of tokens that were not given; OptionError if there is nothing to measure, or no room for it."""
    if args.prompt is None or args.generate is None:
        most = trained_context(args.model) - 1
        args.prompt = min(PROMPT, most) if args.prompt is None else args.prompt
        args.generate = min(GENERATE, most) if args.generate is None else args.generate
    if not args.prompt and not args.generate and not args.image:
        nothing = "--prompt 0 and --generate 0 leave nothing to measure"
        raise OptionError(f"{nothing}; set one above 0, or give --image")
    if args.generate == 1:
        why = "the rate counts from the first token to the last"
        raise OptionError(f"--generate must be 0, or at least 2: {why}")
    need = max(args.prompt, args.generate) + 1
    if args.context is None and not args.image:
        args.context = need
    elif args.context is not None and args.context < need:
        raise OptionError(f"--context must be at least {need} for so many tokens, got {args.context}")


def measure(llm: LLM, args: Namespace) -> dict[str, float]:
    """One round: tokens per second of a prompt, and of generation, summed over all sequences."""
    drawn = np.random.default_rng(0).integers(0, llm.vocabulary_size, (args.parallel, args.prompt + 1))
    rates: dict[str, float] = {}
    options: dict[str, Any] = {"reuse": False, "temperature": 0}
    if args.prompt:
        begun = perf_counter()
        llm.submit(drawn[0, : args.prompt].tolist(), max_tokens=1, **options).result()
        rates[f"pp{args.prompt}"] = args.prompt / (perf_counter() - begun)
    if args.generate:
        options |= {"max_tokens": args.generate, "logit_bias": dict.fromkeys(llm.end_ids, float("-inf"))}
        handles = [llm.submit(row, **options) for row in drawn[:, :1].tolist()]
        rates[f"tg{args.generate}"] = sum(handle.result().timings.rate for handle in handles)
    for path in args.image:
        rates |= measure_picture(llm, path)
    return rates


def measure_picture(llm: LLM, path: str) -> dict[str, float]:
    """Milliseconds of a picture's preparation, of its encoding, and from then on to the first token after it."""
    name = Path(path).name
    llm.forget()  # the store too
    begun = perf_counter()
    picture = llm.prepare(path)
    prepared = perf_counter()
    llm.embed_image(picture)
    encoded = perf_counter()
    llm.submit([picture, [0]], max_tokens=1, reuse=False, temperature=0).result()
    answered = perf_counter()
    return {
        f"{name} prepared, ms": 1000 * (prepared - begun),
        f"{name} encoded, ms": 1000 * (encoded - prepared),
        f"{name} first token, ms": 1000 * (answered - encoded),
    }


def print_rates(results: dict[str, dict[str, tuple[float, float]]], args: Namespace) -> None:
    tests = list(next(iter(results.values())))
    if args.json:
        given = {name: getattr(args, name) for name in ("model", "rounds", "parallel")}
        found = dict[str, Any]()
        for name, summary in results.items():
            found[name] = {
                test: {"mean": mean, "deviation": spread} for test, (mean, spread) in summary.items()
            }
        say_json({**given, "results": found})
    else:
        rows = []
        for name, summary in results.items():
            rows.append((name, *(f"{mean:.2f} ± {spread:.2f}" for mean, spread in summary.values())))
        say(table(("tokens per second", *tests), rows, right=range(1, len(tests) + 1)))
    if args.plot:
        title = f"{Path(args.model).name}, {args.parallel} at a time"
        series = {name: [summary[test] for test in tests] for name, summary in results.items()}
        write_plot(args, bar_chart(title, "tokens per second", tests, series))
