"""Finds the ops that each architecture uses, by tracing the stored models of the tests.

python lab/engine/op_users.py            write apps/engine/src/backbay_engine/models/op_users.py
python lab/engine/op_users.py --check    exit with status 1 if the file differs
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from typing import Any

ROOT = Path(__file__).resolve().parents[2] / "apps" / "engine"
sys.path[:0] = [str(ROOT / "tests" / "inputs")]

from model_files import KIND_NAMES, NAMES, stored, unpacked  # noqa: E402

import backbay  # noqa: E402
from backbay import OPS, Backend, Tensor  # noqa: E402
from backbay_engine.cache import CacheSizes  # noqa: E402
from backbay_engine.models import Model, load_model  # noqa: E402
from backbay_engine.models.batch import Batch  # noqa: E402
from backbay_engine.steps.step import largest_steps  # noqa: E402

TARGET = ROOT / "src" / "backbay_engine" / "models" / "op_users.py"
BATCH, PARALLEL, CONTEXT = 128, 4, 256
LINE, WIDTH = 110, 96
HEADER = '''"""The architectures of this package that use each op; made by lab/engine/op_users.py, which traces them."""

from __future__ import annotations

from typing import Final

_ALL = (
{}
)
_NAMES = {{
'''
FOOTER = """}


def _users(names: str) -> tuple[str, ...]:
    first, *others = names.split()
    return tuple(name for name in _ALL.split() if name not in others) if first == "all" else (first, *others)


OP_USERS: Final = {op: _users(names) for op, names in _NAMES.items()}
"""


def users() -> dict[str, list[str]]:
    """The architectures by op."""
    found: dict[str, set[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for path in [*map(stored, NAMES), *(unpacked(name, Path(folder)) for name in KIND_NAMES)]:
            with backbay.open(path, backend="cpu_ref") as backend:
                architecture = backend.config.architecture
                for op in ops_of(backend, load_model(backend, CONTEXT)):
                    found.setdefault(op, set()).add(architecture)
    return {op: sorted(found[op]) for op in OPS if op in found}


def ops_of(backend: Backend, model: Model) -> set[str]:
    """The ops that a model traces for a prompt, and for a token of each sequence."""
    cache = model.new_cache()
    if cache is not None:
        cache.open(backend, CacheSizes(PARALLEL, CONTEXT, BATCH, backbay.DType.F32))
    uniform = cache is not None and cache.is_uniform
    with recorded() as asked:
        steps = largest_steps(BATCH, PARALLEL, CONTEXT, decoding=cache is not None, uniform=uniform)
        for step in model.worst_steps(steps):
            with backend.new_context() as ctx:
                bound = None if cache is None else cache.bind(ctx.input(), cache.worst(step))
                model.forward(ctx, Batch(ctx, step, bound))
    if cache is not None:
        cache.close()
    return asked


@contextmanager
def recorded() -> Iterator[set[str]]:
    """The names of the ops whose methods are called meanwhile."""
    asked: set[str] = set()

    def recording(name: str, method: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            asked.add(name)
            return method(*args, **options)

        return call

    plain = {name: vars(Tensor)[name] for name in OPS}
    for name, method in plain.items():
        setattr(Tensor, name, recording(name, method))
    try:
        yield asked
    finally:
        for name, method in plain.items():
            setattr(Tensor, name, method)


def text(found: dict[str, list[str]]) -> str:
    """The module, as the formatter would write it."""
    every = sorted({name for names in found.values() for name in names})
    made = []
    for op, names in found.items():
        others = [name for name in every if name not in names]
        joined = min(" ".join(names), " ".join(["all but", *others] if others else ["all"]), key=len)
        line = f'    "{op}": "{joined}",\n'
        if len(line) > LINE:
            line = f'    "{op}": (\n{wrapped(joined, " " * 8)}\n    ),\n'
        made.append(line)
    return HEADER.format(wrapped(" ".join(every), " " * 4)) + "".join(made) + FOOTER


def wrapped(joined: str, indent: str) -> str:
    """The lines of a long string."""
    lines = [joined] if len(joined) <= LINE - 10 else wrap(joined, WIDTH, break_on_hyphens=False)
    return "\n".join([f'{indent}"{part} "' for part in lines[:-1]] + [f'{indent}"{lines[-1]}"'])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    made = text(users())
    if parser.parse_args().check:
        return 0 if TARGET.read_text() == made else 1
    TARGET.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
