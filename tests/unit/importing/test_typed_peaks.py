"""Graphs with types whose files are twenty times the budget: it holds, and the process outgrows no Parquet file."""

from __future__ import annotations

import ctypes
import gc
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import torch
from torch_geometric.data import HeteroData

import outcrop as oc
from foreign_types import ForeignTypes, write_graphbolt, write_igb
from outcrop.importing.graph import import_graph
from outcrop.store.graph import Graph
from support import new_runtime
from table_oracle import standardised

MEMORY = 2 << 20
FILES = 20 * MEMORY
PAPERS, AUTHORS, LINKS = 10_000, 400, 60_000
RELATION = ("author", "writes", "paper")


@dataclass(frozen=True)
class Written:
    """Says what was written, and what the graph is to have.

    Attributes:
        source: Where it is.
        edges: int64 [2, E] by edge type, as they are listed, each once.
        rows: float32 by node type.
        types: Which types are asked for.
    """

    source: str
    edges: dict[tuple[str, str, str], np.ndarray]
    rows: dict[str, np.ndarray]
    types: Literal["all"] | None = None


def links() -> np.ndarray:
    """Draws distinct pairs of an author and a paper, in any order."""
    codes = np.random.default_rng(0).choice(AUTHORS * PAPERS, LINKS, replace=False)
    return np.stack([codes // PAPERS, codes % PAPERS])


def table_of(width: int, rows: int = PAPERS) -> np.ndarray:
    """Makes numbers of few digits, float32 [rows, width]."""
    numbers = np.arange(rows * width, dtype=np.int64) * 7919 % 1009
    return (numbers / 8).astype(np.float32).reshape(rows, width)


def made(width: int) -> ForeignTypes:
    rows = {"paper": table_of(width), "author": np.ones((AUTHORS, width), np.float32)}
    labels, order = np.arange(PAPERS) % 5 * 1.0, np.arange(PAPERS)
    parts: dict[str, np.ndarray] = dict(
        zip(("train", "valid", "test"), np.split(order, [6000, 8000]), strict=True)
    )
    sizes = {"author": AUTHORS, "paper": PAPERS}
    return ForeignTypes(sizes, rows, {"paper": labels}, {"paper": parts}, {RELATION: links().T})


def igb(folder: Path, form: str) -> Written:
    graph = made(1024)
    write_igb(folder, graph, raw="raw" in form)
    return Written(f"igb:{folder}", {RELATION: links()}, graph.features, "all")


def graphbolt(folder: Path, form: str) -> Written:
    graph = made(1024)
    write_graphbolt(folder, graph, form=form.split()[-1])
    return Written(f"graphbolt:{folder}", {RELATION: links()}, graph.features)


def hetero_data(folder: Path, _: str) -> Written:
    data, graph = HeteroData(), made(1024)
    for name, rows in graph.features.items():
        data[name].x = torch.from_numpy(rows)
    data[RELATION].edge_index = torch.from_numpy(links())
    folder.mkdir()
    torch.save(data, folder / "data.pt")
    return Written(f"pyg:{folder / 'data.pt'}", {RELATION: links()}, graph.features)


def ntriples(folder: Path, _: str) -> Written:
    """Names and triples between entities are held; between them are literals, which are left out."""
    folder.mkdir()
    pairs = np.unique(links()[:, :4000] % 300, axis=1)
    story = "word " * 2300
    lines = [f'<x:{a}> <x:o#writes> <x:{b}> .\n<x:{a}> <x:o#says> "{story}" .\n' for a, b in pairs.T.tolist()]
    (folder / "all.nt").write_text("".join(lines))
    numbers = {end: number for number, end in enumerate(dict.fromkeys(pairs.T.ravel().tolist()))}
    numbered = np.array([[numbers[end] for end in row] for row in pairs.tolist()])
    return Written(f"ntriples:{folder}", {("entity", "writes", "entity"): numbered}, {})


def tables(folder: Path, form: str, words: int = 160) -> Written:
    """Papers with columns of numbers and a text that is left out; who wrote them is a table of links."""
    folder.mkdir()
    width, count, text = 10, 2 * PAPERS, "a long story " * words
    cells, ends = table_of(width, count), links()
    papers = pa.table(
        {
            "id": np.arange(count) * 3 + 1,
            **{f"x{i}": cells[:, i].astype(np.float64) for i in range(width)},
            "story": pa.array([f"{text}{i}" for i in range(count)]),
        }
    )
    authors = pa.table({"id": np.arange(AUTHORS) * 5})
    wrote = pa.table({"author": ends[0] * 5, "paper": ends[1] * 3 + 1})
    named = {"author": authors, "paper": papers, "wrote": wrote}
    if form == "sqlite":
        write_sqlite(folder / "base.sqlite", named)
        source = f"tables:{folder / 'base.sqlite'}"
    else:
        for name, table in named.items():
            write_table(folder / f"{name}.{form}", table)
        (folder / "tables.toml").write_text(
            "".join(
                f'[[tables]]\nname = "{n}"\nfile = "{n}.{form}"\nkey = "id"\n' for n in ("author", "paper")
            )
            + f'[[links]]\nfile = "wrote.{form}"\nsource = "author"\nrelation = "writes"\ntarget = "paper"\n'
        )
        source = f"tables:{folder}"
    key = RELATION if form != "sqlite" else ("author", "wrote", "paper")
    return Written(source, {key: ends}, {"paper": standardised(cells.T.tolist())})


def write_table(path: Path, table: pa.Table) -> None:
    if path.suffix == ".csv":
        pa_csv.write_csv(table, path)
    else:
        pq.write_table(table, path, compression="none", use_dictionary=False)


def write_sqlite(path: Path, named: dict[str, pa.Table]) -> None:
    with closing(sqlite3.connect(path)) as base, base:
        for name, table in named.items():
            columns = ", ".join(
                f"{column} {'TEXT' if column == 'story' else 'REAL' if column[0] == 'x' else 'INTEGER'}"
                + (" PRIMARY KEY" if column == "id" else f" REFERENCES {column}" if name == "wrote" else "")
                for column in table.column_names
            )
            if name == "wrote":
                columns += ", PRIMARY KEY (author, paper)"
            base.execute(f"CREATE TABLE {name} ({columns})")
            slots = ", ".join("?" * len(table.column_names))
            cells = zip(*(column.to_pylist() for column in table.columns), strict=True)
            base.executemany(f"INSERT INTO {name} VALUES ({slots})", cells)


def resident(name: str) -> int:
    """Returns bytes of the process by their name in /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def begin_peak() -> bool:
    """Lets the highest resident size begin anew, without what was freed; False where the system does not allow that."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def read(graph: Graph, name: str) -> np.ndarray:
    return graph.array(new_runtime(), name).read("test")


CASES: list[tuple[Callable[[Path, str], Written], str]] = [
    (igb, "igb"),
    (igb, "igb, raw"),
    (graphbolt, "graphbolt, numpy"),
    (graphbolt, "graphbolt, torch"),
    (ntriples, "ntriples"),
    (tables, "csv"),
    (tables, "parquet"),
    (tables, "sqlite"),
    (hetero_data, "HeteroData"),
]


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(("write", "form"), CASES, ids=[form for _, form in CASES])
def test_files_twenty_times_the_budget(
    tmp_path: Path, write: Callable[[Path, str], Written], form: str
) -> None:
    if write is tables:  # what Arrow's readers take for good, once in a process
        small = tables(tmp_path / "small", form, words=1)
        import_graph(small.source, tmp_path / "small.oc", new_runtime(MEMORY))
    written = write(tmp_path / "in", form)
    size = sum(path.stat().st_size for path in (tmp_path / "in").rglob("*") if path.is_file())
    assert size >= FILES
    runtime, measured, before = new_runtime(MEMORY), begin_peak(), resident("VmRSS")
    graph = import_graph(written.source, tmp_path / "g.oc", runtime, oc.ImportConfig(types=written.types))
    grown = resident("VmHWM") - before
    assert runtime.budget.peak_bytes <= MEMORY
    for key, pairs in written.edges.items():
        order = np.lexsort(pairs)
        assert np.array_equal(graph.edge_index(key), pairs[:, order])
    for name, rows in written.rows.items():
        assert np.allclose(read(graph, graph.node_type(name).array("features")), rows, atol=1e-5)
    if measured and form == "parquet":
        assert grown < size  # whole row groups made it 1.5 times the size
