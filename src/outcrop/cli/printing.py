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
    """``str(text)`` with what would steer a terminal, or turn the order of what is read, as Python writes it.

    ``printable("a\\x1b]0;b") == "a\\\\x1b]0;b"``; letters of every script stay.
    """
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in _CONTROLS or c in _TURNS else c
        for c in str(text)
    )


def say(label: str, style: str, text: str) -> None:
    """A labelled message on standard error; its own line breaks stay."""
    message = Text(label, style=style, end="")
    lines = "\n".join(map(printable, text.split("\n")))
    console.print(Text.assemble(message, " ", lines), soft_wrap=True, highlight=False)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str | None = None) -> None:
    """A table on standard output: first column left, the rest right aligned."""
    table = Table(title=None if title is None else Text(printable(title)), title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(Text(printable(column)), justify="right" if i else "left")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    out.print(table)


def print_facts(facts: Mapping[str, object]) -> None:
    """Name and value per line, aligned."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        print_line(f"{name:<{width}}  {value}")


def print_line(text: str) -> None:
    """One line on standard output."""
    out.print(Text(printable(text)), highlight=False)
