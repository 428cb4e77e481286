"""Imports to few bits: what is stored is what NumPy makes of the features, for any budget and from any source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import outcrop as oc
from outcrop.errors import ArgumentError, BudgetError, FormatError
from outcrop.runtime.progress import SilentProgress
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.store.verify import describe, verify_artifact
from quantised_reference import FEW_BITS, any_features, dequantised, stored_rows


def stored(graph: Graph, name: str = "features") -> np.ndarray:
    with Runtime() as runtime:
        return np.array(graph.array(runtime, name).memmap())


def ring(nodes: int) -> np.ndarray:
    return np.stack([np.arange(nodes), np.roll(np.arange(nodes), 1)])


def imported(x: Any, out: Path, memory: str | None = None, **options: Any) -> Graph:
    limits = None if memory is None else memory
    return oc.import_graph(
        ring(len(x)), out, features=x, config=oc.ImportConfig(**options), memory=limits, progress=False
    )


def folder_with(path: Path, x: np.ndarray) -> Path:
    path.mkdir()
    np.save(path / "edges.npy", ring(len(x)))
    np.save(path / "features.npy", x)
    return path


@pytest.mark.parametrize(("dtype", "by"), FEW_BITS)
@pytest.mark.parametrize("columns", [1, 8, 33])
def test_rows_are_those_of_numpy(tmp_path: Path, dtype: str, by: str, columns: int) -> None:
    x = any_features(np.random.default_rng(columns), 200, columns)
    graph = imported(x, tmp_path / "g.oc", feature_dtype=dtype, scale=by)
    assert np.array_equal(stored(graph), stored_rows(x, dtype, by))
    assert graph.feature_dim == columns
    assert graph.feature_bytes == stored_rows(x, dtype, by).nbytes
    with Runtime() as runtime:
        verify_artifact(graph.path, runtime)


@pytest.mark.parametrize("kind", ["int8", "int64", "uint64", "bool", "float16", "float64"])
def test_other_types_of_numbers(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    x = (rng.integers(0, 2, (50, 7)) if kind == "bool" else rng.standard_normal((50, 7)) * 100).astype(kind)
    graph = imported(x, tmp_path / "g.oc", feature_dtype="int8")
    assert np.array_equal(stored(graph), stored_rows(x, "int8", "column"))
    if kind == "bool":
        assert np.array_equal(dequantised(x, "int8", "column"), x)  # 0 and 1 stay what they are


@pytest.mark.parametrize(("dtype", "by"), FEW_BITS)
def test_a_small_budget_gives_the_same_bytes(tmp_path: Path, dtype: str, by: str) -> None:
    x = any_features(np.random.default_rng(1), 40_000, 40)  # 6 MB
    source = f"arrays:{folder_with(tmp_path / 'source', x)}"
    config = oc.ImportConfig(feature_dtype=dtype, scale=by)  # type: ignore[arg-type]
    whole = oc.import_graph(source, tmp_path / "whole.oc", config=config, progress=False)
    with pytest.raises(BudgetError) as refused:
        oc.import_graph(source, tmp_path / "none.oc", config=config, memory="100KiB", progress=False)
    smallest = refused.value.smallest
    assert smallest is not None
    for memory in (smallest, 2 << 20):
        small = oc.import_graph(
            source, tmp_path / f"{memory}.oc", config=config, memory=memory, progress=False
        )
        assert small.digest() == whole.digest()
    assert smallest < 3 << 20


def test_rows_in_another_order(tmp_path: Path) -> None:
    """A table with ids is put in order; values that are named are in its rows."""
    x, ids = any_features(np.random.default_rng(2), 100, 3), np.random.default_rng(3).permutation(100)
    folder = tmp_path / "source"
    folder.mkdir()
    np.save(folder / "edges.npy", ring(100))

    def write(values: np.ndarray) -> None:
        columns = {"id": ids} | {f"c{j}": values[ids, j] for j in range(3)}
        pq.write_table(pa.table(columns), folder / "features.parquet")

    write(x)
    for by in ("column", "row"):
        config = oc.ImportConfig(feature_dtype="uint4", scale=by)  # type: ignore[arg-type]
        graph = oc.import_graph(f"arrays:{folder}", tmp_path / f"{by}.oc", config=config, progress=False)
        assert np.array_equal(stored(graph), stored_rows(x, "uint4", by))
    x[int(ids[71]), 1] = np.nan
    write(x)
    for by in ("column", "row"):
        config = oc.ImportConfig(feature_dtype="uint4", scale=by)  # type: ignore[arg-type]
        with pytest.raises(FormatError, match=r"features.parquet.*row 71.*c1|features.parquet.*c1.*row 71"):
            oc.import_graph(f"arrays:{folder}", tmp_path / "no.oc", config=config, progress=False)
    assert not (tmp_path / "no.oc").exists()


@pytest.mark.parametrize(("value", "kind"), [(np.nan, "f4"), (np.inf, "f4"), (1e300, "f8")])
@pytest.mark.parametrize("by", ["column", "row"])
def test_what_has_no_code_is_named(tmp_path: Path, value: float, kind: str, by: Any) -> None:
    x = np.zeros((50, 4), kind)
    x[33, 2] = value
    source = f"arrays:{folder_with(tmp_path / 'source', x)}"
    config = oc.ImportConfig(feature_dtype="int8", scale=by)
    with pytest.raises(FormatError, match=r"features.npy: row 33, column 2 is not finite as float32"):
        oc.import_graph(source, tmp_path / "g.oc", config=config, progress=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feature_dtype": "int4"}, "'int4' is none of float16, bfloat16, float32, float64, int8, uint4"),
        ({"feature_dtype": "int8", "scale": "tensor"}, "scale 'tensor' is none of column, row"),
        ({"scale": "row"}, "scale 'row' is for features in few bits"),
        ({"feature_dtype": "float16", "scale": "column"}, "scale 'column' is for features in few bits"),
        ({"feature_dtype": "uint4", "allow_nonfinite": True}, "uint4 has no code for them"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        oc.ImportConfig(**options)


def test_a_graph_without_features_is_refused(tmp_path: Path) -> None:
    config = oc.ImportConfig(feature_dtype="int8")
    with pytest.raises(ArgumentError, match="a feature dtype is asked for, but the source has no features"):
        oc.import_graph(ring(5), tmp_path / "g.oc", config=config, progress=False)


class Tasks(SilentProgress):
    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def start(self, task: str, total: int, unit: str) -> None:
        self.rows[task] = 0

    def advance(self, task: str, count: int) -> None:
        self.rows[task] = self.rows.get(task, 0) + count


@pytest.mark.parametrize("by", ["column", "row"])
def test_progress_tells_of_both_passes(tmp_path: Path, by: Any) -> None:
    tasks, x = Tasks(), np.ones((30, 2), np.float32)
    config = oc.ImportConfig(feature_dtype="int8", scale=by)
    oc.import_graph(ring(30), tmp_path / "g.oc", features=x, config=config, progress=tasks)
    assert tasks.rows["features"] == 30
    assert tasks.rows.get("ranges of columns") == (30 if by == "column" else None)


def test_the_same_import_again_keeps_what_is_there(tmp_path: Path) -> None:
    source = f"arrays:{folder_with(tmp_path / 'source', np.eye(9, dtype=np.float32))}"

    def again(**options: Any) -> None:
        oc.import_graph(source, tmp_path / "g.oc", config=oc.ImportConfig(**options), progress=False)

    again(feature_dtype="int8")
    before = (tmp_path / "g.oc" / "features.bin").stat().st_ino
    again(feature_dtype="int8")
    assert (tmp_path / "g.oc" / "features.bin").stat().st_ino == before
    with pytest.raises(ArgumentError, match="scale"):
        again(feature_dtype="int8", scale="row")


@pytest.mark.parametrize("by", ["column", "row"])
def test_graphs_with_types(tmp_path: Path, by: Any) -> None:
    """All node types that have features are stored in few bits; rows of edges stay as they are."""
    rng = np.random.default_rng(0)
    paper, author = any_features(rng, 30, 5), any_features(rng, 20, 3)
    folder = tmp_path / "typed"
    folder.mkdir()
    np.save(folder / "paper.npy", paper)
    np.save(folder / "author.npy", author)
    np.save(folder / "writes.npy", np.stack([rng.integers(0, 20, 60), rng.integers(0, 30, 60)]))
    np.save(folder / "rows.npy", rng.standard_normal((60, 2)).astype(np.float32))
    (folder / "graph.toml").write_text(
        '[[nodes]]\nname = "paper"\nfeatures = "paper.npy"\n'
        '[[nodes]]\nname = "author"\nfeatures = "author.npy"\n'
        '[[nodes]]\nname = "topic"\nnum_nodes = 4\n'
        '[[edges]]\nsource = "author"\nrelation = "writes"\ntarget = "paper"\nfile = "writes.npy"\n'
        'features = "rows.npy"\n'
    )
    config = oc.ImportConfig(feature_dtype="uint4", scale=by)
    graph = oc.import_graph(f"arrays:{folder}", tmp_path / "g.oc", config=config, progress=False)
    assert graph.is_typed
    assert graph.manifest.version == 3
    for number, x in enumerate((paper, author)):
        assert np.array_equal(stored(graph, f"n{number}.features"), stored_rows(x, "uint4", by))
        assert ("quantised" in graph.manifest.attributes["node_types"][number]) is True
    assert [(rows.width, rows.dtype) for rows in graph.row_files] == [
        (5, "float32"),
        (3, "float32"),
        (2, "float32"),
    ]
    assert stored(graph, "e0.features").shape == (60, 2)
    about = describe(graph.path)["graph"]["node_types"]
    assert [(one["feature_dim"], one["feature_dtype"]) for one in about] == [
        (5, "uint4"),
        (3, "uint4"),
        (0, None),
    ]


@pytest.mark.parametrize(("dtype", "by"), [("int8", "column"), ("int8", "row"), ("uint4", None)])
@pytest.mark.parametrize("kind", ["sbm", "rmat"])
def test_generated_graphs(tmp_path: Path, dtype: str, by: Any, kind: Any) -> None:
    """The same features as in float32, quantised; the same for any budget."""
    shape = {"kind": kind, "nodes": 5000, "edges": 20_000, "features": 33, "seed": 3}
    plain = oc.generate_graph(tmp_path / "plain.oc", config=oc.GenerateConfig(**shape), progress=False)
    config = oc.GenerateConfig(**shape, dtype=dtype, scale=by)
    few = oc.generate_graph(tmp_path / "few.oc", config=config, progress=False)
    assert np.array_equal(stored(few), stored_rows(stored(plain), dtype, by or "column"))
    small = oc.generate_graph(tmp_path / "small.oc", config=config, memory="2MiB", progress=False)
    assert small.digest() == few.digest()
    assert "feature_scale" not in few.manifest.attributes


def test_what_cannot_be_generated_is_refused() -> None:
    with pytest.raises(ArgumentError, match="scale 'row' is for features in few bits: dtype int8 or uint4"):
        oc.GenerateConfig(scale="row")
    with pytest.raises(ArgumentError, match="rows of a graph of kind 'typed' are not"):
        oc.GenerateConfig(kind="typed", dtype="uint4")
    unscaled = oc.GenerateConfig(dtype="int8")
    assert not unscaled.quantises
    assert "scale" not in unscaled.stored()
