"""A report as a self-contained page: verdict, matrix, errors against bounds, failures, slowest calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from ..numbers.comparison import ENOUGH, TIGHT
from ..suite.profiles import SUITE_VERSION
from .report import BINS, STATES, OpSpeed, Outcome, Report, TableCell
from .terminal import columns, first_of_kind, rows

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --paper: #fff; --line: #d1d9e0; --soft: #f6f8fa; --faint: #59636e }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0d1117; --line: #3d444d; --soft: #151b23; --faint: #9198a1 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 76rem; padding: 0 1rem }
h1 { font-size: 1.6rem; margin: 0 } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
.verdict { display: inline-block; padding: .15rem .7rem; border-radius: 1rem; color: #fff; font-weight: 600 }
.ok { background: #1a7f37 } .bad { background: #cf222e }
.facts, .faint { color: var(--faint) } .scroll { overflow-x: auto }
table { border-collapse: collapse; font-size: .85rem } th { text-align: left; font-weight: 600 }
th, td { padding: .15rem .45rem; border-bottom: 1px solid var(--line) }
thead th { position: sticky; top: 0; background: var(--paper) }
.matrix td { text-align: center; min-width: 2.6rem; color: #fff; border: 1px solid var(--paper) }
.matrix td.none { color: var(--faint) }
.full { background: #1a7f37 } .composite, .partial { background: #0969da } .unsupported { background: #818b98 }
.failing { background: #cf222e } .over-claimed { background: #8250df } .under-claimed { background: #9a6700 }
.loose { background: #9a6700; color: #fff }
.key span { color: #fff; border-radius: .3rem; padding: .05rem .5rem; margin-right: .4rem; font-size: .8rem }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .5rem 0; padding: .4rem .8rem }
summary { cursor: pointer; font-weight: 600 }
pre { background: var(--soft); padding: .6rem; overflow-x: auto; font-size: .8rem }
svg text { font: 10px system-ui, sans-serif; fill: var(--ink) }
"""


def page(report: Report) -> str:
    """The whole page, without external resources."""
    parts = [part(report) for part in PARTS]
    title = f"{escape(report.backend)}: backbay conformance"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n'
        f"<body>\n{''.join(parts)}</body></html>\n"
    )


def _head(report: Report) -> str:
    words = {"known": "known failures"}
    told = ", ".join(f"{value:,} {words.get(key, key)}" for key, value in report.counts.items())
    lists = {
        key: ", ".join(map(str, value))
        for key, value in report.facts.items()
        if isinstance(value, list | dict)
    }
    facts = "; ".join(f"{key} {value}" for key, value in {**report.facts, **lists}.items())
    like = "" if report.like is None else str(report.like)
    more = [text for text in (report.ending, *report.complaints, like) if text]
    complaints = "".join(f"<p><b>{escape(text)}</b></p>" for text in more)
    return (
        f"<h1>{escape(report.backend)}</h1>\n"
        f'<p><span class="verdict {"ok" if report.ok else "bad"}">{report.verdict}</span> {told}</p>\n'
        f'<p class="facts">suite {SUITE_VERSION}, seed {report.seed}, {report.extent}, profiles '
        f"{', '.join(report.profiles)}, {report.seconds:.1f} s; {escape(facts)}</p>\n{complaints}"
    )


def _matrix(report: Report) -> str:
    cells = [cell for cell in report.cells.values() if cell.dtype]
    if not cells:
        return ""
    dtypes = columns(cells)
    body = {key: "".join(_cell(row.get(dtype)) for dtype in dtypes) for key, row in rows(cells).items()}
    key = "".join(f'<span class="{state}">{state}</span>' for state in STATES)
    return f'<h2>Ops and dtypes</h2>\n<p class="key">{key}</p>\n{_table(dtypes, body, "matrix")}'


def _table(heads: Sequence[str], rows: Mapping[tuple[str, str], str], kind: str = "") -> str:
    """A table whose rows begin with a profile and a name."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(
        f'<tr><th><span class="faint">{profile}</span> {escape(name)}</th>{cells}</tr>\n'
        for (profile, name), cells in rows.items()
    )
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr><th></th>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>\n"
    )


def _cell(cell: TableCell | None) -> str:
    if cell is None:
        return '<td class="none">·</td>'
    checks = ", ".join(f"{name} {count}" for name, count in cell.checks.items())
    told = f"{cell.state}: {cell.passed} passed, {cell.failed} failed; {checks}; {', '.join(sorted(cell.precisions))}"
    told += f"; the witness is wrong in {cell.differing}: {cell.difference}" if cell.differing else ""
    told += f"; {cell.unsupported} unsupported: {cell.why_not}" if cell.unsupported else ""
    return f'<td class="{cell.state}" title="{escape(told)}">{cell.failed or cell.passed or cell.unsupported}</td>'


def _errors(report: Report) -> str:
    plots = []
    for (profile, name), row in rows(report.cells.values()).items():
        counts = [sum(cell.ratios[i] for cell in row.values()) for i in range(len(BINS))]
        if sum(counts):
            worst = max(cell.worst for cell in row.values())
            plots.append((f"{profile} {name}", counts, worst))
    if not plots:
        return ""
    return (
        '<h2>Errors against their bounds</h2>\n<p class="faint">Each bar counts calls by their worst element: from 0 to '
        "less than 1 % of its bound on the left, to beyond the bound, in red, on the right.</p>\n"
        f"{_plots(plots)}"
    )


def _hunt(report: Report) -> str:
    lines = [
        f"<tr><th>{escape(cell.name)} {cell.dtype}</th><td>{worst.last_places:.4g}</td><td>{worst.share:.2%}</td>"
        f"<td>{escape(worst.element)}</td></tr>\n"
        for cell in report.worst_first
        for worst in dict.fromkeys(cell.extremes.values())
    ]
    heads = "<tr><th></th><th>last places</th><th>of its bound</th><th>element</th></tr>"
    told = "The largest errors that the hunt has found, by their bounds and in units of the last place."
    table = (
        f'<div class="scroll"><table><thead>{heads}</thead>\n<tbody>{"".join(lines)}</tbody></table></div>\n'
    )
    return f'<h2>Worst elements</h2>\n<p class="faint">{told}</p>\n{table}' if lines else ""


def _tightness(report: Report) -> str:
    shares = report.tightness
    if not shares:
        return ""
    found = {check for row in shares.values() for check in row}
    checks = sorted(found, key=lambda check: (check != "result", check))
    body = {key: "".join(_share(row.get(check)) for check in checks) for key, row in shares.items()}
    return (
        f'<h2>Tightness</h2>\n<p class="faint">The share of compared elements whose bound is finite and below '
        f"{TIGHT:.0%} of the value's scale; shares under {ENOUGH:.0%} are marked.</p>\n{_table(checks, body)}"
    )


def _share(share: float | None) -> str:
    if share is None:
        return '<td class="faint">·</td>'
    return f'<td class="loose">{share:.0%}</td>' if share < ENOUGH else f"<td>{share:.0%}</td>"


def _plots(plots: list[tuple[str, list[int], float]]) -> str:
    width, height, across = 176, 84, 6
    drawn = []
    for i, (name, counts, worst) in enumerate(plots):
        x, y = i % across * (width + 8), i // across * (height + 8)
        drawn.append(f'<g transform="translate({x},{y})">{_plot(name, counts, worst, width)}</g>\n')
    whole = (across * (width + 8), -(-len(plots) // across) * (height + 8))
    return f'<svg viewBox="0 0 {whole[0]} {whole[1]}" width="100%" role="img" aria-label="errors">{"".join(drawn)}</svg>\n'


def _plot(name: str, counts: list[int], worst: float, width: int) -> str:
    most, step, bars = max(counts), width / len(counts), []
    for i, count in enumerate(counts):
        tall = 50 * count / most
        colour = "#cf222e" if BINS[i] >= 1 else "#0969da"
        bars.append(
            f'<rect x="{i * step:.1f}" y="{66 - tall:.1f}" width="{step - 2:.1f}" height="{tall:.1f}" fill="{colour}">'
            f"<title>from {BINS[i]:g} of the bound: {count}</title></rect>"
        )
    line = f'<line x1="0" x2="{width}" y1="66" y2="66" stroke="#818b98"/>'
    return f'<text x="0" y="11">{escape(name if len(name) < 27 else name[:25] + "…")}<title>{escape(name)}</title></text>{"".join(bars)}{line}<text x="0" y="79">worst {worst:.2f}</text>'


def _failures(report: Report) -> str:
    if not report.failures and not report.known:
        return ""
    shown = "".join(map(_failure, first_of_kind(report.failures)))
    told = f"{len(report.failures)} calls failed; one of each kind is shown, as small as it was found."
    known = "".join(f"<li>{escape(o.item)}: {escape(o.check)}</li>" for o in first_of_kind(report.known))
    known = f"<h2>Known failures</h2><ul>{known}</ul>\n" if known else ""
    return f"<h2>Failures</h2>\n{f'<p>{told}</p>' if shown else ''}\n{shown}{known}"


def _failure(outcome: Outcome) -> str:
    choices = " ".join(map(str, outcome.choices))
    return (
        f"<details><summary>{escape(outcome.item)} <span class='faint'>{escape(outcome.check)}, {escape(outcome.dtype)}, "
        f"{escape(outcome.mode)}</span></summary><p>{escape(outcome.message)}</p><p><code>{escape(outcome.call)}</code></p>"
        f"<pre>{escape(outcome.script)}</pre><p class='faint'>choices: {choices}</p></details>\n"
    )


def _refusals(report: Report) -> str:
    lines = [
        f"<tr><td>{count}</td><th>{escape(each.kind or each.name)}</th><td>{escape(each.reason)}</td></tr>\n"
        for each, count in report.refusals.most_common()
    ]
    table = f'<div class="scroll"><table>{"".join(lines)}</table></div>\n'
    told = f"{report.refused_share:.1%} of all calls were refused when they were compiled."
    return f'<h2>Refusals</h2>\n<p class="faint">{told}</p>\n{table}' if lines else ""


def _scenarios(report: Report) -> str:
    body = {
        (
            cell.profile,
            cell.name,
        ): f"<td>{cell.passed}</td><td>{cell.failed}</td><td>{cell.seconds:.2f} s</td>"
        for cell in sorted(report.cells.values(), key=lambda cell: not cell.bad)
        if not cell.dtype
    }
    return f"<h2>Scenarios</h2>\n{_table(('passed', 'failed', 'time'), body)}" if body else ""


def _speeds(report: Report) -> str:
    rows: dict[tuple[str, str], list[OpSpeed]] = {}
    for speed in report.speeds:
        rows.setdefault((speed.op, speed.dtype), []).append(speed)
    body = {
        key: "".join(f"<td>{speed.seconds * 1e3:.3g} ms, {speed.times:.3g} x</td>" for speed in row)
        for key, row in rows.items()
    }
    heads = [f"{tokens} tokens" for tokens in sorted({speed.tokens for speed in report.speeds})]
    told = "The ops of a Llama of 1B: milliseconds, and how many times faster than the reference in the same run."
    return f'<h2>Speed</h2>\n<p class="faint">{told}</p>\n{_table(heads, body)}' if body else ""


def _slowest(report: Report) -> str:
    lines = [
        f"<tr><td>{outcome.seconds * 1000:.1f} ms</td><td>{escape(outcome.item)}</td>"
        f"<td class='faint'>{escape(outcome.call)}</td></tr>\n"
        for outcome in report.slowest
    ]
    return f"<h2>What took longest</h2>\n<div class='scroll'><table>{''.join(lines)}</table></div>\n"


PARTS = (_head, _matrix, _hunt, _errors, _tightness, _failures, _refusals, _scenarios, _speeds, _slowest)
