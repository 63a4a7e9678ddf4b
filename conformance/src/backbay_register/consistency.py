"""What a certificate says of itself, computed anew: sums, states, and the calls that its seed draws; nothing runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from backbay_conformance.report.digests import SUITE
from backbay_conformance.report.report import BAD, STATES
from backbay_conformance.runner.op_speeds import CALLS, TOKENS
from backbay_conformance.runner.verification import CertificateFinding as Finding
from backbay_conformance.runner.workers.supervisor import ENOUGH
from backbay_conformance.suite.case import CASES
from backbay_conformance.suite.extensions import load_extensions
from backbay_conformance.suite.lab import SCENARIOS

from .drawn_calls import CellKey, DrawnGroup, RunPlan, declined_by, drawn_groups
from .levels import failed_again

Said = Mapping[str, Any]
"""A certificate, or the record of a run that earned none, as JSON has it."""
COUNTED = ("passed", "unsupported", "failed")
DEATHS = ("crash", "hang")
"""The checks whose failures cost a process: after ENOUGH of them, a run leaves out the other calls of the case."""
SHOWN = 3  # lines that a finding names
AT_MOST_ITS_BOUND = 1.0


def key_of(line: Said) -> CellKey:
    return line["profile"], line["name"], line["dtype"]


def plan_of(said: Said) -> RunPlan:
    return RunPlan(tuple(said["profiles"]), said["size"], said["seed"], bool(said.get("few_shapes")))


def arithmetic(said: Said) -> Iterator[Finding]:
    """The findings that need no suite: each follows from other numbers of the certificate."""
    lines = said["ops"]
    yield from _totals(said, lines)
    found = Counter(line["state"] for line in lines if line["dtype"])
    states = {state: said["states"].get(state, 0) for state in STATES}
    wrong = [f"{state} {n}, by line {found[state]}" for state, n in states.items() if n != found[state]]
    yield _finding("states", wrong, "as the lines say")
    yield _finding("state of each line", [_named(line) for line in lines if not _state_follows(line)])
    yield _finding(
        "errors", [_named(line) for line in lines if not _error_is_possible(line)], "within bounds"
    )
    yield _finding("refusals", list(_wrong_refusals(said)))
    yield _finding("shares of tight bounds", list(_wrong_shares(said)))
    yield _finding("speeds", list(_wrong_speeds(said)), f"{len(said.get('speeds', []))}, of measured ops")


def draws(said: Said) -> Iterator[Finding]:
    """The findings of the calls that seed and size draw; the suite must be the one that made the certificate."""
    if said.get("like") is not None:
        yield Finding("calls of a model", None, f"{said['like']['model']} is not here")
        return
    own = {f"{line['profile']}/{line['name']}" for line in said["ops"]}
    plan = plan_of(said)
    planned = Counter(item.group for item in plan.items())
    counts = _calls_by_group(said)
    total = sum(sum(row.values()) for row in counts.values())
    cut = cut_short(said) & planned.keys()
    total += sum(max(planned[group] - sum(counts[group].values()), 0) for group in cut)
    if said["facts"].get("scenarios", []) == list(load_extensions()):
        same = planned.total() == said["planned"] == total
        yield Finding("planned calls", same, f"{total:,}; this suite plans {planned.total():,}")
        missing, extra = planned.keys() - own, own - planned.keys()
    else:
        agrees = None if total == said["planned"] else False
        yield Finding(
            "planned calls", agrees, f"{total:,} of {said['planned']:,}; other packages add scenarios here"
        )
        missing = {group for group in planned.keys() - own if is_of_the_suite(group)}
        extra = {
            f"{line['profile']}/{line['name']}" for line in said["ops"] if line["dtype"]
        } - planned.keys()
    yield _finding("missing lines", [f"no line of {group}" for group in sorted(missing)], "none")
    yield _finding("lines of other suites", sorted(extra), "none")
    groups = drawn_groups(plan, declined_by(said["ops"]), only=own & planned.keys())
    yield from _of_groups(said, groups, counts, cut)


def cut_short(said: Said) -> set[str]:
    """The cases and scenarios with so many crashes or hangs that a run leaves out their other calls."""
    deaths: Counter[str] = Counter()
    for each in said.get("failures", ()):
        if each.get("check") in DEATHS:
            deaths["/".join(each["item"].split("/")[:2])] += each.get("count", 1)
    return {group for group, count in deaths.items() if count >= ENOUGH}


def _calls_by_group(said: Said) -> dict[str, Counter[str]]:
    """The number of drawn calls of each case and scenario, by dtype."""
    counts: dict[str, Counter[str]] = {}
    for line in said["ops"]:
        row = counts.setdefault(f"{line['profile']}/{line['name']}", Counter())
        row[line["dtype"]] += sum(line.get(count, 0) for count in COUNTED)
    for each in failed_again(said):
        counts.setdefault(each["item"].rpartition("/")[0], Counter())[each.get("dtype", "")] -= 1
    return counts


def is_of_the_suite(group: str) -> bool:
    """Whether the suite itself declares a case or scenario, and no other package."""
    profile, name = group.split("/")
    own = CASES.get((profile, name)) or SCENARIOS[profile, name]
    return own.function.__module__.startswith(f"{SUITE}.")


def _of_groups(
    said: Said,
    groups: Mapping[str, DrawnGroup],
    counts: Mapping[str, Counter[str]],
    cut: Collection[str],
) -> Iterator[Finding]:
    wrong = [
        f"{group} {_row(counts[group])}, drawn {_row(drawn.dtypes)}"
        for group, drawn in groups.items()
        if not _as_drawn(counts[group], drawn, whole=group not in cut)
    ]
    certain = sum(drawn.certain for drawn in groups.values())
    yield _finding("drawn calls", wrong, f"{certain} of {len(groups)} cases and scenarios by dtype")
    digests = said["digests"]["calls"]
    wrong = [group for group, drawn in groups.items() if drawn.digest not in (None, digests.get(group))]
    wrong += sorted(digests.keys() - groups.keys())
    known = sum(drawn.digest is not None for drawn in groups.values())
    yield _finding("first calls", wrong, f"the digests of {known} cases")


def _as_drawn(row: Counter[str], drawn: DrawnGroup, *, whole: bool) -> bool:
    """Whether a case has the calls that the seed draws, or at most so many, if a run leaves some out."""
    if not whole:
        return row.total() <= drawn.total
    return row == Counter(drawn.dtypes) if drawn.certain else row.total() == drawn.total


def _totals(said: Said, lines: Sequence[Said]) -> Iterator[Finding]:
    twice = [" ".join(key) for key, n in Counter(map(key_of, lines)).items() if n > 1]
    yield _finding("repeated lines", twice, "none")
    counts = {**said["counts"], "failed": said["counts"]["failed"] + said["counts"].get("known", 0)}
    for count in COUNTED:
        total = sum(line.get(count, 0) for line in lines)
        yield Finding(f"{count} calls", counts[count] == total, f"{counts[count]:,}; by line {total:,}")
    listed = sum(each.get("count", 1) for each in said.get("failures", ()))
    yield Finding("listed failures", listed == counts["failed"], f"{listed:,} of {counts['failed']:,}")


def _state_follows(line: Said) -> bool:
    """Whether a line's counts may be of its state."""
    state, passed, refused = line["state"], line["passed"], line.get("refused", 0)
    numbers = [line.get(count, 0) for count in (*COUNTED, "refused")]
    if any(type(n) is not int or n < 0 for n in numbers) or not sum(numbers[:3]):
        return False
    if line.get("failed", 0) or state in BAD:
        return bool(line.get("failed", 0)) and state in BAD
    if state == "unsupported" or not passed:
        return state == "unsupported" and not passed
    return state in STATES and (state != "partial" or refused > 0) and (state != "full" or not refused)


def _error_is_possible(line: Said) -> bool:
    """Whether the largest error, in bounds, is a number that the line's state allows."""
    worst = line["worst"]
    if not isinstance(worst, int | float) or not isfinite(worst) or worst < 0:
        return line["state"] in BAD
    if line["dtype"] and line["passed"] and not line["precisions"]:
        return False
    return line["state"] in BAD or (worst <= AT_MOST_ITS_BOUND and not (worst and not line["passed"]))


def _wrong_refusals(said: Said) -> Iterator[str]:
    refusals = said.get("refusals")
    if refusals is None:  # of a suite before 1.2
        return
    tried = sum(line.get(count, 0) for line in said["ops"] for count in COUNTED)
    total = sum(each["calls"] for each in refusals["calls"])
    if refusals["share"] != round(total / tried if tried else 0.0, 4):
        yield f"share {refusals['share']}; {total} of {tried}"
    listed: Counter[tuple[str, str]] = Counter()
    for each in refusals["calls"]:
        listed[each["name"], each["dtype"]] += each["calls"]
    for line in said["ops"]:
        listed[line["name"], line["dtype"]] -= line["refused"]
    yield from (f"{name} {dtype}" for (name, dtype), n in listed.items() if n)


def _wrong_shares(said: Said) -> Iterator[str]:
    own = {f"{line['profile']}/{line['name']}" for line in said["ops"]}
    for group, row in said["tightness"].items():
        if group not in own or not all(0 <= share <= 1 for share in row.values()):
            yield group


def _wrong_speeds(said: Said) -> Iterator[str]:
    """The speeds that no run can have measured."""
    lines = {(line["name"], line["dtype"]): line for line in said["ops"]}
    lacking = {key for key, line in lines.items() if line["state"] == "unsupported"}
    seen = Counter((each["op"], each["dtype"], each["tokens"]) for each in said.get("speeds", ()))
    for each in said.get("speeds", ()):
        key = each["op"], each["dtype"], each["tokens"]
        numbers = each["seconds"], each["times"]
        if key[:2] not in CALLS or each["tokens"] not in TOKENS or seen[key] > 1:
            yield f"{' '.join(map(str, key))} is not measured"
        elif key[:2] in lacking:
            yield f"{each['op']} {each['dtype']} is unsupported"
        elif not all(type(n) is float and 0 < n < float("inf") and n == float(f"{n:.3g}") for n in numbers):
            yield f"{' '.join(map(str, key))}: {numbers[0]} s, {numbers[1]} times"


def _finding(what: str, wrong: Sequence[str], right: str = "as the numbers say") -> Finding:
    rest = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    return Finding(what, not wrong, ", ".join(wrong[:SHOWN]) + rest if wrong else right)


def _named(line: Said) -> str:
    counts = ", ".join(f"{line.get(count, 0)} {count}" for count in COUNTED if line.get(count))
    return f"{' '.join(filter(None, key_of(line)))}: {line['state']}, {counts}, {line['worst']} of the bound"


def _row(counts: Mapping[str, int]) -> str:
    return " ".join(f"{dtype or 'runs'} {n}" for dtype, n in sorted(counts.items()))
