"""Charts as SVG: columns, bars, areas, lines, timelines and points, each a function of its data and a width.

Practice: bars and areas start at zero; axes have units and few, round ticks; series are named at their end, on the
drawing, and not by colour alone; the numbers are beside the drawing as a table. A chart is drawn once per width that
the page shows (wide and narrow) instead of being scaled, so that its text keeps its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outcrop.report.canvas import SMALL, Canvas, text_width
from outcrop.report.units import digits, format_value, tick_text, ticks, unit_for

_TOP, _BOTTOM = 26, 40


@dataclass(frozen=True)
class Series:
    """Holds ``values`` beside the x values of the chart; ``color`` is a class of the style sheet."""

    name: str
    color: str
    values: Sequence[float]


@dataclass(frozen=True)
class Bar:
    """Describes a bar: ``text`` stands at its end; ``detail`` is added to its tip."""

    label: str
    value: float
    color: str = "s-c0"
    text: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Span:
    lane: str
    start: float
    end: float
    color: str
    label: str = ""
    tip: str = ""


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    label: str
    chosen: bool = False


@dataclass(frozen=True)
class Reference:
    """Names a value to compare with, drawn as a dashed line."""

    label: str
    value: float


@dataclass
class Frame:
    """Holds the rectangle of the data, its scales and how x and y become positions."""

    canvas: Canvas
    left: float
    right: float
    top: float
    bottom: float
    x_low: float = 0.0
    x_high: float = 1.0
    y_low: float = 0.0
    y_high: float = 1.0

    def x(self, value: float) -> float:
        return self.left + (value - self.x_low) / ((self.x_high - self.x_low) or 1) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - (value - self.y_low) / ((self.y_high - self.y_low) or 1) * (
            self.bottom - self.top
        )


def _frame(
    width: float,
    height: float,
    kind: str,
    low: float,
    high: float,
    *,
    right: float = 12,
    bottom: float = _BOTTOM,
    y_name: str = "",
) -> Frame:
    """Draws a frame with the y axis drawn: unit at its top, grid lines at round values."""
    unit = unit_for(kind, max(abs(high), abs(low)))
    marks = ticks(low / unit.factor, high / unit.factor, most=5 if height > 180 else 3)
    step = marks[1] - marks[0]
    texts = [tick_text(m, step) for m in marks]
    left = max(text_width(t) for t in texts) + 10
    canvas = Canvas(width, height)
    frame = Frame(canvas, left, width - right, _TOP, height - bottom)
    frame.y_low, frame.y_high = marks[0] * unit.factor, marks[-1] * unit.factor
    for mark, text in zip(marks, texts, strict=True):
        y = frame.y(mark * unit.factor)
        canvas.line(left, y, frame.right, y, "axis" if mark == 0 else "grid")
        canvas.text(left - 6, y + 4, text, "tick", "end")
    name = " ".join(
        part for part in (y_name, f"({unit.name})" if y_name and unit.name else unit.name) if part
    )
    canvas.text(0, 12, name, "unit")
    return frame


def _time_axis(frame: Frame, kind: str, name: str) -> None:
    unit = unit_for(kind, frame.x_high - frame.x_low)
    room = max(2, int((frame.right - frame.left) / 80))
    marks = ticks(frame.x_low / unit.factor, frame.x_high / unit.factor, most=room)
    step = marks[1] - marks[0]
    for mark in marks:
        if frame.x_low - 1e-12 <= mark * unit.factor <= frame.x_high * (1 + 1e-9):
            x = frame.x(mark * unit.factor)
            frame.canvas.line(x, frame.bottom, x, frame.bottom + 4, "axis")
            text = tick_text(mark, step)
            middle = max(x, text_width(text) / 2)  # the first may stand at the edge of a narrow drawing
            frame.canvas.text(middle, frame.bottom + 17, text, "tick", "middle")
    suffix = f" ({unit.name})" if unit.name else ""
    frame.canvas.text((frame.left + frame.right) / 2, frame.bottom + 34, name + suffix, "unit", "middle")


def _labels_right(frame: Frame, labels: Sequence[tuple[float, str, str]]) -> None:
    """Writes names beside the ends of series, pushed apart where they would overlap."""
    placed: list[list[float | str]] = [[y, text, color] for y, text, color in sorted(labels)]
    low, gap = frame.top + 4, SMALL + 2
    for entry in placed:
        entry[0] = max(float(entry[0]), low)
        low = float(entry[0]) + gap
    high = frame.bottom + 4
    for entry in reversed(placed):
        entry[0] = min(float(entry[0]), high)
        high = float(entry[0]) - gap
    for y, text, color in placed:
        frame.canvas.rect(frame.right + 6, float(y) - 7, 8, 8, f"fill {color}")
        frame.canvas.text(frame.right + 18, float(y) + 1, str(text), "label")


def _room_for(names: Sequence[str], width: float) -> float:
    return min(max((text_width(n) for n in names), default=0) + 26, 0.42 * width)


def _reference(frame: Frame, kind: str, reference: Reference) -> None:
    y = frame.y(reference.value)
    frame.canvas.line(frame.left, y, frame.right, y, "reference")
    frame.canvas.text(
        frame.left + 4, y - 5, f"{reference.label}: {format_value(kind, reference.value)}", "label halo"
    )


def columns(
    width: float,
    labels: Sequence[str],
    series: Sequence[Series],
    *,
    kind: str,
    x_name: str,
    y_name: str = "",
    height: float = 240,
    reference: Reference | None = None,
) -> Canvas:
    """Draws stacked columns, one per label; series from the bottom up."""
    totals = [sum(s.values[i] for s in series) for i in range(len(labels))]
    high = max([*totals, reference.value if reference else 0, 1e-12])
    right = _room_for([s.name for s in series], width)
    frame = _frame(width, height, kind, 0, high, right=right, y_name=y_name)
    slot = (frame.right - frame.left) / max(len(labels), 1)
    bar = min(slot * 0.78, 64)
    every = max(1, -(-len(labels) * 34 // int(frame.right - frame.left)))
    for i, label in enumerate(labels):
        x, base = frame.left + slot * (i + 0.5), 0.0
        for s in series:
            y0, y1 = frame.y(base), frame.y(base + s.values[i])
            tip = f"{x_name} {label}, {s.name}: {format_value(kind, s.values[i])}"
            frame.canvas.rect(x - bar / 2, y1, bar, y0 - y1, f"fill {s.color}", tip, s.name)
            base += s.values[i]
        if i % every == 0:
            frame.canvas.text(x, frame.bottom + 17, label, "tick", "middle")
    frame.canvas.text((frame.left + frame.right) / 2, frame.bottom + 34, x_name, "unit", "middle")
    base, ends = 0.0, []
    for s in series:
        last = s.values[-1] if labels else 0
        ends.append((frame.y(base + last / 2), s.name, s.color))
        base += last
    _labels_right(frame, ends)
    if reference:
        _reference(frame, kind, reference)
    return frame.canvas


def bars(width: float, items: Sequence[Bar], *, kind: str, reference: Reference | None = None) -> Canvas:
    """Draws horizontal bars from zero, each with its number at the end."""
    row, top = 30, 6 if reference is None else 24
    canvas = Canvas(width, top + row * len(items) + 6)
    texts = [b.text or format_value(kind, b.value) for b in items]
    above = width < 520  # no room beside the bar: the label goes above it
    left = 0 if above else min(max((text_width(b.label, 13) for b in items), default=0) + 12, 0.45 * width)
    if above:
        row = 44
        canvas = Canvas(width, top + row * len(items) + 6)
    right = width - max((text_width(t, 14) for t in texts), default=0) - 14  # they are bold
    high = max([*(b.value for b in items), reference.value if reference else 0, 1e-12])
    ends: list[tuple[float, float, str]] = []
    for i, (bar, text) in enumerate(zip(items, texts, strict=True)):
        y = top + row * i + (16 if above else 0)
        length = (right - left) * max(bar.value, 0) / high
        canvas.text(
            *((0, y - 3) if above else (left - 8, y + 18)), bar.label, "label", "start" if above else "end"
        )
        tip = f"{bar.label}: {text}" + (f", {bar.detail}" if bar.detail else "")
        canvas.rect(left, y + 4, max(length, 0.5), 18, f"fill {bar.color}", tip, bar.label)
        ends.append((left + length + 6, y + 18, text))
    canvas.line(left, top, left, canvas.height - 4, "axis")
    if reference:
        x = left + (right - left) * reference.value / high
        canvas.line(x, 18, x, canvas.height - 4, "reference")
        text = f"{reference.label}: {format_value(kind, reference.value)}"
        anchor = "end" if x + text_width(text) / 2 > width else "middle"
        canvas.text(
            min(x, width) if anchor == "end" else max(x, text_width(text) / 2), 12, text, "label", anchor
        )
    for x, y, text in ends:
        canvas.text(x, y, text, "value halo")
    return canvas


def area(
    width: float,
    xs: Sequence[float],
    series: Sequence[Series],
    *,
    kind: str,
    x_kind: str,
    x_name: str,
    y_name: str = "",
    height: float = 260,
    reference: Reference | None = None,
) -> Canvas:
    """Draws stacked steps over time; what was seen holds until the next look."""
    totals = [sum(s.values[i] for s in series) for i in range(len(xs))]
    high = max([*totals, reference.value if reference else 0, 1e-12])
    right = _room_for([s.name for s in series], width)
    frame = _frame(width, height, kind, 0, high, right=right, y_name=y_name)
    frame.x_low, frame.x_high = xs[0], max(xs[-1], xs[0] + 1e-9)
    base, ends = [0.0] * len(xs), []
    for s in series:
        top = [b + v for b, v in zip(base, s.values, strict=True)]
        outline = _steps(frame, xs, top) + _steps(frame, xs, base)[::-1]
        tip = f"{s.name}: at most {format_value(kind, max(s.values))}, at the end {format_value(kind, s.values[-1])}"
        frame.canvas.path(outline, f"fill {s.color}", tip, s.name, close=True)
        middle = max(range(len(xs)), key=lambda i, s=s: s.values[i])
        at = len(xs) - 1 if s.values[-1] > 0.5 * max(s.values) else middle
        ends.append((frame.y(base[at] + s.values[at] / 2), s.name, s.color))
        base = top
    _time_axis(frame, x_kind, x_name)
    _labels_right(frame, ends)
    if reference:
        _reference(frame, kind, reference)
    return frame.canvas


def _steps(frame: Frame, xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
    points: list[tuple[float, float]] = []
    for x, y in zip(xs, ys, strict=True):
        if points:
            points.append((frame.x(x), points[-1][1]))
        points.append((frame.x(x), frame.y(y)))
    return points


def lines(
    width: float,
    xs: Sequence[float],
    series: Sequence[Series],
    *,
    kind: str,
    x_kind: str,
    x_name: str,
    y_name: str = "",
    height: float = 220,
    zero: bool = True,
    reference: Reference | None = None,
    best: float | None = None,
    dots: bool | None = None,
    moment: Reference | None = None,
) -> Canvas:
    """Draws lines over x; each value a dot where there are few. NaN leaves a gap.

    Args:
        best: An x to point out.
        moment: An x at which something happens, which its label names.
    """
    values = [v for s in series for v in s.values if v == v]
    low = 0 if zero else min(values, default=0)
    high = max([*values, reference.value if reference else low], default=1)
    if not zero:
        margin = 0.08 * (high - low or 1)
        low, high = low - margin if low - margin > 0 or low < 0 else 0, high + margin
        if kind == "share":
            high = min(high, 1.0)
    right = _room_for([s.name for s in series], width)
    frame = _frame(width, height, kind, low, max(high, low + 1e-12), right=right, y_name=y_name)
    frame.x_low, frame.x_high = xs[0], xs[-1] if xs[-1] > xs[0] else xs[0] + 1
    ends = []
    show = len(xs) <= 60 if dots is None else dots
    for s in series:
        known = [(x, v) for x, v in zip(xs, s.values, strict=True) if v == v]
        if not known:
            continue
        points = [(frame.x(x), frame.y(v)) for x, v in known]
        tip = None if show else f"{s.name}: {format_value(kind, known[-1][1])} at the end"
        frame.canvas.path(points, f"stroke {s.color}", tip, s.name)
        if show:
            for (x, v), (px, py) in zip(known, points, strict=True):
                big = best is not None and x == best
                tip = f"{x_name} {digits_or_int(x)}, {s.name}: {format_value(kind, v)}" + (
                    " (best)" if big else ""
                )
                frame.canvas.dot(
                    px, py, 5 if big else 3, f"fill {s.color}" + (" best" if big else ""), tip, s.name
                )
        ends.append((points[-1][1], s.name, s.color))
    if moment is not None:
        x = frame.x(moment.value)
        frame.canvas.line(x, frame.top, x, frame.bottom, "moment")
        right_of = x + text_width(moment.label) + 8 < frame.right
        frame.canvas.text(
            x + (5 if right_of else -5),
            frame.bottom - 8,
            moment.label,
            "label halo",
            "start" if right_of else "end",
        )
    if x_kind == "epoch":
        _epoch_axis(frame, xs, x_name)
    else:
        _time_axis(frame, x_kind, x_name)
    _labels_right(frame, ends)
    if reference:
        _reference(frame, kind, reference)
    return frame.canvas


def digits_or_int(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else digits(value)


def _epoch_axis(frame: Frame, xs: Sequence[float], name: str) -> None:
    every = max(1, -(-len(xs) * 34 // int(frame.right - frame.left)))
    for x in xs[::every]:
        frame.canvas.text(frame.x(x), frame.bottom + 17, digits_or_int(x), "tick", "middle")
    frame.canvas.text((frame.left + frame.right) / 2, frame.bottom + 34, name, "unit", "middle")


def timeline(width: float, lanes: Sequence[str], spans: Sequence[Span], *, x_name: str) -> Canvas:
    """Draws when what was at work: a lane per stage, a rectangle per span, times from the earliest on."""
    row, narrow = 30, width < 520
    top = 8 + (14 if narrow else 0)
    row += 14 if narrow else 0
    canvas = Canvas(width, top + row * len(lanes) + _BOTTOM)
    left = 4 if narrow else max(text_width(lane, 13) for lane in lanes) + 14
    frame = Frame(canvas, left, width - 14, top, top + row * len(lanes))
    start = min((s.start for s in spans), default=0.0)
    frame.x_low, frame.x_high = 0.0, max((s.end for s in spans), default=1.0) - start
    for i, lane in enumerate(lanes):
        y = top + row * i
        canvas.line(left, y + 26, frame.right, y + 26, "grid")
        canvas.text(
            *((0, y - 2) if narrow else (left - 8, y + 18)), lane, "label", "start" if narrow else "end"
        )
    for span in spans:
        y = top + row * lanes.index(span.lane) + 3
        x0, x1 = frame.x(span.start - start), frame.x(span.end - start)
        canvas.rect(x0, y, max(x1 - x0, 1.5), 21, f"fill {span.color}", span.tip, span.lane)
        if span.label and x1 - x0 > text_width(span.label, 11) + 4:
            canvas.text((x0 + x1) / 2, y + 15, span.label, "inside", "middle")
    _time_axis(frame, "seconds", x_name)
    return canvas


def points(
    width: float,
    items: Sequence[Point],
    *,
    x_kind: str,
    x_name: str,
    y_kind: str,
    y_name: str,
    height: float = 280,
    reference: Reference | None = None,
) -> Canvas:
    """Draws one dot per alternative, the chosen one larger and named. ``reference``: a limit on x."""
    frame = _frame(width, height, y_kind, 0, max(p.y for p in items), right=20, y_name=y_name)
    highest = max([*(p.x for p in items), reference.value if reference else 0])
    frame.x_low, frame.x_high = 0.0, highest * 1.05 or 1.0
    _time_axis(frame, x_kind, x_name)
    if reference:
        x = frame.x(reference.value)
        frame.canvas.line(x, frame.top, x, frame.bottom, "reference")
        frame.canvas.text(
            x - 5,
            frame.top + 10,
            f"{reference.label}: {format_value(x_kind, reference.value)}",
            "label",
            "end",
        )
    for point in sorted(items, key=lambda p: p.chosen):
        tip = f"{point.label}: {format_value(x_kind, point.x)}, {format_value(y_kind, point.y)}" + (
            " (chosen)" if point.chosen else ""
        )
        frame.canvas.dot(
            frame.x(point.x),
            frame.y(point.y),
            7 if point.chosen else 4,
            f"fill s-c{1 if point.chosen else 0}",
            tip,
            point.label,
        )
        if point.chosen:
            right = frame.x(point.x) < (frame.left + frame.right) / 2
            frame.canvas.text(
                frame.x(point.x) + (11 if right else -11),
                frame.y(point.y) - 8,
                f"chosen: {point.label}",
                "label halo",
                "start" if right else "end",
            )
    return frame.canvas
