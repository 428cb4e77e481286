"""SVG text: the little that charts need, escaped, with everything that carries a value marked as such.

A mark is an element with class ``mark``: it stands for one number, says it in its ``<title>`` and belongs to a series.
Colours are classes (``s-host``, ``s-c0``); the page's style sheet gives them their colours, light, dark and on paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

SMALL = 12  # font size
# Widths of characters in parts of the font size, as wide as the widest of the fonts that a page may get.
_WIDTH, _WIDE, _THIN = 0.62, 0.98, 0.38


def text_width(text: str, size: float = SMALL) -> float:
    """Returns the width that ``text`` takes at most."""
    wide = sum(c in "mwMW%—" for c in text)
    thin = sum(c in "iljtfI.,:;'|! " for c in text)
    return size * (wide * _WIDE + thin * _THIN + (len(text) - wide - thin) * _WIDTH)


class Canvas:
    """Collects elements of a drawing of ``width`` x ``height`` units, which are CSS pixels at full size."""

    def __init__(self, width: float, height: float):
        self.width, self.height = width, height
        self._parts: list[str] = []

    def raw(self, markup: str) -> None:
        self._parts.append(markup)

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        kind: str,
        tip: str | None = None,
        series: str = "",
    ) -> None:
        """Draws a rectangle; with ``tip`` it is a mark."""
        attributes = f'x="{_n(x)}" y="{_n(y)}" width="{_n(max(width, 0))}" height="{_n(max(height, 0))}"'
        self._element("rect", attributes, kind, tip, series)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self.raw(f'<line x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}" class="{kind}"/>')

    def path(
        self,
        points: Sequence[tuple[float, float]],
        kind: str,
        tip: str | None = None,
        series: str = "",
        close: bool = False,
    ) -> None:
        if points:
            data = "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points) + ("Z" if close else "")
            self._element("path", f'd="{data}"', kind, tip, series)

    def dot(
        self, x: float, y: float, radius: float, kind: str, tip: str | None = None, series: str = ""
    ) -> None:
        self._element("circle", f'cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}"', kind, tip, series)

    def text(self, x: float, y: float, text: str, kind: str = "label", anchor: str = "start") -> None:
        align = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self.raw(f'<text x="{_n(x)}" y="{_n(y)}" class="{kind}"{align}>{escape(text)}</text>')

    def _element(self, name: str, attributes: str, kind: str, tip: str | None, series: str) -> None:
        classes = kind if tip is None else f"{kind} mark"
        data = f' data-series="{escape(series)}"' if series else ""
        inside = "/>" if tip is None else f"><title>{escape(tip)}</title></{name}>"
        self.raw(f'<{name} {attributes} class="{classes}"{data}{inside}')

    def svg(self, title: str, description: str, number: str) -> str:
        """Returns the drawing; ``number`` makes its ids unique within the page."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(self.width)} {_n(self.height)}" '
            f'width="{_n(self.width)}" height="{_n(self.height)}" role="img" '
            f'aria-labelledby="{number}-t {number}-d"><title id="{number}-t">{escape(title)}</title>'
            f'<desc id="{number}-d">{escape(description)}</desc>{"".join(self._parts)}</svg>'
        )


def _n(value: float) -> str:
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text
