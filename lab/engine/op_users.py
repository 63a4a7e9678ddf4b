"""Finds the ops that each architecture uses, and each encoder of pictures or sound, by tracing small models of the tests.

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
from small_sound import KINDS as HEARING  # noqa: E402
from small_sound import write_small_sound  # noqa: E402
from small_vision import FAMILIES as SEEING  # noqa: E402
from small_vision import write_small_vision  # noqa: E402
from small_whisper import write_whisper  # noqa: E402

import backbay  # noqa: E402
from backbay import OPS, Backend, Tensor  # noqa: E402
from backbay_engine.cache import CacheSizes, MediaCacheGraph  # noqa: E402
from backbay_engine.encoders.contract import EncoderFamily  # noqa: E402
from backbay_engine.local.opening.encoder_opening import open_text_backend  # noqa: E402
from backbay_engine.media.encoder import EncoderPass  # noqa: E402
from backbay_engine.media.encoder_file import encoder_family, encoder_files  # noqa: E402
from backbay_engine.models import Model, keys, load_model  # noqa: E402
from backbay_engine.models.batch import Batch  # noqa: E402
from backbay_engine.steps.step import largest_steps  # noqa: E402

TARGET = ROOT / "src" / "backbay_engine" / "models" / "op_users.py"
BATCH, PARALLEL, CONTEXT = 128, 4, 256
LINE, WIDTH = 110, 96
HEADER = '''"""The architectures of this package that use each op, and the encoders of pictures and sound, such as audio:whisper; made by
lab/engine/op_users.py, which traces them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

'''
TABLE = """_{0} = (
{1}
)
_OPS_OF_{0} = {{
{2}}}
"""
FOOTER = """

def _users(op: str, table: Mapping[str, str], every: str) -> tuple[str, ...]:
    first, *others = table.get(op, "none").split()
    if first == "all":
        return tuple(name for name in every.split() if name not in others)
    return () if first == "none" else (first, *others)


OP_USERS: Final = {
    op: (
        *_users(op, _OPS_OF_ARCHITECTURES, _ARCHITECTURES),
        *_users(op, _OPS_OF_ENCODERS, _ENCODERS),
    )
    for op in {**_OPS_OF_ARCHITECTURES, **_OPS_OF_ENCODERS}
}
"""


Users = dict[str, list[str]]


def users() -> tuple[Users, Users]:
    """The architectures by op, and the encoders."""
    architectures, encoders = dict[str, set[str]](), dict[str, set[str]]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone = [*map(stored, NAMES), *(unpacked(name, folder) for name in KIND_NAMES)]
        seeing = [write_small_vision(folder, kind) for kind in SEEING]
        hearing = [write_small_sound(folder, kind) for kind in HEARING]
        pairs = [*seeing, *hearing, (write_whisper(folder / "whisper", max_target_positions=CONTEXT), None)]
        for path in [*alone, *(path for path, _ in pairs)]:
            backend, _ = open_text_backend(path, "cpu_ref", backbay.BackendParams())
            with backend:
                for op in ops_of(backend, load_model(backend, CONTEXT)):
                    architectures.setdefault(op, set()).add(backend.config.architecture)
        for path, projector in pairs:
            for family in map(encoder_family, encoder_files(path, projector)):
                for op in ops_of_encoder(family):
                    encoders.setdefault(op, set()).add(f"{family.modality}:{family.name}")
    return _in_order(architectures), _in_order(encoders)


def _in_order(found: dict[str, set[str]]) -> Users:
    return {op: sorted(found[op]) for op in OPS if op in found}


def ops_of_encoder(family: EncoderFamily[Any]) -> set[str]:
    """The ops that an encoder traces for the smallest and the largest of what it takes."""
    with backbay.open(family.file, "cpu_ref") as backend, recorded() as asked:
        network = family.network(backend)
        for given in (family.smallest(), family.largest()):
            EncoderPass(backend, network, family.pieces(given)[:1]).close()
    return asked


def ops_of(backend: Backend, model: Model) -> set[str]:
    """The ops that a model traces for a prompt, and for a token of each sequence."""
    cache = model.new_cache()
    if cache is not None:
        cache.open(backend, CacheSizes(PARALLEL, CONTEXT, BATCH, backbay.DType.F32))
    uniform = cache is not None and cache.is_uniform
    with recorded() as asked:
        if cache is not None and cache.pictures is not None:  # first: the steps read what it writes
            MediaCacheGraph(cache.pictures, keys.WIDTH.of(backend.config), model.cross).close()
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


def text(architectures: Users, encoders: Users) -> str:
    """The module, as the formatter would write it."""
    return HEADER + table("ARCHITECTURES", architectures) + table("ENCODERS", encoders) + FOOTER


def table(title: str, found: Users) -> str:
    every = sorted({name for names in found.values() for name in names})
    made = []
    for op, names in found.items():
        others = [name for name in every if name not in names]
        joined = min(" ".join(names), " ".join(["all but", *others] if others else ["all"]), key=len)
        line = f'    "{op}": "{joined}",\n'
        if len(line) > LINE:
            line = f'    "{op}": (\n{wrapped(joined, " " * 8)}\n    ),\n'
        made.append(line)
    return TABLE.format(title, wrapped(" ".join(every), " " * 4), "".join(made))


def wrapped(joined: str, indent: str) -> str:
    """The lines of a long string."""
    lines = [joined] if len(joined) <= LINE - 10 else wrap(joined, WIDTH, break_on_hyphens=False)
    return "\n".join([f'{indent}"{part} "' for part in lines[:-1]] + [f'{indent}"{lines[-1]}"'])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    made = text(*users())
    if parser.parse_args().check:
        return 0 if TARGET.read_text() == made else 1
    TARGET.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
