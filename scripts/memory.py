"""Writes the tables of docs/memory.md, from the parts in src/outcrop/runtime/memory_tables.py.

    .venv/bin/python scripts/memory.py           writes them
    .venv/bin/python scripts/memory.py --check   says whether they would change, and ends with status 1

They stand between the lines ``<!-- parts -->`` and ``<!-- end -->`` (tests/docs/test_memory.py).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from outcrop.runtime.memory_tables import ACTIVITIES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "memory.md"
BEGIN, END = "<!-- parts -->", "<!-- end -->"


def tables() -> Iterator[str]:
    """Lines of a table for each activity."""
    for activity in ACTIVITIES.values():
        yield f"\n### {activity.name[0].upper()}{activity.name[1:]}\n"
        yield "| part | how much | what it is for |\n| --- | --- | --- |"
        for part in activity.parts:
            name = f"in {part.within}: {part.name}" if part.within else part.name
            yield f"| {name} | {part.rule} | {part.purpose} |"


def wanted() -> str:
    """The page with these tables."""
    return re.sub(
        f"{BEGIN}.*{END}",
        lambda _: f"{BEGIN}\n" + "\n".join(tables()) + f"\n\n{END}",
        PAGE.read_text(),
        flags=re.DOTALL,
    )


def main(arguments: list[str]) -> int:
    page = wanted()
    stale = PAGE.read_text() != page
    if stale and "--check" not in arguments:
        PAGE.write_text(page)
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
