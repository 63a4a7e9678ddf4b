"""Plots as SVG, without a plotting library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 860, 420, 80, 60, 50
COLOURS = ("#2f6fb5", "#d9802b", "#3a9a5b", "#b5442f", "#7a56b0", "#777777")


def bars(
    title: str, unit: str, groups: Sequence[str], series: Mapping[str, Sequence[tuple[float, float]]]
) -> str:
    """Groups of bars: a bar for each series shows a mean and its deviation. Each group has its own scale."""
    tops = [max(values[g][0] + values[g][1] for values in series.values()) or 1.0 for g in range(len(groups))]
    wide = (WIDTH - LEFT - 20) / max(1, len(groups))
    each = 0.8 * wide / max(1, len(series))

    def y(share: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * max(0.0, share)

    parts = [_line(LEFT, y(0), WIDTH - 20, y(0), "#999")]
    for s, (name, values) in enumerate(series.items()):
        for g, (mean, spread) in enumerate(values):
            x, top = LEFT + g * wide + 0.1 * wide + s * each, tops[g]
            parts.append(
                f'<rect x="{x:.1f}" y="{y(mean / top):.1f}" width="{each * 0.92:.1f}" '
                f'height="{y(0) - y(mean / top):.1f}" fill="{COLOURS[s % len(COLOURS)]}">'
                f"<title>{escape(name)}: {mean:.2f} ± {spread:.2f} {escape(unit)}</title></rect>"
            )
            middle = x + each * 0.46
            parts.append(_line(middle, y((mean - spread) / top), middle, y((mean + spread) / top), "#222"))
            parts.append(_text(middle, y((mean + spread) / top) - 5, f"{mean:,.4g}", "middle", 11))
    parts += [
        _text(LEFT + (g + 0.5) * wide, HEIGHT - BOTTOM + 20, group, "middle")
        for g, group in enumerate(groups)
    ]
    return _page(f"{title} ({unit})", parts, list(series))


def depth(title: str, names: Sequence[str], series: Mapping[str, Sequence[float]]) -> str:
    """Errors through a model's depth on a logarithmic scale, a line for each series; errors may be 0."""
    positive = [value for values in series.values() for value in values if 0 < value < float("inf")]
    low, high = (floor(log10(min(positive))), ceil(log10(max(positive)))) if positive else (-8, 0)
    high = max(high, low + 1)
    step = (WIDTH - LEFT - 40) / max(1, len(names) - 1)

    def y(value: float) -> float:
        shown = low if value <= 0 else min(high, log10(value)) if value != float("inf") else high
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (shown - low) / (high - low)

    marks = range(low, high + 1, max(1, (high - low) // 8))
    parts = [_axis(y(10.0**power), f"1e{power}") for power in marks]
    for s, (name, values) in enumerate(series.items()):
        points = [(LEFT + 10 + i * step, y(value)) for i, value in enumerate(values)]
        colour = COLOURS[s % len(COLOURS)]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for (px, py), value, where in zip(points, values, names, strict=True):
            parts.append(
                f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" fill="{colour}">'
                f"<title>{escape(where)}, {escape(name)}: {value:.2e}</title></circle>"
            )
    every = max(1, len(names) // 12)
    parts += [
        _text(LEFT + 10 + i * step, HEIGHT - BOTTOM + 20, names[i], "middle", 11)
        for i in range(0, len(names), every)
    ]
    return _page(title, parts, list(series))


def _axis(y: float, label: str) -> str:
    return _line(LEFT, y, WIDTH - 20, y, "#ddd") + _text(LEFT - 8, y + 4, label, "end", 11)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 13) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _page(title: str, parts: Sequence[str], legend: Sequence[str], height: int = HEIGHT) -> str:
    keys = []
    x = float(LEFT)
    for s, name in enumerate(legend):
        keys.append(
            f'<rect x="{x}" y="{HEIGHT - 22}" width="12" height="12" fill="{COLOURS[s % len(COLOURS)]}"/>'
        )
        keys.append(_text(x + 18, HEIGHT - 11, name))
        x += 40 + 8 * len(name)
    body = "\n".join([_text(WIDTH / 2, 26, title, "middle", 16), *parts, *keys])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'fill="#222"><rect width="{WIDTH}" height="{height}" fill="white"/>\n{body}\n</svg>\n'
    )


def curves(
    title: str, across: str, xs: Sequence[int], series: Mapping[str, Sequence[float]], *, even: bool = False
) -> str:
    """A line for each series over numbers `xs`, named by `across`, from 0 up; `even` leaves them equal room."""
    top = 1.1 * max((value for values in series.values() for value in values), default=0) or 1.0
    places = range(len(xs)) if even else xs
    wide = (WIDTH - LEFT - 40) / (max(places, default=0) or 1)

    def point(place: int, value: float) -> tuple[float, float]:
        return LEFT + 10 + place * wide, HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / top

    step = 10 ** floor(log10(top)) / 2
    marks = [n * step for n in range(int(top / step) + 1)]
    parts = [_axis(point(0, mark)[1], f"{mark:,.4g}") for mark in marks]
    for s, (name, values) in enumerate(series.items()):
        points, colour = list(map(point, places, values)), COLOURS[s % len(COLOURS)]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for (px, py), value, x in zip(points, values, xs, strict=True):
            parts.append(
                f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" fill="{colour}">'
                f"<title>{escape(name)}, {x}: {value:,.4g}</title></circle>"
            )
    parts += [
        _text(point(place, 0)[0], HEIGHT - BOTTOM + 18, str(x), "middle", 11)
        for place, x in zip(places, xs, strict=True)
    ]
    parts.append(_text(WIDTH - 20, HEIGHT - 11, across, "end"))
    return _page(title, parts, list(series))


def lanes(title: str, unit: str, groups: Mapping[str, Sequence[tuple[str, float]]]) -> str:
    """Horizontal bars, a group below the other; each group has its own scale."""
    parts, y, left = list[str](), float(TOP + 10), 260
    for g, (name, bars_of_group) in enumerate(groups.items()):
        parts.append(_text(20, y + 12, name, size=14))
        y += 22
        longest = max((length for _, length in bars_of_group), default=0) or 1.0
        for label, length in bars_of_group:
            wide = (WIDTH - left - 110) * length / longest
            colour = COLOURS[g % len(COLOURS)]
            parts.append(_text(left - 8, y + 11, label, "end", 11))
            parts.append(
                f'<rect x="{left}" y="{y:.1f}" width="{wide:.1f}" height="13" fill="{colour}"/>'
                + _text(left + wide + 6, y + 11, f"{length:,.4g} {unit}", size=11)
            )
            y += 17
        y += 12
    return _page(title, parts, [], height=round(y) + 10)
