"""What commands print: tables and facts, with whatever text the data holds shown as text."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

console = Console(stderr=True)
out = Console()

_CONTROLS = ("Cc", "Cs", "Zl", "Zp")  # control characters, lone surrogates, line and paragraph separators
_TURNS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: object) -> str:
    """Writes ``str(text)`` with what would steer a terminal, or turn the order of what is read, as Python writes it.

    ``printable("a\\x1b]0;b") == "a\\\\x1b]0;b"``; letters of every script stay.
    """
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in _CONTROLS or c in _TURNS else c
        for c in str(text)
    )


def say(label: str, style: str, text: str) -> None:
    """Writes a labelled message to standard error; its own line breaks stay."""
    message = Text(label, style=style, end="")
    lines = "\n".join(map(printable, text.split("\n")))
    console.print(Text.assemble(message, " ", lines), soft_wrap=True, highlight=False)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str | None = None) -> None:
    """Prints a table on standard output: first column left, the rest right aligned.

    Nothing is ever cut: where lines between the columns leave too little room, there are none, and where columns
    without lines do not fit either, each row is a block of lines, a name and a value each.
    """
    cells = [[Text(printable(cell)) for cell in row] for row in (columns, *rows)]
    widths = [max(row[i].cell_len for row in cells) for i in range(len(columns))]
    heading = None if title is None else Text(printable(title))
    if sum(widths) + 3 * len(widths) + 1 <= out.width:
        _print_columns(cells, Table(title=heading, title_justify="left"))
    elif sum(widths) + 2 * (len(widths) - 1) <= out.width:
        plain = Table(title=heading, title_justify="left", box=None, padding=(0, 1), pad_edge=False)
        _print_columns(cells, plain)
    else:
        if title is not None:
            print_line(title)
        for row in rows:
            print_line("")
            print_facts({str(column): cell for column, cell in zip(columns, row, strict=True)})


def _print_columns(cells: Sequence[Sequence[Text]], table: Table) -> None:
    for i, name in enumerate(cells[0]):
        table.add_column(name, justify="right" if i else "left")
    for row in cells[1:]:
        table.add_row(*row)
    out.print(table)


def print_facts(facts: Mapping[str, object]) -> None:
    """Prints name and value per line, aligned."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        print_line(f"{name:<{width}}  {value}")


def print_line(text: str) -> None:
    """Prints one line on standard output."""
    out.print(Text(printable(text)), highlight=False)
