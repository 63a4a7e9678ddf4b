"""The table of what the tests see."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

from mutant import Mutant

HEAD = """# Mutants

`python lab/mutants` plants mutants at random places of the sources, and tells which tests see each. The short
tests are those of `make test`, the long ones come to them in `make test-all`. The draw had the seed {seed}, and chose among
{places:,} mutants, each of the nine kinds as often as the others.

"""

VERDICTS = {
    "equivalent": "nothing that anybody sees is different",
    "draw": "the suite, or a trial, draws other data, which are as good",
    "taste": "a limit, an order or a cost is another, and as good",
    "needless": "the code did without the line, or has lost it since",
    "tested": "it was a gap: a short test sees it now",
    "long": "long tests see it, or the suite's larger sizes, which no test runs",
}
REAL = ("tested", "long")


def table(
    draw: Mapping[str, object],
    mutants: Mapping[int, Mutant],
    seen: Mapping[int, str | None],
    verdicts: Mapping[str, str],
) -> str:
    """All mutants by package, then those that the short tests do not see, with what a reader said of each.

    Before the end of the hunt, only how far it is: who sees the rest is not known.
    """
    if not mutants.keys() <= seen.keys():
        return (
            HEAD.format(**draw) + f"The hunt has not ended: {len(seen)} of {len(mutants)} are seen so far.\n"
        )
    rows = ["| package | mutants | seen by the short tests | by the long tests only | by neither | rate |"]
    rows.append("|---|---|---|---|---|---|")
    for package in sorted({_package(mutant) for mutant in mutants.values()}):
        ids = [id for id in mutants if _package(mutants[id]) == package]
        rows.append(_row(package, ids, seen))
    rows.append(_row("all", mutants, seen))
    pages = [HEAD.format(**draw), "\n".join(rows), "\n\n"]
    pages.append("The rate is what the short tests see of all that is seen.\n")
    if verdicts:
        pages.append(_summary(sum(who == "short" for who in seen.values()), Counter(verdicts.values())))
    for title, selection in (("Seen by the long tests only", "thorough"), ("Seen by neither", None)):
        ids = [id for id in mutants if seen.get(id) == selection]
        pages += [f"\n## {title}\n\n", _list({id: mutants[id] for id in ids}, verdicts) if ids else "None.\n"]
    return "".join(pages)


def _package(mutant: Mutant) -> str:
    return mutant.path.partition("/src/")[0]


def _row(name: str, ids: Collection[int], seen: Mapping[int, str | None]) -> str:
    short, long = (sum(seen.get(id) == selection for id in ids) for selection in ("short", "thorough"))
    rate = f"{short} / {short + long} = {100 * short / (short + long):.1f} %" if short + long else ""
    return f"| {name} | {len(ids)} | {short} | {long} | {len(ids) - short - long} | {rate} |"


def _summary(short: int, counts: Counter[str]) -> str:
    """What a reader says of the mutants that the short tests did not see."""
    rows = [f"| {word} | {counts[word]} | {meaning} |" for word, meaning in VERDICTS.items()]
    real, now = short + sum(counts[word] for word in REAL), short + counts["tested"]
    return (
        "\n## Verdicts on what the short tests did not see\n\n| verdict | mutants | meaning |\n|---|---|---|\n"
        + "\n".join(rows)
        + f"\n\nSo {real} of the mutants matter. The short tests saw {short} of them, {100 * short / real:.1f} %, and see {now} "
        f"now, {100 * now / real:.1f} %.\n"
    )


def _list(mutants: Mapping[int, Mutant], verdicts: Mapping[str, str]) -> str:
    rows = ["| mutant | place | kind | before | after | verdict |", "|---|---|---|---|---|---|"]
    for id, mutant in mutants.items():
        texts = f"{_code(mutant.before)} | {_code(mutant.after)}"
        rows.append(
            f"| {id} | {mutant.path}:{mutant.line} | {mutant.kind} | {texts} | {verdicts.get(str(id), '')} |"
        )
    return "\n".join(rows) + "\n"


def _code(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|")
    line = line if len(line) <= 60 else line[:57] + "..."
    return f"`` {line} ``" if line else ""


def read_verdicts(path: Path) -> dict[str, str]:
    return json.loads(path.read_text()) if path.exists() else {}
