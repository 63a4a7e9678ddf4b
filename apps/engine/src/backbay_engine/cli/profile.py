"""Show where the time of a model's steps goes: by op, by layer and by device, beside what this machine needs at least."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backbay import OptionError
from backbay.cli import add_json, say, say_json, table
from backbay.internals import usable_cores

from ..arguments import LARGEST
from ..profiles import PeakRates, ProfileLine, ProfilePhase, Workload, measure_peak_rates, measure_phases
from ..profiles.plots import lane_chart
from .model_arguments import (
    add_backend_arguments,
    add_model_arguments,
    add_number_arguments,
    add_plot_argument,
    chosen_backend,
    open_model,
    write_plot,
)

TABLES = ("ops", "layers", "devices")


def add_arguments(parser: ArgumentParser) -> None:
    add_model_arguments(parser)
    add_backend_arguments(parser)
    numbers = [
        ("prompt", 0, LARGEST, "tokens of the prompt; 0: none is read"),
        ("depth", 1, LARGEST, "tokens before the steps"),
        ("steps", 0, LARGEST, "steps that are profiled, of all --parallel sequences; 0: none"),
    ]
    add_number_arguments(parser, numbers, prompt=512, depth=64, steps=16)
    add_plot_argument(parser, "draw the times")
    add_json(parser)


def run(args: Namespace) -> int:
    load = Workload(args.prompt, args.depth, args.parallel, args.steps)
    if not (load.prompt or load.steps):
        raise OptionError("--prompt 0 and --steps 0 leave nothing to profile; set one above 0")
    if args.context is None:
        args.context = load.context
    elif args.context < load.context:
        raise OptionError(f"--context must be at least {load.context} for so many tokens, got {args.context}")
    name = chosen_backend(args)
    with open_model(args, name) as llm:
        phases, walls = measure_phases(llm, load, measure_peak_rates(args.threads or usable_cores()))
    print_phases(name, phases, walls, args)
    return 0


def print_phases(backend: str, phases: Sequence[ProfilePhase], walls: PeakRates, args: Namespace) -> None:
    if args.json:
        rates = {"bytes_per_second": walls.reading, "products_per_second": walls.multiplying}
        facts = {"model": args.model, "backend": backend, "walls": rates}
        say_json({**facts, "phases": [as_dict(phase) for phase in phases]})
    else:
        say(
            f"{backend}; this machine reads {walls.reading / 1e9:.1f} GB/s and makes "
            f"{walls.multiplying / 1e9:.0f} billion products a second"
        )
        for phase in phases:
            print_phase(phase)
        say(
            "\nof the wall: the least time on this machine, of the time taken; above 100 %, data lay in the processor's caches"
        )
    if args.plot:
        groups = {
            f"{phase.name}: {title}": [(name, 1e3 * line.seconds) for name, line in sorted_lines(lines)]
            for phase in phases
            for title in TABLES
            if (lines := getattr(phase, title))
        }
        write_plot(args, lane_chart(f"{Path(args.model).name} on {backend}", "ms", groups))


def as_dict(phase: ProfilePhase) -> dict[str, Any]:
    """A phase as JSON; times in seconds, of one step."""
    lines = {
        title: {name: {**vars(line), "wall_share": line.wall_share} for name, line in found.items()}
        for title in TABLES
        if (found := getattr(phase, title))
    }
    numbers = {key: getattr(phase, key) for key in ("steps", "usual", "step", "backend", "told")}
    return {"name": phase.name, "tells_ops": phase.tells_ops, **numbers, **lines}


def print_phase(phase: ProfilePhase) -> None:
    """The tables of a phase, and the sum of the parts."""
    say()
    say(
        f"{phase.name}: {1e3 * phase.step:.2f} ms, {1e3 * phase.usual:.2f} ms without a profile "
        f"({phase.steps} measured)"
    )
    if phase.tells_ops:
        say(
            f"  its ops add up to {1e3 * phase.told:.2f} ms, {phase.told / phase.step:.0%}; the backend ran for "
            f"{1e3 * phase.backend:.2f} ms, {phase.backend / phase.step:.0%}"
        )
    else:
        say("  this backend tells the times of whole runs only")
    for title in TABLES:
        say()
        say(_table(title, getattr(phase, title), phase.step))


def sorted_lines(lines: Mapping[str, ProfileLine]) -> list[tuple[str, ProfileLine]]:
    """Lines of layers in their order; others by their time, the longest first."""
    if any(name.isdecimal() for name in lines):
        place = {"input": -1, "no layer": -2}
        return sorted(lines.items(), key=lambda each: (place.get(each[0], 1 << 20), _number(each[0])))
    return sorted(lines.items(), key=lambda each: -each[1].seconds)


def _number(name: str) -> int:
    return int(name) if name.isdecimal() else 1 << 20


def _table(title: str, lines: Mapping[str, ProfileLine], step: float) -> str:
    rows = [
        (
            name,
            f"{line.calls:.0f}",
            f"{1e3 * line.seconds:.3f}",
            f"{line.seconds / step:.1%}",
            f"{line.nbytes / 1e6:.2f}",
            f"{line.products / 1e6:.1f}",
            "-" if line.wall_share is None else f"{line.wall_share:.0%}",
        )
        for name, line in sorted_lines(lines)
    ]
    titles = (title, "calls", "ms", "of the step", "MB", "million products", "of the wall")
    return table(titles, rows, right=range(1, 7))
