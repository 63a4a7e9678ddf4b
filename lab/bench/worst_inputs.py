"""Writes the table of the worst inputs in README.md from the reports of hunts, one for each library.

backbay conform ggml --hunt 100s --profile core --json ggml.json
python lab/bench/worst_inputs.py ggml=ggml.json "ONNX Runtime=onnx.json" PyTorch=torch.json NumPy=numpy.json
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("README.md")
TABLE = re.compile(r"(lab/bench/worst_inputs.py -->\n).*?(<!-- end -->)", re.DOTALL)
OPS = (
    "exp",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "silu",
    "gelu_erf",
    "softplus",
    "sqrt",
    "div",
    "softmax",
    "rms_norm",
)
SHORT = 30
"""Characters of operands that a table has room for."""


def main() -> None:
    columns = dict(word.split("=") for word in sys.argv[1:])
    found = [worst_elements(json.loads(Path(file).read_text())) for file in columns.values()]
    rows = [
        ["op", *columns],
        ["---"] * (1 + len(columns)),
        *([f"`{op}`", *(cell(library[op]) for library in found)] for op in OPS),
    ]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    PAGE.write_text(TABLE.sub(lambda text: text[1] + table + text[2], PAGE.read_text()))


def worst_elements(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The elements with the most last places in f32, by op."""
    return {
        cell["name"]: cell["extremes"]["last_places"] for cell in report["cells"] if cell["dtype"] == "f32"
    }


def cell(worst: dict[str, Any]) -> str:
    """The last places, or all where the result is 0, and the operands."""
    operands, result = re.fullmatch(r"\w+\((.*)\) = (\S+)", worst["element"]).groups()
    told = "all" if float(result) == 0 else f"{worst['last_places']:.3g}"
    return f"{told}: `{operands}`" if len(operands) <= SHORT else told


if __name__ == "__main__":
    main()
