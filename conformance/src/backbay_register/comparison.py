"""Two certificates beside each other: what became better, worse, slower."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from backbay_conformance.report.report import BAD, STATES

from .consistency import Said, key_of

ORDER = {state: rank for rank, state in enumerate(STATES)}
"""The states from the best to the worst; a composite is as right as a kernel."""
CLEAR = 1.5
"""The factor by which an error, as a share of its bound, changes clearly."""
LEAST = 0.05
"""The least share of a bound that counts as an error at all."""
FASTER = 1.25
"""The factor by which a time changes clearly; busy machines change it by less."""


@dataclass(frozen=True)
class Change:
    """A change of one op and dtype: its kind, and both sides."""

    what: str
    kind: str
    before: str
    after: str


@dataclass
class Comparison:
    """The changes from one certificate to another, by what they mean for a user."""

    better: list[Change] = field(default_factory=list)
    worse: list[Change] = field(default_factory=list)
    faster: list[Change] = field(default_factory=list)
    slower: list[Change] = field(default_factory=list)
    other: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


UNSUPPORTED = "unsupported"
"""The state of a scenario none of whose calls is supported: it depends on the dtypes that they drew."""


def compare(before: Said, after: Said) -> Comparison:
    """The changes from `before` to `after`."""
    found = Comparison(notes=list(_notes(before, after)))
    for better, change in _lines(before, after, same_calls=_calls(before) == _calls(after)):
        kind = {True: found.better, False: found.worse, None: found.other}
        kind[better].append(change)
    for ratio, change in _speeds(before, after):
        (found.faster if ratio > 1 else found.slower).append(change)
    return found


def _notes(before: Said, after: Said) -> Iterator[str]:
    for key in ("backend", "suite", "size", "seed", "few_shapes"):
        if before.get(key) != after.get(key):
            yield f"{key}: {before.get(key)}, then {after.get(key)}"
    options = [_options(said) for said in (before, after)]
    if options[0] != options[1]:
        yield f"options: {options[0]}, then {options[1]}"
    if _calls(before) != _calls(after):
        yield "the calls or their bounds differ: errors are not compared, and a rare fault may show on one side alone"
        if alone := _by_key(before).keys() ^ _by_key(after).keys():
            yield f"{len(alone)} lines are of one side alone, as its calls drew these dtypes"
    for key in ("devices", "machine"):
        if before["facts"].get(key) != after["facts"].get(key):
            yield f"{key}: {before['facts'].get(key)}, then {after['facts'].get(key)}"


def _options(said: Said) -> str:
    options = said.get("opening", {}).get("options", {})
    return ", ".join(f"{name}={value}" for name, value in sorted(options.items())) or "none"


def _calls(said: Said) -> tuple[Any, ...]:
    """What decides which calls a run has, and their bounds."""
    return *(said.get(key) for key in ("size", "seed", "few_shapes")), said.get("digests", {}).get("suite")


def _lines(before: Said, after: Said, *, same_calls: bool) -> Iterator[tuple[bool | None, Change]]:
    old, new = _by_key(before), _by_key(after)
    for key in sorted(old.keys() | new.keys()):
        what, a, b = " ".join(filter(None, key)), old.get(key), new.get(key)
        if a is None or b is None:
            if same_calls:
                yield None, Change(what, "tried", _state(a), _state(b))
            continue
        if _rank(a) != _rank(b):
            drawn = not same_calls and not key[-1] and UNSUPPORTED in (a["state"], b["state"])
            yield None if drawn else _rank(b) < _rank(a), Change(what, "state", _state(a), _state(b))
        elif a["state"] != b["state"]:
            yield None, Change(what, "state", _state(a), _state(b))
        if a["passed"] and b["passed"]:
            yield from _of_results(what, a, b, same_calls=same_calls)


def _of_results(what: str, a: Said, b: Said, *, same_calls: bool) -> Iterator[tuple[bool | None, Change]]:
    """The changes of what a line computes. Errors compare only under one bound, and so in one precision.

    The error of a line that fails is that of its other calls.
    """
    if a["precisions"] != b["precisions"]:
        yield None, Change(what, "precision", ", ".join(a["precisions"]), ", ".join(b["precisions"]))
        return
    low, high = sorted((a["worst"], b["worst"]))
    right = not {a["state"], b["state"]} & set(BAD)
    if same_calls and right and high >= LEAST and high > CLEAR * low:
        told = (f"{each['worst']:.3g} of the bound" for each in (a, b))
        yield b["worst"] < a["worst"], Change(what, "error", *told)


def _rank(line: Said) -> int:
    return 0 if line["state"] == "composite" else ORDER[line["state"]]


def _state(line: Said | None) -> str:
    if line is None:
        return "not tried"
    failed = f", {line['failed']} failed" if line.get("failed") and line["state"] in BAD else ""
    return f"{line['state']}{failed}"


def _speeds(before: Said, after: Said) -> Iterator[tuple[float, Change]]:
    """The speeds that changed clearly, both beside the reference in the same run, so that the machine cancels out."""
    old, new = ({_timed(each): each for each in said.get("speeds", ())} for said in (before, after))
    for key in sorted(old.keys() & new.keys()):
        ratio = new[key]["times"] / old[key]["times"]
        if max(ratio, 1 / ratio) >= FASTER:
            told = (f"{each['times']:g} x the reference" for each in (old[key], new[key]))
            yield ratio, Change(" ".join(map(str, key)) + " tokens", "speed", *told)


def _timed(each: Mapping[str, Any]) -> tuple[str, str, int]:
    return each["op"], each["dtype"], each["tokens"]


def _by_key(said: Said) -> dict[tuple[str, str, str], Said]:
    return {key_of(line): line for line in said["ops"]}
