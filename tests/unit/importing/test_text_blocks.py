"""Text tables in blocks that end where rows do, against Python's csv module."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outcrop as oc
from artifact_support import child_environment
from outcrop.errors import FormatError
from outcrop.importing.sources.table_files import TextForm, open_table
from outcrop.importing.sources.tables import trimmed

CELLS = st.text(st.sampled_from('ab1,";\n\r é'), max_size=9)


def columns_of(path: Path, size: int, form: TextForm | None = None) -> list[list[str]]:
    table = open_table(path, form)
    rows: list[list[str]] = []
    for batch in table._batches(list(table.columns), size, 1 << 20, pa.string()):
        rows += [list(row) for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
    return rows


@given(
    st.lists(st.tuples(CELLS, CELLS), max_size=30),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.booleans(),
    st.integers(64, 400),
)
def test_rows_are_those_of_the_csv_module(tmp_path_factory, rows, end, quoting, ended, size):
    """Cells that hold delimiters, quotes and ends of lines, in blocks that end within them."""
    path, out = tmp_path_factory.getbasetemp() / "t.csv", io.StringIO(newline="")
    if quoting == csv.QUOTE_MINIMAL:  # puts no quotes around ends of lines but its own
        rows = [tuple(cell.replace("\r", "").replace("\n", "") for cell in row) for row in rows]
    writer = csv.writer(out, lineterminator=end, quoting=quoting)
    writer.writerow(["name", "of"])
    writer.writerows(rows)
    text = out.getvalue()
    path.write_bytes((text if ended else text.removesuffix(end)).encode())
    read = list(csv.reader(io.StringIO(text, newline="")))
    assert columns_of(path, size, TextForm(header=True)) == [row for row in read[1:] if row]


@pytest.mark.parametrize("size", [24, 57, 1000])
def test_quotes_within_cells_are_letters(tmp_path, size):
    """As for Arrow: a quote begins a cell, or it means nothing."""
    path = tmp_path / "t.csv"
    path.write_text('name,of\n5" pipe,1\n"a, b"\n'.replace('"a, b"\n', '"a, b",2\n') + 'x"y"z,3\n' * 20)
    expected = [['5" pipe', "1"], ["a, b", "2"], *20 * [['x"y"z', "3"]]]
    assert columns_of(path, size, TextForm(header=True)) == expected


@pytest.mark.parametrize("size", [16, 33, 500])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_encodings(tmp_path, encoding, size):
    path = tmp_path / "t.csv"
    path.write_bytes("näme,of\n".encode(encoding) + "é,ü\n".encode(encoding.removesuffix("-sig")) * 50)
    form = TextForm(header=True, encoding=encoding.removesuffix("-sig"))
    assert columns_of(path, size, form) == 50 * [["é", "ü"]]


@pytest.mark.parametrize("size", [16, 33, 500])
def test_lines_before_the_header_and_short_ones(tmp_path, size):
    path = tmp_path / "t.csv"
    path.write_text("a,b,c\n" + "1,2,3\n4\n\n5,6\n" * 20)
    form = TextForm(header=True, fill_short=True)
    assert columns_of(path, size, form) == 20 * [["1", "2", "3"], ["4", "", ""], ["5", "6", ""]]


@pytest.mark.parametrize("line", ["x" * 3000, '"' + "x\n" * 1500 + '"', '"' + "x\n" * 1500])
def test_a_line_that_is_too_long_is_named(tmp_path, line):
    path = tmp_path / "t.csv"
    path.write_text(f"name,of\na,1\n{line},2\n" + "b,3\n" * 2000)
    with pytest.raises(
        FormatError, match=r"t\.csv has a line of more than the 1000 bytes .*: shorten it, or give"
    ):
        columns_of(path, 1000)


def test_a_bad_cell_is_found_behind_rows_of_several_lines(tmp_path):
    (tmp_path / "nodes.csv").write_text(
        "id,text,label\n" + '1,"two\nlines",0\n' + '2,"a\n\nb",1\n' + "3,c,x\n"
    )
    (tmp_path / "edges.csv").write_text("src,dst\n1,2\n2,3\n")
    (tmp_path / "tables.toml").write_text(DECLARED)
    with pytest.raises(oc.OutcropError, match=r"nodes\.csv, line 7, column 'label': 'x' is no"):
        oc.import_graph(f"tables:{tmp_path}", tmp_path / "g.oc", progress=False)


DECLARED = """
[[tables]]
name = "node"
file = "nodes.csv"
key = "id"
features = ["label"]

[[links]]
file = "edges.csv"
source = "node"
relation = "to"
target = "node"
"""
PEAK = """
import resource, sys
import outcrop as oc
oc.import_graph(sys.argv[1], sys.argv[2], memory="64MiB", progress=False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""


def peak_mib(folder: Path, rows: int, cell: int, first: int) -> int:
    """Peak of a process that imports ``rows`` nodes, each with ``cell`` letters that are no features."""
    folder.mkdir()
    text = "lorem ipsum " * (cell // 12)
    with (folder / "nodes.csv").open("w") as file:
        file.write("id,text,label\n")
        for row in range(rows):
            file.write(f"{row * 3 + first},{text},{row % 2}\n")
    (folder / "edges.csv").write_text("src,dst\n" + f"{first},{first + 3}\n")
    (folder / "tables.toml").write_text(DECLARED)
    ended = subprocess.run(
        [sys.executable, "-c", PEAK, f"tables:{folder}", str(folder / "g.oc")],
        env=child_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout)


def test_memory_does_not_grow_with_a_file_of_wide_cells(tmp_path):
    """120 MB in blocks of a few rows: neither read ahead, nor held by the ids that stay."""
    small = peak_mib(tmp_path / "small", 500, 6000, 7)
    large = peak_mib(tmp_path / "large", 20_000, 6000, 7)
    assert large < small + 40, (small, large)


def test_blanks_are_those_of_python():
    """Every character that UTF-8 has, alone and around a word."""
    letters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assert trimmed(pa.array(letters)).to_pylist() == [letter.strip() for letter in letters]
    blanks = "".join(letter for letter in letters if letter.isspace())
    assert trimmed(pa.array([f"{blanks}a b{blanks}", None])).to_pylist() == ["a b", None]
