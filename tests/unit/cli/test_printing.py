"""Tables of commands: whatever the width of the terminal, no cell is cut."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from outcrop.cli import printing

CELL = st.text("abcxyz0123456789.-", min_size=1, max_size=12)


def printed(width: int, columns: list[str], rows: list[list[str]], title: str | None = None) -> list[str]:
    console, before = Console(width=width, file=io.StringIO()), printing.out
    printing.out = console
    try:
        printing.print_table(columns, rows, title)
    finally:
        printing.out = before
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@given(
    width=st.integers(26, 200),
    table=st.integers(1, 9).flatmap(
        lambda n: st.lists(st.lists(CELL, min_size=n, max_size=n), min_size=2, max_size=5)
    ),
)
def test_no_cell_is_cut(width: int, table: list[list[str]]) -> None:
    """Each row as a line where it fits, with or without lines between columns; else as lines of a name and a value."""
    columns, rows = [f"c{i}{cell}"[:12] for i, cell in enumerate(table[0])], table[1:]
    lines = printed(width, columns, rows, "T")
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    cells = [re.split(r"[\s│┃]+", line.strip(" │┃")) for line in lines]
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    if sum(widths) + 2 * (len(widths) - 1) <= width:
        assert [row for row in cells if row in [columns, *rows]] == [columns, *rows]
        ruled = sum(widths) + 3 * len(widths) + 1 <= width
        assert any("│" in line for line in lines) == ruled
    else:
        assert [row for row in cells if len(row) == 2] == [
            [name, cell] for row in rows for name, cell in zip(columns, row, strict=True)
        ]


def prediction(hardware: str, mode: str, seconds: float) -> dict[str, Any]:
    parts = ("disk_seconds", "bus_seconds", "host_seconds", "compute_seconds")
    return {
        "hardware": hardware,
        "mode": mode,
        "epoch_seconds": 1e3 * seconds,
        "bound": "compute",
        **{part: seconds * (0.7 + 0.1 * i) for i, part in enumerate(parts)},
        "bytes_read": int(seconds * 3e9),
        "exact": seconds < 1,
        "cost": 12_345.0,
        "samples_per_s_and_unit": 12.3456,
    }


@pytest.mark.parametrize(("machine", "is_a_table"), [("machine-a", True), ("a rather long name", False)])
def test_advice_is_read_at_80_columns(machine: str, is_a_table: bool) -> None:
    rows = [
        prediction(h, m, s) for h in ("here", machine) for m in ("packed", "online") for s in (0.0123, 1.2345)
    ]
    result = {
        "predictions": rows,
        "currency": "EUR",
        "fresh": {"spooled": 1.0, "epochs": 2, "preparing": 0.5},
        "disk_curve": {},
        "changes": [],
        "assumptions": [],
    }
    script = "import json, sys; from outcrop.cli.advise import summarize; summarize(json.load(sys.stdin))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(result),
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in done.stdout
    for row in rows:
        of_batch = ["8.61", "35.2 MiB"] if row["exact"] else ["864", "~3.4 GiB"]
        wanted = [row["hardware"], row["mode"], f"{row['epoch_seconds']:.2f} s", "compute", *of_batch]
        found = [
            line for line in lines if all(re.search(rf"(?<!\S){re.escape(w)}(?!\S)", line) for w in wanted)
        ]
        assert len(found) == 1 if is_a_table else all(w in done.stdout for w in wanted), wanted
