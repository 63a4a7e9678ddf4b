"""The page of the comparison: the errors of llama.cpp and of each backend by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version

LLAMA_CPP = "llama.cpp"
NONE = "-"
REASONS = {
    "gemma3n": "it does not load the file: its widths of gemma3n are constants",
    "deepseek2-lite": "it does not load the file: it knows models without q_lora_rank by their number of blocks",
    "erniemoe": "it does not load the file: it expects shared experts of another width",
    "llama4": "its chunks and the steps of its temperature are constants, 8192; with these it agrees (6e-13)",
    "nemotronh": "it ends with GGML_ASSERT(hparams.n_expert_groups == 0), in a model without experts",
    "rwkv7": "heads of 16: ggml's rwkv_wkv7 reads past heads that are no multiple of 64 elements (AVX-512)",
    "t5": "the tied head: transformers divides the decoder's output by the root of the width, llama.cpp does not",
}
"""Where llama.cpp's result differs from that of transformers, and why."""
INTRODUCTION = """# Kinds of models, beside transformers and llama.cpp

Each kind is a small random model of transformers, as llama.cpp's converter writes it in f32. The numbers are mean square
errors over the mean square of the results of transformers. Backends run long prompts, prompts in pieces, parallel
sequences and reused prefixes, and the largest error of all counts; llama.cpp computes each sequence in one step. All have
f32 caches. A number over the limit, {limits}, is bold; `-` stands for a result that did not come.

Made on {day} by `python engine/tools/compare_kinds --llama --page docs/kinds.md`, with
{versions}.
"""
VERSIONS = ("llama-cpp-python", "transformers", "torch", "backbay", "ggml-python", "onnxruntime")

Found = Mapping[str, Mapping[str, Mapping[str, float] | str]]
"""By kind and side: the errors by script, or what went wrong."""


def cell(error: float, limit: float) -> str:
    return f"{error:.1e}" if error < limit else f"**{error:.1e}**"


def page(found: Found, limits: Mapping[str, float], backends: Sequence[str]) -> str:
    """The page in Markdown."""
    versions = ", ".join(f"{name} {version(name)}" for name in VERSIONS)
    most = max(limits.values())
    text = (
        f"{min(limits.values()):.0e}, or {most:.0e} for recurrent kinds"
        if len({*limits.values()}) > 1
        else f"{most:.0e}"
    )
    sides = [LLAMA_CPP, *backends]
    lines = [
        INTRODUCTION.format(
            day=datetime.now(UTC).date(), versions=versions, limits=text.replace("e-0", "e-")
        ),
        f"| kind | {' | '.join(sides)} | where llama.cpp differs |",
        "|---" * (len(sides) + 2) + "|",
    ]
    for name, errors in found.items():
        cells = [_worst(errors.get(side, "not run"), limits[name]) for side in sides]
        why = REASONS.get(name, "not known") if cells[0] == NONE or "**" in cells[0] else ""
        lines.append(f"| `{name}` | {' | '.join(cells)} | {why} |")
    return "\n".join(lines) + "\n"


def _worst(errors: Mapping[str, float] | str, limit: float) -> str:
    return NONE if isinstance(errors, str) else cell(max(errors.values()), limit)
