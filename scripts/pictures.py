"""Draws the pictures of the documentation, docs/pictures/*.svg.

    python scripts/pictures.py           writes them
    python scripts/pictures.py --check   says which would change, and ends with status 1

The pictures say what ARCHITECTURE.md says in words; nothing in them is to scale. tests/docs/test_pictures.py compares
the files with this script, and asks a browser whether every text fits its box.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
DISK, MEMORY, WORK = "disk", "memory", "work"
_STYLE = """
  text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #24292f }
  .head { font-size: 14px; font-weight: 600 }
  .lane { font-size: 14px; font-weight: 600; fill: #57606a }
  .soft { fill: #57606a }
  .disk { fill: #dce9f9; stroke: #5b84b1 }
  .memory { fill: #dff2e1; stroke: #5f9e68 }
  .work { fill: #fff; stroke: #8c959f }
  .arrow { stroke: #57606a; stroke-width: 1.5; fill: none; marker-end: url(#tip) }
  .rule { stroke: #d0d7de }
"""


class Picture:
    """Collects the elements of one SVG of ``width`` x ``height`` units."""

    def __init__(self, width: int, height: int, title: str):
        self.width, self.height, self.title = width, height, title
        self._parts: list[str] = []

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def box(
        self, x: float, y: float, width: float, height: float, head: str, lines: Sequence[str], kind: str
    ) -> None:
        """A box with a heading and lines of text, all centred, in the colour of ``kind``."""
        self._parts.append(
            f'<g class="box"><rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" class="{kind}"/>'
        )
        top = y + height / 2 - 8 * len(lines) + 5
        self.text(x + width / 2, top, head, "head", "middle")
        for row, line in enumerate(lines, 1):
            self.text(x + width / 2, top + 2 + 16 * row, line, "", "middle")
        self._parts.append("</g>")

    def arrow(self, *points: tuple[float, float]) -> None:
        path = "L".join(f"{x:g} {y:g}" for x, y in points)
        self._parts.append(f'<path d="M{path}" class="arrow"/>')

    def rule(self, y: float) -> None:
        self._parts.append(f'<path d="M20 {y:g}H{self.width - 20}" class="rule"/>')

    def legend(self, y: float) -> None:
        x = 20.0
        for kind, text in ((DISK, "on disk"), (MEMORY, "in memory, inside the budget"), (WORK, "work")):
            self._parts.append(
                f'<rect x="{x:g}" y="{y - 11:g}" width="16" height="14" rx="3" class="{kind}"/>'
            )
            self.text(x + 22, y, text, "soft")
            x += 60 + 7 * len(text)

    def svg(self) -> str:
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        tip = '<path d="M0 0L8 4L0 8z" fill="#57606a"/>'
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{escape(self.title)}</title>\n'
            f"<style>{_STYLE}</style>\n"
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto">{tip}</marker></defs>\n'
            f'<rect width="{self.width}" height="{self.height}" rx="8" fill="#fff"/>\n'
        )
        return head + "\n".join(self._parts) + "\n</svg>\n"


def way_of_a_row() -> Picture:
    """From the features on disk to the rows of a mini-batch, prepared and while batches are drawn."""
    p = Picture(900, 560, "The way of a row: from the features on disk to the mini-batch that trains")
    p.text(20, 34, "Prepare, once (mode packed)", "lane")
    p.box(20, 50, 160, 70, "neighbor lists", ["of the graph"], DISK)
    p.box(240, 50, 170, 70, "sample", ["which nodes does", "each batch have?"], WORK)
    p.box(470, 50, 190, 70, "plan", ["counts every row; the most", "wanted go into the cache"], WORK)
    p.box(20, 140, 160, 70, "features", ["a row for each node,", "in the order of ids"], DISK)
    p.box(
        240,
        140,
        420,
        70,
        "pack",
        [
            "reads the features once, from front to back, and writes each row",
            "into every batch that wants it and has it not cached",
        ],
        WORK,
    )
    p.box(720, 140, 160, 70, "records", ["one for each batch:", "structure, then rows"], DISK)
    p.arrow((180, 85), (240, 85))
    p.arrow((410, 85), (470, 85))
    p.arrow((565, 120), (565, 140))
    p.arrow((180, 175), (240, 175))
    p.arrow((660, 175), (720, 175))
    p.rule(230)
    p.text(20, 258, "Train (mode packed)", "lane")
    p.box(20, 274, 160, 70, "records", ["of the batches to come"], DISK)
    p.box(240, 274, 170, 70, "read", ["one large request", "for each batch"], WORK)
    p.box(
        470, 274, 190, 70, "batch buffer", ["rows spread out in place;", "cached rows fill the gaps"], MEMORY
    )
    p.box(720, 274, 160, 70, "batch.x", ["a view of the buffer,", "or a copy on the GPU"], MEMORY)
    p.arrow((180, 309), (240, 309))
    p.arrow((410, 309), (470, 309))
    p.arrow((660, 309), (720, 309))
    p.rule(364)
    p.text(20, 392, "Train with nothing prepared (mode online)", "lane")
    p.box(20, 408, 160, 70, "features", ["and neighbor lists"], DISK)
    p.box(
        240, 408, 170, 70, "draw hop by hop", ["new nodes ask for their", "rows, the next hop begins"], WORK
    )
    p.box(
        470,
        408,
        190,
        70,
        "batch buffer",
        ["rows arrive in their places;", "awaited when all are asked"],
        MEMORY,
    )
    p.box(720, 408, 160, 70, "batch.x", ["as above"], MEMORY)
    p.arrow((180, 443), (240, 443))
    p.arrow((410, 443), (470, 443))
    p.arrow((660, 443), (720, 443))
    p.box(470, 500, 190, 40, "cache of hot rows", [], MEMORY)
    p.arrow((565, 500), (565, 478))
    p.legend(524)
    return p


def where_the_budget_goes() -> Picture:
    """Who takes from ``--memory``, in which order, while preparing and while training."""
    p = Picture(900, 552, "Where the memory budget goes: who takes from it, and in which order")
    lanes: list[tuple[str, list[tuple[int, str, list[str]]]]] = [
        ("Prepare: sample", [
            (120, "I/O engine", ["request buffers"]),
            (160, "node ids", ["of the splits"]),
            (240, "sampler", ["as many batches at a time", "as there is room for"]),
            (340, "neighbor lists", ["all, if they fit in their part;", "else they are mapped, or read by pages"]),
        ]),
        ("Prepare: pack", [
            (120, "I/O engine", ["request buffers"]),
            (240, "tables", ["which rows each batch", "wants"]),
            (500, "a chunk of the features", ["every batch takes its rows from it;", "then the next chunk is read"]),
        ]),
        ("Train, mode packed", [
            (120, "I/O engine", ["request buffers"]),
            (270, "2 to 4 batch buffers", ["rows and structure of a batch each,", "at most half of the budget"]),
            (120, "fixed costs", ["tables, scratch"]),
            (350, "cache of rows", ["what is left, for the rows that", "the batches want most often"]),
        ]),
        ("Train, mode online", [
            (120, "I/O engine", ["request buffers"]),
            (220, "drawing", ["node ids, sampler, neighbor", "lists or a part of them"]),
            (220, "2 or 3 batch buffers", ["for the largest batch of", "an epoch drawn ahead"]),
            (300, "cache of rows and lists", ["what is left, for whatever saves", "the most reads"]),
        ]),
    ]  # fmt: skip
    y = 34
    for name, parts in lanes:
        p.text(20, y, name, "lane")
        x = 20.0
        for width, head, lines in parts:
            p.box(x, y + 12, width, 74, head, lines, MEMORY)
            x += width
        y += 122
    p.text(
        20,
        518,
        "Reserved from left to right. The last part takes what is left, and may be small.",
        "soft",
    )
    fits = "Where another does not fit, the error names a budget that works."
    p.text(20, 536, f"{fits} On top come the interpreter, torch and the model (allow 384 MiB).", "soft")
    return p


PICTURES = {"way-of-a-row": way_of_a_row, "where-the-budget-goes": where_the_budget_goes}


def main(arguments: list[str]) -> int:
    stale = 0
    for name, draw in PICTURES.items():
        path, svg = FOLDER / f"{name}.svg", draw().svg()
        if path.is_file() and path.read_text() == svg:
            continue
        stale += 1
        if "--check" not in arguments:
            path.write_text(svg)
        print(f"{path.name}: {'differs' if '--check' in arguments else 'is new'}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
