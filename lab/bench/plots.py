"""Draws docs/columns.svg and docs/depth.svg from what columns.py and depth.py measured. `make plots` measures and draws.
What was not measured is not drawn.

python lab/bench/plots.py [--columns FILE] [--depth FILE] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from backbay_engine.profiles.plots import line_chart

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "lab" / "bench" / "measured"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--columns", type=Path, default=MEASURED / "columns.json")
    parser.add_argument("--depth", type=Path, default=MEASURED / "depth.json")
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    args = parser.parse_args()
    for name, draw in (("columns", columns), ("depth", depth)):
        measured: Path = getattr(args, name)
        if measured.exists():
            picture = draw(json.loads(measured.read_text(encoding="utf-8")))
            (args.out / f"{name}.svg").write_text(picture, encoding="utf-8")


def columns(found: dict[str, Any]) -> str:
    """Tokens per second of all sequences over their number, a line for each side."""
    counts = sorted(int(key) for key in found if key.isdecimal())
    series = {side: [found[str(count)][side]["median"] for count in counts] for side in found[str(counts[0])]}
    title = f"tokens per second, {found['shape']} in {found['dtype']}, {found['threads']} threads"
    return line_chart(title, "sequences at once", counts, series, even=True)


def depth(found: dict[str, Any]) -> str:
    """Milliseconds of a step over the tokens before it, a line for each side and number of sequences."""
    series: dict[str, list[float]] = {}
    depths: list[int] = []
    for count in sorted(int(key) for key in found if key.isdecimal()):
        by_depth = found[str(count)]
        depths = sorted(map(int, by_depth))
        for side in by_depth[str(depths[0])]:
            series[f"{side}, {count} at once"] = [by_depth[str(each)][side]["median"] for each in depths]
    title = f"milliseconds of a step, cache in {found['cache']}, {found['threads']} threads"
    return line_chart(title, "tokens of depth", depths, series)


if __name__ == "__main__":
    main()
