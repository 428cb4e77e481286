"""The page: sections of figures, each a finding, a drawing in two widths and the same numbers as a table.

One HTML file without anything from outside; a content security policy in it forbids the browser to ask for more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from outcrop.errors import IoError
from outcrop.report.canvas import Canvas
from outcrop.store import manifest as manifests

WIDE, NARROW = 700, 340
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class Table:
    """Shows a table: the first column is left, the rest right aligned.

    Attributes:
        bold: A row to point out.
        wraps: All cells are text, of any length.
        words: Columns of words, left aligned too.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: int | None = None
    wraps: bool = False
    words: Sequence[int] = ()

    def html(self, caption: str) -> str:
        text = [" class=text" if i in self.words else "" for i in range(len(self.columns))]
        head = "".join(
            f'<th scope="col"{t}>{escape(c)}</th>' for c, t in zip(self.columns, text, strict=True)
        )
        if not any(self.columns):
            head = ""
        body = "".join(
            f"<tr{' class=chosen' if i == self.bold else ''}>"
            + "".join(
                f'<th scope="row">{escape(cell)}</th>' if j == 0 else f"<td{text[j]}>{escape(cell)}</td>"
                for j, cell in enumerate(row)
            )
            + "</tr>"
            for i, row in enumerate(self.rows)
        )
        head = f"<thead><tr>{head}</tr></thead>" if head else ""
        return (
            f'<div class="scroll{" facts" if self.wraps else ""}" tabindex="0" role="region" '
            f'aria-label="{escape(caption)}"><table><caption>{escape(caption)}</caption>'
            f"{head}<tbody>{body}</tbody></table></div>"
        )


@dataclass(frozen=True)
class Figure:
    """Shows a drawing: ``title`` states the finding; ``draw`` gives the drawing for a width; ``legend``: series to
    switch on and off.
    """

    name: str
    title: str
    draw: Callable[[float], Canvas]
    description: str
    table: Table | None = None
    note: str = ""
    legend: Sequence[tuple[str, str]] = ()

    def html(self) -> str:
        drawings = "".join(
            f'<div class="{kind}">{self.draw(width).svg(self.title, self.description, f"{self.name}-{kind}")}</div>'
            for kind, width in (("wide", WIDE), ("narrow", NARROW))
        )
        buttons = "".join(
            f'<button type="button" aria-pressed="true" data-toggle="{escape(name)}"><i class="{color}"></i>'
            f"{escape(name)}</button>"
            for name, color in self.legend
        )
        legend = (
            f'<div class="legend" role="group" aria-label="Show or hide series">{buttons}</div>'
            if buttons
            else ""
        )
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        table = f'<div class="beside">{self.table.html(self.description)}</div>' if self.table else ""
        return (
            f'<figure id="{self.name}" data-chart="{self.name}"><figcaption>{escape(self.title)}</figcaption>'
            f'<div class="pair"><div class="drawing">{drawings}{legend}</div>{table}</div>{note}</figure>'
        )


@dataclass
class Section:
    """Holds a part of the page. ``parts``: figures, tables, or paragraphs of text."""

    name: str
    title: str
    parts: list[Figure | tuple[str, Table] | str] = field(default_factory=list)

    def html(self) -> str:
        inside = []
        for part in self.parts:
            if isinstance(part, Figure):
                inside.append(part.html())
            elif isinstance(part, tuple):
                inside.append(part[1].html(part[0]))
            else:
                inside.append(f"<p>{escape(part)}</p>")
        return f'<section id="{self.name}"><h2>{escape(self.title)}</h2>{"".join(inside)}</section>'


def render(
    title: str,
    subtitle: str,
    verdict: str,
    advice: str,
    tiles: Sequence[tuple[str, str, str]],
    sections: Sequence[Section],
    foot: str,
) -> str:
    """Returns the whole page. ``tiles``: name, value and remark of the numbers at the top."""
    folder = Path(__file__).parent
    style, script = (folder / "page.css").read_text(), (folder / "page.js").read_text()
    cards = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(remark)}</small></dd></div>"
        for name, value, remark in tiles
    )
    links = "".join(f'<a href="#{s.name}">{escape(s.title)}</a>' for s in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="outcrop report">
<link rel="icon" href="data:,">
<title>{escape(title)} – Outcrop report</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p class="subtitle">{escape(subtitle)}</p>
<p class="verdict">{escape(verdict)}</p>
{f'<p class="advice">{escape(advice)}</p>' if advice else ""}
<dl class="tiles">{cards}</dl>
<nav aria-label="Sections">{links}<button type="button" id="theme" hidden>Dark</button></nav>
</header>
<main>
{"".join(section.html() for section in sections)}
</main>
<footer>{escape(foot)}</footer>
<div id="tip" role="status" hidden></div>
<script>
{script}</script>
</body>
</html>
"""


def write(path: Path, text: str) -> None:
    """Writes a page or a drawing to ``path``, as a whole or not at all.

    Raises:
        IoError: The folder is missing or the file cannot be written.
    """
    if path.is_dir():
        raise IoError(21, f"{path} is a folder: name the file to write, such as {path / 'report.html'}")
    if not path.parent.is_dir():
        raise IoError(2, f"{path} cannot be written: folder {path.parent} does not exist; make it first")
    manifests.write_atomic(path, text.encode())
