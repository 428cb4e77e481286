"""Data sets of the Open Graph Benchmark that were made to exhaust whoever reads them: refused early, in the budget."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import outcrop as oc
from foreign_layouts import foreign_graph, write_gzip
from foreign_layouts import write_ogb_arrays as write_arrays
from foreign_layouts import write_ogb_text as write_text
from foreign_types import foreign_types
from foreign_types import write_ogb_arrays as write_typed_arrays
from foreign_types import write_ogb_text as write_typed_text
from outcrop.importing.graph import import_graph
from outcrop.importing.sources.gzip_tables import GzipTable
from support import held_bytes, new_runtime

TORTURED = True
LINES = 900_000
BUDGET = 4 << 20
WAYS = (write_text, write_arrays, write_typed_text, write_typed_arrays)


def bomb(path: Path, text: bytes = b"1\n") -> None:
    """Writes 900 thousand lines, a few kilobytes."""
    path.write_bytes(gzip.compress(text * LINES, 9))


def write(way: Callable[..., Path], folder: Path) -> Path:
    """Writes a small data set in one of the layouts."""
    typed = way in (write_typed_text, write_typed_arrays)
    return way(folder, foreign_types() if typed else foreign_graph())


def member_bomb(path: Path, name: str) -> None:
    """Replaces a member by 2 MB of zeros, deflated; the others stay."""
    with np.load(path) as found:
        arrays: dict[str, Any] = dict(found)
    arrays[name] = np.zeros(1 << 18, np.int64)
    np.savez_compressed(path, **arrays)


@dataclass
class Inflated:
    """Counts what is inflated.

    Attributes:
        size: Bytes that gzip and zipfile gave.
        blocks: Files of which Arrow gave a block, as often as it did.
        opened: Files whose lines were looked at, as often as that was.
    """

    size: int = 0
    blocks: list[Path] = field(default_factory=list)
    opened: list[Path] = field(default_factory=list)


@pytest.fixture
def inflated(monkeypatch: pytest.MonkeyPatch) -> Inflated:
    """Counts what is inflated."""
    found = Inflated()

    def count_bytes(of: type, name: str) -> None:
        before = getattr(of, name)

        def counted(self: Any, *args: Any) -> Any:
            got = before(self, *args)
            found.size += got if isinstance(got, int) else len(got)
            return got

        monkeypatch.setattr(of, name, counted)

    def batches(self: GzipTable, *args: Any) -> Iterator[pa.RecordBatch]:
        for batch in of_arrow(self, *args):
            found.blocks.append(self.path)
            yield batch

    def opened(self: GzipTable) -> Any:
        found.opened.append(self.path)
        return open_text(self)

    def opened_as_utf8(self: GzipTable) -> Any:
        found.opened.append(self.path)
        return open_utf8(self)

    of_arrow, open_text, open_utf8 = GzipTable._batches, GzipTable._open, GzipTable._open_utf8
    for name in ("read", "read1", "readline"):
        count_bytes(gzip.GzipFile, name)
    for name in ("read", "readinto"):
        count_bytes(zipfile.ZipExtFile, name)
    monkeypatch.setattr(GzipTable, "_batches", batches)
    monkeypatch.setattr(GzipTable, "_open", opened)
    monkeypatch.setattr(GzipTable, "_open_utf8", opened_as_utf8)
    return found


def refused(folder: Path, kind: type[Exception], match: str) -> None:
    runtime, out = new_runtime(BUDGET), folder.parent / "g.oc"
    with pytest.raises(kind, match=match):
        import_graph(f"ogb:{folder}", out, runtime)
    assert runtime.budget.peak_bytes <= BUDGET
    assert held_bytes(runtime) == 0
    assert not out.exists()


CITES = "paper___cites___paper"


@pytest.mark.parametrize(
    ("way", "name"),
    [
        (write_text, "raw/num-node-list.csv.gz"),
        (write_text, "raw/num-edge-list.csv.gz"),
        (write_typed_text, f"raw/relations/{CITES}/num-edge-list.csv.gz"),
    ],
)
def test_a_list_of_one_number_is_read_as_far_as_its_second(tmp_path, way, name, inflated):
    folder = write(way, tmp_path / "ogbn_x")
    bomb(folder / name)
    refused(folder, oc.ArgumentError, rf"{Path(name).name} lists several graphs; a data set of one graph")
    assert folder / name not in inflated.blocks
    assert inflated.size < 40_000  # the small files


def test_a_list_of_nothing_but_lines_is_refused_as_soon(tmp_path, inflated):
    folder = write(write_text, tmp_path / "ogbn_x")
    bomb(folder / "raw/num-node-list.csv.gz", b"\n\n")
    refused(folder, oc.FormatError, r"num-node-list\.csv\.gz holds no number at its beginning")
    assert inflated.size < 40_000  # the small files


@pytest.mark.parametrize(
    ("way", "file", "name"),
    [
        (write_arrays, "data", "num_nodes_list"),
        (write_arrays, "data", "num_edges_list"),
        (write_typed_arrays, "num_nodes_dict", "paper"),
        (write_typed_arrays, "num_edges_dict", CITES),
    ],
)
def test_a_member_of_one_number_is_refused_by_its_header(tmp_path, way, file, name, inflated):
    folder = write(way, tmp_path / "ogbn_x")
    member_bomb(folder / f"raw/{file}.npz", name)
    refused(folder, oc.ArgumentError, rf"{file}\.npz member '{name}' lists 262144 graphs; a data set of one")
    assert inflated.size < 40_000  # the small files


@pytest.mark.parametrize("way", [write_typed_arrays, write_arrays])
def test_a_member_that_promises_the_impossible(tmp_path, way):
    """2^62 times 2^62 numbers, in 136 bytes."""
    file, name = ("edge_index_dict", CITES) if way is write_typed_arrays else ("data", "edge_index")
    folder = write(way, tmp_path / "ogbn_x")
    path = folder / f"raw/{file}.npz"
    with np.load(path) as found:
        arrays = dict(found)
    del arrays[name]
    np.savez(path, **arrays)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"shape": (1 << 62, 1 << 62), "fortran_order": False, "descr": "<i8"}
    )
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{name}.npy", header.getvalue() + bytes(8))
    promised = len(header.getvalue()) + (1 << 127)
    refused(
        folder,
        oc.FormatError,
        rf"^[^\n]*{file}\.npz member '{name}' has 136 bytes, its header promises {promised}$",
    )


def split_of(way: Callable[..., Path], folder: Path) -> Path:
    return folder / "split/time" / ("paper" if way is write_typed_text else "") / "train.csv.gz"


@pytest.mark.parametrize("way", [write_text, write_arrays, write_typed_text])
def test_a_split_longer_than_there_are_nodes_is_not_read_to_its_end(tmp_path, way, inflated):
    """61 ids of 60 nodes are one too many, whichever follow: one block to find it, one for the message."""
    folder = write(way, tmp_path / "ogbn_x")
    path = split_of(way, folder)
    bomb(path, b"3\n")
    refused(
        folder,
        oc.ArgumentError,
        r"train\.csv\.gz, line 61: split train lists node 3 twice, first in .*line 1:",
    )
    assert inflated.blocks.count(path) == 2


def test_a_line_without_an_end_is_not_read_to_its_end(tmp_path, inflated):
    """16 MB of digits behind the first line, in 16 KB."""
    folder = write(write_text, tmp_path / "ogbn_x")
    (folder / "raw/edge.csv.gz").write_bytes(gzip.compress(b"1,2\n" + bytes([49]) * (1 << 24)))
    refused(
        folder, oc.FormatError, r"edge\.csv\.gz has a line of more than the \d+ bytes that are read at a time"
    )
    assert inflated.size < 2 << 20


@pytest.mark.parametrize("way", [write_text, write_typed_text])
def test_ids_of_a_split_are_in_the_budget(tmp_path, way, inflated):
    """7 MB of ids, of as many nodes."""
    folder = write(way, tmp_path / "ogbn_x")
    path = split_of(way, folder)
    bomb(path)
    (folder / "raw/node-feat.csv.gz").unlink(missing_ok=True)
    (folder / "raw/node-label.csv.gz").unlink(missing_ok=True)
    if way is write_text:
        write_gzip(folder / "raw/num-node-list.csv.gz", [LINES])
    else:
        sizes = {name: LINES if name == "paper" else size for name, size in foreign_types().sizes.items()}
        write_gzip(folder / "raw/num-node-dict.csv.gz", [list(sizes), list(sizes.values())])
        (folder / "raw/node-feat/paper/node-feat.csv.gz").unlink()
        write_gzip(folder / "raw/nodetype-has-label.csv.gz", [list(sizes), [False] * 4])
    refused(folder, oc.BudgetError, r"train\.csv\.gz")
    # Of two bytes a line; more of them than fit are not inflated.
    assert inflated.blocks.count(path) * (64 << 10) < 2 * BUDGET // 8


@pytest.mark.parametrize("way", [write_text, write_typed_text, write_arrays])
def test_a_node_that_is_often_in_a_split_is_looked_for_once(tmp_path, way, inflated):
    """The first and the last row are named, however many are between them."""
    opened = []
    for count in (3, 50):
        folder = write(way, tmp_path / f"ogbn_{count}")
        write_gzip(split_of(way, folder), [5] * count)
        refused(
            folder,
            oc.ArgumentError,
            rf"train\.csv\.gz, line {count}: split train lists node 5 twice, first in .*train\.csv\.gz, line 1: keep",
        )
        opened.append(inflated.opened.count(split_of(way, folder)))
    assert opened == [4, 4]  # one to read it, one to look for the node, one for either row


def test_a_node_that_is_often_in_a_table_of_splits_is_looked_for_once(tmp_path, monkeypatch):
    """So it is in a folder of one's own."""
    from outcrop.importing.sources.table_files import FileTable

    looked: list[int] = []
    line = FileTable._line
    monkeypatch.setattr(FileTable, "_line", lambda self, row: looked.append(row) or line(self, row))
    folder = tmp_path / "mine"
    folder.mkdir()
    np.save(folder / "edges.npy", np.array([[0, 1], [1, 2]]))
    (folder / "splits.csv").write_text("id,split\n0,train\n" + "1,train\n" * 40 + "1,test\n2,valid\n")
    with pytest.raises(
        oc.ArgumentError, match=r"line 43.*node 1 is in split train and in split test.*line 3"
    ):
        import_graph(f"arrays:{folder}", tmp_path / "g.oc", new_runtime(BUDGET))
    assert looked == [1, 41]
