"""Parameters and options of a backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..errors import OptionError, nearest
from .gpu_layers import GPULayersList

MAX_THREADS = 1024  # libraries accept any number: they start all these threads, or fail in their own ways
MAPPED, COPIED = "mapped", "copied"


class FlashAttention(Enum):
    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True)
class Debug:
    """Debugging aids, for backends that have them: poison fills fresh memory, guard_bytes guards both of its ends."""

    poison: bool = False
    guard_bytes: int = 0


@dataclass(frozen=True)
class BackendParams:
    """How a backend loads and runs a model.

    alloc_memory    False only measures: nothing is allocated, and load and compute refuse.
    num_threads     threads on the CPU; None means all cores.
    gpu_layers      None places all layers that fit on GPUs; an empty list keeps all layers on the CPU.
    max_memory      limits in bytes, by device id.
    options         options of this backend, which declares and checks them; every backend has `weights`.
    """

    alloc_memory: bool = True
    num_threads: int | None = None
    gpu_layers: GPULayersList | None = None
    flash_attention: FlashAttention = FlashAttention.AUTO
    max_memory: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    debug: Debug = Debug()

    def __post_init__(self) -> None:
        if self.num_threads is not None:
            _require_int("num_threads", self.num_threads, at_least=1, at_most=MAX_THREADS)
        _require_int("guard_bytes", self.debug.guard_bytes, at_least=0)
        for device, limit in self.max_memory.items():
            _require_int(f"max_memory of {device}", limit, at_least=0)
        try:
            object.__setattr__(self, "flash_attention", FlashAttention(self.flash_attention))
        except ValueError:
            given = self.flash_attention
            raise OptionError(f"flash_attention must be auto, on or off, got {given!r}") from None


def _require_int(name: str, value: object, *, at_least: int, at_most: int | None = None) -> None:
    if not isinstance(value, int) or value < at_least or (at_most is not None and value > at_most):
        rule = f"of at least {at_least}" if at_most is None else f"in [{at_least}, {at_most}]"
        raise OptionError(f"{name} must be an integer {rule}, got {value!r}")


@dataclass(frozen=True)
class Option:
    """An option that a backend declares: its default, a parser of given values (it may raise), and a line of help."""

    default: Any
    parse: Callable[[Any], Any]
    help: str


def choice_of(*choices: str) -> Callable[[Any], str]:
    """The parser of an option that takes one of some words."""

    def parse(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"not one of {', '.join(choices)}")
        return str(value)

    return parse


COMMON_OPTIONS: Mapping[str, Option] = {
    "weights": Option(
        MAPPED,
        choice_of(MAPPED, COPIED),
        "mapped: weights are read from the model file, which must not change; "
        "copied: weights are kept in memory, and once they are loaded the file may change",
    )
}
"""The options of every backend. A backend that declares one of them anew adds values to it."""


def parse_options(declared: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all declared options; OptionError names an unknown option or a wrong value."""
    for name in given:
        if name not in declared:
            known = ", ".join(sorted(declared)) or "none"
            raise OptionError(f"unknown option {name!r}{nearest(name, declared)}; known: {known}")
    values = {name: option.default for name, option in declared.items()}
    for name, value in given.items():
        try:
            values[name] = declared[name].parse(value)
        except (TypeError, ValueError) as error:
            why = f"{value!r} is wrong: {error}; {declared[name].help}"
            raise OptionError(f"option {name}: {why}") from error
    return values
