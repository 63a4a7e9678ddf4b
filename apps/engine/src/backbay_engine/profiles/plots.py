"""Plots as SVG, without a plotting library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, inf, log10

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 860, 420, 80, 60, 50
COLOURS = ("#2f6fb5", "#d9802b", "#3a9a5b", "#b5442f", "#7a56b0", "#777777")


def bar_chart(
    title: str, unit: str, groups: Sequence[str], series: Mapping[str, Sequence[tuple[float, float]]]
) -> str:
    """Groups of bars: a bar for each series shows a mean and its deviation. Each group has its own scale."""
    tops = [max(values[g][0] + values[g][1] for values in series.values()) or 1.0 for g in range(len(groups))]
    wide = (WIDTH - LEFT - 20) / max(1, len(groups))
    each = 0.8 * wide / max(1, len(series))
    parts = [_line(LEFT, _height(0), WIDTH - 20, _height(0), "#999")]
    for s, (name, values) in enumerate(series.items()):
        for g, (mean, spread) in enumerate(values):
            x, top = LEFT + g * wide + 0.1 * wide + s * each, tops[g]
            told = f"{name}: {mean:.2f} ± {spread:.2f} {unit}"
            y, middle, end = _height(mean / top), x + each * 0.46, _height((mean + spread) / top)
            parts += [
                _box(x, y, each * 0.92, _height(0) - y, COLOURS[s % len(COLOURS)], told),
                _line(middle, _height((mean - spread) / top), middle, end, "#222"),
                _text(middle, end - 5, f"{mean:,.4g}", "middle", 11),
            ]
    places = [LEFT + (g + 0.5) * wide for g in range(len(groups))]
    parts += [_text(x, HEIGHT - BOTTOM + 20, name, "middle") for x, name in zip(places, groups, strict=True)]
    return _page(f"{title} ({unit})", parts, list(series))


def depth_chart(title: str, names: Sequence[str], series: Mapping[str, Sequence[float]]) -> str:
    """Errors through a model's depth on a logarithmic scale, a line for each series; errors may be 0."""
    positive = [value for values in series.values() for value in values if 0 < value < inf]
    low, high = (floor(log10(min(positive))), ceil(log10(max(positive)))) if positive else (-8, 0)
    high = max(high, low + 1)
    step = (WIDTH - LEFT - 40) / max(1, len(names) - 1)

    def share(value: float) -> float:
        shown = low if value <= 0 else high if value == inf else min(high, log10(value))
        return (shown - low) / (high - low)

    marks = range(low, high + 1, max(1, (high - low) // 8))
    parts = [_mark(share(10.0**power), f"1e{power}") for power in marks]
    for s, (name, values) in enumerate(series.items()):
        told = [f"{where}, {name}: {value:.2e}" for where, value in zip(names, values, strict=True)]
        parts += _curve(s, [(i * step, share(value)) for i, value in enumerate(values)], told)
    for i in range(0, len(names), max(1, len(names) // 12)):
        parts.append(_text(LEFT + 10 + i * step, HEIGHT - BOTTOM + 20, names[i], "middle", 11))
    return _page(title, parts, list(series))


def line_chart(
    title: str, across: str, xs: Sequence[int], series: Mapping[str, Sequence[float]], *, even: bool = False
) -> str:
    """A line for each series over numbers `xs`, named by `across`, from 0 up; `even` leaves them equal room."""
    top = 1.1 * max((value for values in series.values() for value in values), default=0) or 1.0
    places = range(len(xs)) if even else xs
    wide = (WIDTH - LEFT - 40) / (max(places, default=0) or 1)
    step = 10 ** floor(log10(top)) / 2
    parts = [_mark(n * step / top, f"{n * step:,.4g}") for n in range(int(top / step) + 1)]
    for s, (name, values) in enumerate(series.items()):
        told = [f"{name}, {x}: {value:,.4g}" for x, value in zip(xs, values, strict=True)]
        points = [(place * wide, value / top) for place, value in zip(places, values, strict=True)]
        parts += _curve(s, points, told)
    for place, x in zip(places, xs, strict=True):
        parts.append(_text(LEFT + 10 + place * wide, HEIGHT - BOTTOM + 18, str(x), "middle", 11))
    parts.append(_text(WIDTH - 20, HEIGHT - 11, across, "end"))
    return _page(title, parts, list(series))


def lane_chart(title: str, unit: str, groups: Mapping[str, Sequence[tuple[str, float]]]) -> str:
    """Horizontal bars, a group below the other; each group has its own scale."""
    parts, y, left = list[str](), float(TOP + 10), 260
    for g, (name, lengths) in enumerate(groups.items()):
        parts.append(_text(20, y + 12, name, size=14))
        y += 22
        longest = max((length for _, length in lengths), default=0) or 1.0
        for label, length in lengths:
            wide = (WIDTH - left - 110) * length / longest
            parts.append(_text(left - 8, y + 11, label, "end", 11))
            parts.append(_box(left, y, wide, 13, COLOURS[g % len(COLOURS)]))
            parts.append(_text(left + wide + 6, y + 11, f"{length:,.4g} {unit}", size=11))
            y += 17
        y += 12
    return _page(title, parts, [], height=round(y) + 10)


def _height(share: float) -> float:
    """The y of a value, as its share of the scale."""
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * max(0.0, share)


def _curve(number: int, points: Sequence[tuple[float, float]], told: Sequence[str]) -> list[str]:
    """A series: its points, each a distance from the left and a share of the scale, with what each tells."""
    colour, placed = COLOURS[number % len(COLOURS)], [(LEFT + 10 + x, _height(share)) for x, share in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    dots = [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"><title>{escape(text)}</title></circle>'
        for (x, y), text in zip(placed, told, strict=True)
    ]
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>', *dots]


def _mark(share: float, label: str) -> str:
    y = _height(share)
    return _line(LEFT, y, WIDTH - 20, y, "#ddd") + _text(LEFT - 8, y + 4, label, "end", 11)


def _box(x: float, y: float, width: float, height: float, colour: str, told: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"'
    return f"<rect {place}><title>{escape(told)}</title></rect>" if told else f"<rect {place}/>"


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 13) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _page(title: str, parts: Sequence[str], legend: Sequence[str], height: int = HEIGHT) -> str:
    keys, x = list[str](), float(LEFT)
    for s, name in enumerate(legend):
        keys.append(_box(x, HEIGHT - 22, 12, 12, COLOURS[s % len(COLOURS)]))
        keys.append(_text(x + 18, HEIGHT - 11, name))
        x += 40 + 8 * len(name)
    body = "\n".join([_text(WIDTH / 2, 26, title, "middle", 16), *parts, *keys])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'fill="#222"><rect width="{WIDTH}" height="{height}" fill="white"/>\n{body}\n</svg>\n'
    )
