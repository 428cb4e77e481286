"""Rows of edges: imported in the order of the neighbor lists, against sorting in NumPy; within the budget, counted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import outcrop as oc
from artifact_support import manifest_at
from outcrop import _core
from outcrop.importing.graph import import_graph
from outcrop.importing.sources import features
from outcrop.store.graph import Graph, open_graph
from outcrop.store.verify import verify_artifact
from support import new_runtime

TORTURED = True
DTYPES = ("float32", "float16", "int8", "uint8", "int64", "float64", "bool")


def imported(source: Any, out: Path, memory: int | str | None = None, **options: Any) -> Graph:
    with new_runtime(memory) as runtime:
        return import_graph(source, out, runtime, oc.ImportConfig(**options))


def read(graph: Graph, name: str) -> np.ndarray:
    with new_runtime("1GiB") as runtime:
        return graph.array(runtime, name).read("test")


def some_rows(count: int, dtype: str, dim: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2 if dtype == "bool" else 100, (count, dim)).astype(dtype)


def kept(edges: np.ndarray, *, duplicates: bool = True, loops: bool = True, both: bool = False) -> np.ndarray:
    """Numbers of the edges int64 [2, E] that are stored, in their order: by (target, source, number)."""
    numbers = np.arange(edges.shape[1])
    if both:
        again = numbers[edges[0] != edges[1]]
        numbers, edges = np.concatenate([numbers, again]), np.concatenate([edges, edges[::-1, again]], axis=1)
    if not loops:
        there = edges[0] != edges[1]
        numbers, edges = numbers[there], edges[:, there]
    order = np.lexsort((numbers, edges[0], edges[1]))
    numbers, edges = numbers[order], edges[:, order]
    if not duplicates and len(numbers):
        first = np.concatenate([[True], (np.diff(edges) != 0).any(axis=0)])
        numbers = numbers[first]
    return numbers


def stored(rows: np.ndarray) -> np.ndarray:
    return rows.astype(np.uint8) if rows.dtype == np.bool_ else rows


@st.composite
def typed(draw: st.DrawFn) -> tuple[list[int], list[dict[str, Any]]]:
    """Draws sizes of node types, and edge types with rows or without; some types are empty, edges repeat."""
    sizes = draw(st.lists(st.sampled_from([0, 1, 2, 5, 9]), min_size=1, max_size=3))
    types = []
    for number in range(draw(st.integers(1, 4))):
        source, target = (draw(st.integers(0, len(sizes) - 1)) for _ in range(2))
        count = draw(st.integers(0, 60)) if sizes[source] and sizes[target] else 0
        rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
        edges = np.stack([rng.integers(0, max(sizes[end], 1), count) for end in (source, target)])
        width = draw(st.none() | st.tuples(st.sampled_from(DTYPES), st.integers(1, 5)))
        types.append(
            {
                "ends": (source, target),
                "edges": edges,
                "rows": None if width is None else some_rows(count, *width, number),
                "weights": rng.random(count).astype(np.float32) if draw(st.booleans()) else None,
                "reverse": draw(st.booleans()),
            }
        )
    return sizes, types


def write_folder(folder: Path, sizes: list[int], types: list[dict[str, Any]]) -> None:
    folder.mkdir()
    text = "".join(f'[[nodes]]\nname = "t{i}"\nnum_nodes = {size}\n' for i, size in enumerate(sizes))
    for r, of in enumerate(types):
        source, target = of["ends"]
        np.save(folder / f"{r}.npy", of["edges"].T)
        text += (
            f'[[edges]]\nsource = "t{source}"\nrelation = "r{r}"\ntarget = "t{target}"\nfile = "{r}.npy"\n'
        )
        for key in ("rows", "weights"):
            if of[key] is not None:
                np.save(folder / f"{r}-{key}.npy", of[key])
                text += f'{"features" if key == "rows" else key} = "{r}-{key}.npy"\n'
        text += "reverse = true\n" if of["reverse"] else ""
    (folder / "graph.toml").write_text(text)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(typed(), st.sampled_from([None, True, False]), st.booleans(), st.booleans())
def test_rows_are_those_of_their_edges(tmp_path, graph, duplicates, loops, origins):
    sizes, types = graph
    if not any(sizes):
        return
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    write_folder(tmp_path / "in", sizes, types)
    options = {"keep_duplicates": duplicates, "keep_self_loops": loops, "edge_origins": origins}
    made = imported(f"arrays:{tmp_path / 'in'}", tmp_path / "g.oc", **options)
    both_ways = [(of, of["edges"], of["ends"]) for of in types] + [
        (of, of["edges"][::-1], of["ends"][::-1]) for of in types if of["reverse"]
    ]
    weights = []
    for one, (of, edges, ends) in zip(made.edge_types, both_ways, strict=True):
        keep = duplicates is True or (duplicates is None and (origins or of["rows"] is not None))
        numbers = kept(edges, duplicates=keep, loops=loops or ends[0] != ends[1])
        assert np.array_equal(made.edge_index(one), edges[:, numbers])
        if origins:
            assert np.array_equal(made.edge_origins(one), numbers)
        has = one.array("features") in made.manifest.arrays
        assert has == (of["rows"] is not None)
        if has:
            rows = read(made, one.array("features"))
            assert rows.dtype == stored(of["rows"]).dtype
            assert np.array_equal(rows, stored(of["rows"])[numbers])
        if of["weights"] is not None:
            weights.append(of["weights"][numbers])
    if weights:
        assert np.array_equal(read(made, "edge_weight"), np.concatenate(weights))
    with new_runtime() as runtime:
        verify_artifact(made.path, runtime)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("duplicates", [None, True, False])
def test_origins_of_a_graph_without_types(tmp_path, reverse, duplicates):
    """In blocks of 16 KiB within the budget; batches lead back to what was imported."""
    edges = pairs(200_000, 5000)
    options = {"reverse": reverse, "keep_duplicates": duplicates, "keep_self_loops": False}
    given = {"edges": edges, "features": np.zeros((5000, 1), np.float32)}
    graph = imported(given, tmp_path / "g.oc", "6MiB", edge_origins=True, **options)
    numbers = kept(edges.T, duplicates=duplicates is not False, loops=False, both=reverse)
    assert np.array_equal(graph.edge_origins(), numbers)
    assert not graph.has_edge_rows
    with new_runtime() as runtime:
        verify_artifact(graph.path, runtime)
    loader = oc.pyg.NeighborLoader(
        graph, num_neighbors=[3], batch_size=500, input_nodes=np.arange(5000), edge_ids=True, shuffle=False
    )
    for batch in loader:
        ends = np.sort(edges[graph.edge_origins()[batch.e_id.numpy()]], axis=1)
        assert np.array_equal(ends, np.sort(batch.n_id.numpy()[batch.edge_index.numpy().T], axis=1))


def test_origins_must_have_been_kept(tmp_path):
    graph = imported({"edges": pairs(50), "num_nodes": 60}, tmp_path / "g.oc")
    with pytest.raises(oc.FormatError, match=r"g\.oc does not know .* edge_origins \(--edge-origins\)"):
        graph.edge_origins()


def permuted(
    tmp_path: Path, runtime: Any, rows: np.ndarray, numbers: np.ndarray, memory: int, slots: int = 1
) -> tuple[np.ndarray, Any, Any]:
    """Puts rows in order with numbers that stand behind three others; returns them, the file and the statistics."""
    np.concatenate([np.full(3, -1), numbers]).astype(np.int64).tofile(tmp_path / "numbers.bin")
    permuter = _core.RowPermuter(
        runtime.io,
        runtime.budget,
        runtime.workers,
        scratch_folder=str(tmp_path),
        numbers_path=str(tmp_path / "numbers.bin"),
        first=3,
        count=len(numbers),
        num_rows=len(rows),
        row_bytes=rows.shape[1],
        slots=slots,
        memory_bytes=memory,
    )
    for part in np.array_split(rows, 7):
        permuter.add(part.reshape(-1), len(part))
    file = permuter.finish(str(tmp_path / "out.bin"))
    out = np.fromfile(tmp_path / "out.bin", np.uint8, len(numbers) * rows.shape[1]).reshape(-1, rows.shape[1])
    return out, file, permuter.stats


@pytest.mark.exact_io
@pytest.mark.parametrize("row_bytes", [1, 3, 64, 404, 4096, 10_000])
@pytest.mark.parametrize("factor", [0, 1, 20])
def test_rows_beyond_memory_are_read_and_written_twice(tmp_path, row_bytes, factor):
    """``factor``: bytes of rows, in sizes of the memory; 0: all are put in order in memory."""
    rng = np.random.default_rng(row_bytes)
    memory = 512 << 10
    count = (factor * memory or 100_000) // row_bytes + 1
    rows = rng.integers(0, 256, (count, row_bytes), np.uint8)
    numbers = rng.permutation(count)[: count - count // 10]  # every tenth edge was dropped
    if factor == 0:
        memory = _core.RowPermuter.most_memory(len(numbers), row_bytes)
    with new_runtime() as runtime:
        runtime.budget.empty("nothing", 1)
        held = runtime.budget.peak_bytes
        before = runtime.io.counters
        out, file, stats = permuted(tmp_path, runtime, rows, numbers, memory)
        after = runtime.io.counters
        assert runtime.budget.peak_bytes - held <= memory
    assert np.array_equal(out, rows[numbers])
    assert (stats.buckets == 1) == (factor == 0)
    spilled = stats.sort.spilled_bytes
    places = 8 * count
    buckets = (4 + row_bytes) * len(numbers) if stats.buckets > 1 else 0
    pages = -(-len(numbers) * row_bytes // 4096)
    sums = -(-4 * pages // 4096) * 4096
    assert after.read_bytes - before.read_bytes == 8 * len(numbers) + spilled + places + buckets
    assert after.write_bytes - before.write_bytes == spilled + places + buckets + 4096 * pages + sums
    assert file.data_bytes == len(numbers) * row_bytes


def test_a_row_may_be_wanted_twice_and_least_memory_is_enough(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (5000, 100), np.uint8)
    numbers = rng.permutation(np.repeat(np.arange(5000), rng.integers(0, 3, 5000)))
    least = _core.RowPermuter.least_memory(len(numbers), 100)
    with new_runtime() as runtime:
        out, _, stats = permuted(tmp_path, runtime, rows, numbers, least, slots=2)
        assert np.array_equal(out, rows[numbers])
        assert stats.buckets > 1
        with pytest.raises(oc.BudgetError, match=f"needs at least {least}|{least}"):
            permuted(tmp_path, runtime, rows, numbers, least - 1, slots=2)
        with pytest.raises(oc.FormatError, match="wanted more than 1 times"):
            permuted(tmp_path, runtime, rows, numbers, least)
        numbers[7] = 5000
        with pytest.raises(oc.FormatError, match=r"numbers.bin names row 5000, there are 5000"):
            permuted(tmp_path, runtime, rows, numbers, least, slots=3)


def pairs(count: int, nodes: int = 60) -> np.ndarray:
    return np.random.default_rng(3).integers(0, nodes, (count, 2))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("duplicates", [None, True, False])
@pytest.mark.parametrize("loops", [False, True])
def test_rows_of_a_graph_without_types(tmp_path, reverse, duplicates, loops):
    """Nothing else of the graph changes; both directions of an edge have its row."""
    edges, rows = pairs(3000), some_rows(3000, "int16", 5, 0)
    given = {"edges": edges, "edge_features": rows, "edge_weight": np.arange(3000), "num_nodes": 60}
    options = {"reverse": reverse, "keep_duplicates": duplicates, "keep_self_loops": loops}
    graph = imported(given, tmp_path / "g.oc", **options)
    numbers = kept(edges.T, duplicates=duplicates is not False, loops=loops, both=reverse)
    assert np.array_equal(read(graph, "e0.features"), rows[numbers])
    assert np.array_equal(read(graph, "edge_weight"), numbers.astype(np.float32))
    assert not graph.is_typed
    assert graph.manifest.version == 1
    assert [(file.kind, file.array) for file in graph.row_files] == [("edges", "e0.features")]
    with new_runtime() as runtime:
        verify_artifact(graph.path, runtime)
    del given["edge_features"]
    options["keep_duplicates"] = duplicates is not False
    without = imported(given, tmp_path / "w.oc", **options)
    for name, spec in without.manifest.arrays.items():
        assert graph.manifest.arrays[name] == spec


@pytest.mark.parametrize("edges_as", ["npy", "csv"])
@pytest.mark.parametrize("rows_as", ["npy", "csv", "parquet"])
def test_rows_in_files(tmp_path, edges_as, rows_as):
    edges, rows = pairs(500), some_rows(500, "float32", 3, 1)
    folder = tmp_path / "in"
    folder.mkdir()
    if edges_as == "npy":
        np.save(folder / "edges.npy", edges)
    else:
        pa_csv.write_csv(pa.table({"src": edges[:, 0], "dst": edges[:, 1]}), folder / "edges.csv")
    table = pa.table({f"c{i}": rows[:, i] for i in range(3)})
    if rows_as == "npy":
        np.save(folder / "edge_features.npy", rows)
    elif rows_as == "csv":
        pa_csv.write_csv(table, folder / "edge_features.csv")
    else:
        pq.write_table(table, folder / "edge_features.parquet")
    graph = imported(f"arrays:{folder}", tmp_path / "g.oc")
    assert np.array_equal(read(graph, "e0.features"), rows[kept(edges.T)])
    again = oc.import_graph(f"arrays:{folder}", tmp_path / "h.oc", progress=False)
    assert again.digest() == graph.digest()
    with pytest.raises(oc.ArgumentError, match="drop_duplicates"):
        oc.import_graph(
            f"arrays:{folder}", tmp_path / "h.oc", oc.ImportConfig(keep_duplicates=False), progress=False
        )


def big(
    tmp_path: Path, *, typed: bool, width: int, count: int = 30_000
) -> tuple[str, np.ndarray, np.ndarray]:
    """``count`` edges whose rows are ``4 * width`` bytes."""
    folder = tmp_path / "in"
    folder.mkdir()
    edges = np.random.default_rng(1).integers(0, 2000, (count, 2))
    rows = np.random.default_rng(2).standard_normal((count, width)).astype(np.float32)
    names = ("e.npy", "x.npy") if typed else ("edges.npy", "edge_features.npy")
    for name, array in zip(names, (edges, rows), strict=True):
        np.save(folder / name, array)
    if typed:
        (folder / "graph.toml").write_text(
            '[[nodes]]\nname = "a"\nnum_nodes = 2000\n[[edges]]\nsource = "a"\nrelation = "r"\n'
            'target = "a"\nfile = "e.npy"\nfeatures = "x.npy"\n'
        )
    return f"arrays:{folder}", edges, rows


@pytest.mark.parametrize("typed", [False, True])
def test_rows_of_twenty_budgets_stay_within_one(tmp_path, typed):
    source, edges, rows = big(tmp_path, typed=typed, width=700)
    memory = rows.nbytes // 20
    with new_runtime(memory) as runtime:
        graph = import_graph(source, tmp_path / "g.oc", runtime, oc.ImportConfig(num_nodes=None))
        assert runtime.budget.peak_bytes <= memory
    assert np.array_equal(read(graph, "e0.features"), rows[kept(edges.T)])


@pytest.mark.exact_io
@pytest.mark.parametrize("typed", [False, True])
def test_an_import_makes_four_passes_over_the_rows(tmp_path, typed, monkeypatch):
    """Two reads and two writes; beside them there are a few bytes for each edge.

    There are so many edges that they and their numbers are sorted on disk, whatever the engine leaves of the budget.
    """
    source, edges, rows = big(tmp_path, typed=typed, width=175, count=120_000)
    handed_out, original = [], features.array_blocks

    def counted(*arguments: Any) -> Any:
        for block in original(*arguments):
            handed_out.append(block.nbytes)
            yield block

    monkeypatch.setattr(features, "array_blocks", counted)

    def import_counted(out: str) -> tuple[int, int]:
        with new_runtime(rows.nbytes // 20) as runtime:
            import_graph(source, tmp_path / out, runtime, oc.ImportConfig(keep_duplicates=True))
            return runtime.io.counters.read_bytes, runtime.io.counters.write_bytes

    with_rows = import_counted("g.oc")
    assert sum(handed_out) == rows.nbytes
    if typed:
        path = tmp_path / "in" / "graph.toml"
        path.write_text(path.read_text().replace('features = "x.npy"', ""))
    else:
        (tmp_path / "in" / "edge_features.npy").unlink()
    reads, writes = np.subtract(with_rows, import_counted("w.oc")).tolist()
    count = len(edges)
    pages = -(-rows.nbytes // 4096)
    numbers, places, tags = 8 * count, 8 * count, 4 * count
    sorting = (8 + 16) * count  # edges are sorted with their numbers; these are sorted back to places
    assert reads == numbers + places + sorting + tags + rows.nbytes  # the source's own are those handed out
    padded = 4096 * (-(-numbers // 4096) + pages + -(-4 * pages // 4096))
    assert writes == places + sorting + tags + rows.nbytes + padded


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_the_smallest_budget_that_is_named_works(tmp_path, typed, reverse):
    source, edges, rows = big(tmp_path, typed=typed, width=300)
    config = oc.ImportConfig(reverse=reverse)
    with pytest.raises(oc.BudgetError) as caught:
        oc.import_graph(source, tmp_path / "g.oc", config, memory="1MiB", progress=False)
    smallest = caught.value.smallest
    assert smallest is not None
    graph = oc.import_graph(source, tmp_path / "g.oc", config, memory=smallest, progress=False)
    numbers = kept(edges.T, both=reverse and not typed)
    assert np.array_equal(read(graph, "e0.features"), rows[numbers])
    with pytest.raises(oc.BudgetError):
        oc.import_graph(source, tmp_path / "h.oc", config, memory=smallest - 4096, progress=False)


def folder_of(tmp_path: Path, rows: np.ndarray, count: int = 6) -> Path:
    folder = tmp_path / "in"
    folder.mkdir(exist_ok=True)
    np.save(folder / "edges.npy", pairs(count, 5))
    np.save(folder / "edge_features.npy", rows)
    return folder


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (np.zeros((5, 2)), oc.ArgumentError, r"edge_features.npy has 5 rows of features, .*in lists 6 edges"),
        (np.zeros((6, 2, 2)), oc.FormatError, r"edge_features.npy has shape \(6, 2, 2\)"),
        (np.zeros((6, 0)), oc.FormatError, r"edge_features.npy has zero feature columns"),
        (np.array([["a"]] * 6), oc.FormatError, r"edge_features.npy has elements of <U1"),
        (np.zeros((6, 2), complex), oc.FormatError, r"edge_features.npy has elements of complex128"),
        (
            np.array([[1, 2]] * 4 + [[1, np.inf]] * 2),
            oc.FormatError,
            r"edge_features.npy: row 4, column 1 is not finite as float64: .*--allow-nonfinite",
        ),
    ],
)
def test_rows_that_cannot_be_are_refused(tmp_path, rows, error, message):
    folder = folder_of(tmp_path, rows)
    with pytest.raises(error, match=message):
        imported(f"arrays:{folder}", tmp_path / "g.oc")
    assert not (tmp_path / "g.oc").exists()


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("hetero", [False, True])
def test_edge_attr_of_torch_geometric(tmp_path, saved, hetero):
    torch, data = pytest.importorskip("torch"), pytest.importorskip("torch_geometric.data")
    edges, rows = pairs(300, 40), some_rows(300, "float32", 4, 0)
    wide = {"edge_attr": torch.from_numpy(rows)}
    flat = {"edge_attr": torch.arange(300), "edge_weight": torch.ones(300)}  # one column beside weights
    index = torch.from_numpy(edges.T.copy())
    if hetero:
        graph = data.HeteroData()
        graph["a"].num_nodes = 40
        for name, values in (("wide", wide), ("flat", flat)):
            graph["a", name, "a"].edge_index = index
            graph["a", name, "a"].update(values)
        given = [graph]
    else:
        given = [data.Data(edge_index=index, num_nodes=40, **values) for values in (wide, flat)]
    found = []
    for number, graph in enumerate(given):
        if saved:
            torch.save(graph, tmp_path / f"{number}.pt")
        source = f"pyg:{tmp_path / f'{number}.pt'}" if saved else graph
        made = imported(source, tmp_path / f"{number}.oc")
        found += [read(made, file.array) for file in made.row_files]
    numbers = kept(edges.T)
    assert len(found) == 2
    assert np.array_equal(found[0], rows[numbers])
    assert found[1].dtype == np.int64
    assert np.array_equal(found[1], numbers[:, None])


def test_a_torn_file_of_rows_is_named(tmp_path):
    folder = folder_of(tmp_path, np.zeros((6, 2)))
    path = folder / "edge_features.npy"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(oc.FormatError, match=r"edge_features.npy is truncated"):
        imported(f"arrays:{folder}", tmp_path / "g.oc")
    path.unlink()
    (folder / "edge_features.csv").write_text("a,b\n1,2\n3,x\n5,6\n7,8\n9,10\n11,12\n")
    with pytest.raises(oc.FormatError, match=r"edge_features.csv.*(line|row) (2|3)"):
        imported(f"arrays:{folder}", tmp_path / "g.oc")
    path.with_suffix(".csv").write_text("a,b\n1,2\n3,4\n")
    with pytest.raises(oc.ArgumentError, match=r"edge_features.csv has 2 rows of features, .* lists 6 edges"):
        imported(f"arrays:{folder}", tmp_path / "g.oc")


def test_nan_is_kept_where_it_is_allowed(tmp_path):
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    rows[3, 1] = np.nan
    graph = imported(f"arrays:{folder_of(tmp_path, rows)}", tmp_path / "g.oc", allow_nonfinite=True)
    assert read(graph, "e0.features").tobytes() == rows[kept(pairs(6, 5).T)].tobytes()


def test_a_row_for_each_edge_of_a_matrix_is_refused(tmp_path):
    import scipy.sparse as sp

    matrix = sp.random(9, 9, 0.3, "csr")
    with pytest.raises(oc.ArgumentError, match=r"edge_features belongs to a list of edges"):
        imported({"edges": matrix, "edge_features": np.zeros((matrix.nnz, 1))}, tmp_path / "g.oc")


def test_damage_of_rows_is_found(tmp_path):
    folder = folder_of(tmp_path, some_rows(6, "uint8", 4, 0))
    graph = imported(f"arrays:{folder}", tmp_path / "g.oc")
    path = graph.path / "e0.features.bin"
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    with new_runtime() as runtime, pytest.raises(oc.ChecksumError, match=r"e0.features.bin"):
        verify_artifact(graph.path, runtime)
    path.write_bytes(data[:-1])
    with pytest.raises(oc.FormatError, match=r"e0.features.bin"):
        open_graph(graph.path)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("e0.features", [5, 4], r"array 'e0.features' has 5 rows, 6 were expected"),
        ("e1.features", [6, 4], r"array 'e1.features' is of edge type 1, there are 1"),
    ],
)
def test_a_manifest_that_lies_of_rows_is_refused(tmp_path, name, shape, message):
    graph = imported(f"arrays:{folder_of(tmp_path, some_rows(6, 'uint8', 4, 0))}", tmp_path / "g.oc")
    path = graph.path / "manifest.json"
    content = manifest_at(path)
    content["arrays"][name] = content["arrays"].pop("e0.features") | {"shape": shape}
    path.write_text(json.dumps(content))
    with pytest.raises(oc.FormatError, match=message):
        open_graph(graph.path)
