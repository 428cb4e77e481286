"""Imports of features that are mostly zeros: what is chosen and stored is NumPy's, for any budget, from any source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch

import outcrop as oc
from outcrop import _core
from outcrop.errors import ArgumentError, BudgetError, FormatError
from outcrop.importing.sources.base import FeatureSource
from outcrop.importing.sparse_rows import SparseChoice, SparseRowWriter
from outcrop.runtime.progress import SilentProgress
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph
from outcrop.store.sparse_rows import SparseLayout
from outcrop.store.verify import describe, verify_artifact
from sparse_reference import bag_of_words, layout_of, mostly_zeros, same_bits, sparse_rows


def stored(graph: Graph, name: str = "features") -> np.ndarray:
    with Runtime() as runtime:
        return np.array(graph.array(runtime, name).memmap())


def delivered(graph: Graph) -> np.ndarray:
    """What loaders make of the rows, in the storage of their dtype."""
    decoder = graph.row_file.decoder
    rows = stored(graph)
    return rows if decoder is None else decoder.values(rows, _core.WorkerPool(1))


def ring(nodes: int) -> np.ndarray:
    return np.stack([np.arange(nodes), np.roll(np.arange(nodes), 1)])


def imported(x: Any, out: Path, memory: str | None = None, **options: Any) -> Graph:
    asked: dict[str, Any] = {"allow_nonfinite": True} | options
    config = oc.ImportConfig(**asked)
    return oc.import_graph(ring(x.shape[0]), out, features=x, config=config, memory=memory, progress=False)


def folder_with(path: Path, x: np.ndarray) -> Path:
    path.mkdir()
    np.save(path / "edges.npy", ring(len(x)))
    np.save(path / "features.npy", x)
    return path


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint8", "int64"])
@pytest.mark.parametrize("columns", [40, 300, 70_000])
def test_rows_are_those_of_numpy(tmp_path: Path, dtype: str, columns: int) -> None:
    x = mostly_zeros(np.random.default_rng(columns), 60, columns, 6, dtype)
    graph = imported(x, tmp_path / "g.oc")
    assert graph.manifest.attributes["sparse"] == layout_of(x)
    assert np.array_equal(stored(graph), sparse_rows(x))
    assert same_bits(delivered(graph), x)
    assert (graph.feature_dim, graph.feature_bytes) == (columns, sparse_rows(x).nbytes)
    (note,) = (note for note in graph.notes if "sparse" in note)
    row_bytes, most = sparse_rows(x).shape[1], layout_of(x)["stored"]
    assert note == (
        f"features are stored sparse: {row_bytes} bytes a row, where all values would take {columns * x.itemsize}, for "
        f"at most {most} of the {columns} values of a row are not zero"
    )
    with Runtime() as runtime:
        verify_artifact(graph.path, runtime)


def half(columns: int, most: int, rows: int = 20) -> np.ndarray:
    """float32 of which one row has ``most`` values, of different sizes, and the others one."""
    x = np.zeros((rows, columns), np.float32)
    x[:, 3] = np.arange(1, rows + 1)
    x[rows - 1, :most] = np.arange(1, most + 1)
    return x


@pytest.mark.parametrize(
    ("x", "sparse"),
    [
        # 1 + m columns and m values of 4 bytes, in 40 columns: 1 + 5 m <= 80 bytes.
        (half(40, 15), True),
        (half(40, 16), False),
        # Zeros by half, and no values in the rows.
        (np.eye(6, dtype=np.float32), True),
        (np.repeat(np.array([[1, 0]], np.float32), 5, 0), True),
        (np.ones((6, 40), np.float32), False),
        (np.zeros((6, 40), np.float32), True),
        (np.zeros((6, 1), np.float32), True),
        (np.zeros((6, 3), np.uint8), False),  # 2 of 3 bytes
        (np.zeros((6, 4), np.bool_), True),
    ],
)
def test_sparse_is_chosen_where_it_saves_half(tmp_path: Path, x: np.ndarray, sparse: bool) -> None:
    graph = imported(x, tmp_path / "g.oc")
    assert ("sparse" in graph.manifest.attributes) is sparse
    assert graph.manifest.version == (3 if sparse else 1)
    assert any("sparse" in note for note in graph.notes) is sparse
    wanted = x.view(np.uint8) if x.dtype == np.bool_ else x
    assert same_bits(delivered(graph), wanted)
    if sparse:
        assert 2 * graph.feature_bytes <= wanted.nbytes


def test_dense_and_sparse_can_be_asked_for(tmp_path: Path) -> None:
    zeros, full = bag_of_words(np.random.default_rng(0), 30, 50, 3), half(40, 40)
    dense = imported(zeros, tmp_path / "dense.oc", feature_storage="dense")
    assert dense.row_file.decoder is None
    assert same_bits(stored(dense), zeros)
    assert dense.manifest.config["feature_storage"] == "dense"
    sparse = imported(full, tmp_path / "sparse.oc", feature_storage="sparse")
    assert np.array_equal(stored(sparse), sparse_rows(full))
    assert same_bits(delivered(sparse), full)
    assert sparse.feature_bytes > full.nbytes
    (note,) = (note for note in sparse.notes if "sparse" in note)
    assert "that saves nothing: 201 bytes a row, where all values would take 160" in note
    assert "feature_storage" not in imported(zeros, tmp_path / "auto.oc").manifest.config


def test_values_are_counted_as_they_are_stored(tmp_path: Path) -> None:
    """float64 that is zero in float16; bfloat16; the raw bits of bfloat16."""
    x = mostly_zeros(np.random.default_rng(1), 50, 60, 8, "float64")
    tiny = np.where(x == 0, 1e-300, x)
    graph = imported(tiny, tmp_path / "tiny.oc", feature_dtype="float16")
    with np.errstate(over="ignore"):
        assert same_bits(delivered(graph), tiny.astype(np.float16))
    assert graph.row_file.decoder is not None
    x[np.isnan(x)] = -1  # which NaN becomes which is torch's to say
    bits = torch.from_numpy(x).bfloat16().view(torch.uint16).numpy()
    ways: list[Any] = [("made", x, {"feature_dtype": "bfloat16"}), ("raw", bits, {"bfloat16_bits": True})]
    for name, source, options in ways:
        graph = imported(source, tmp_path / f"{name}.oc", **options)
        assert graph.manifest.attributes["sparse"] == layout_of(bits, "bfloat16")
        assert same_bits(delivered(graph), bits)


def test_a_small_budget_gives_the_same_bytes(tmp_path: Path) -> None:
    """Also where values are not finite in the last block, and the smallest budget is named."""
    x = mostly_zeros(np.random.default_rng(1), 40_000, 40, 9)
    source = f"arrays:{folder_with(tmp_path / 'source', x)}"
    config = oc.ImportConfig(allow_nonfinite=True)
    whole = oc.import_graph(source, tmp_path / "whole.oc", config=config, progress=False)
    assert np.array_equal(stored(whole), sparse_rows(x))
    with pytest.raises(BudgetError) as refused:
        oc.import_graph(source, tmp_path / "none.oc", config=config, memory="100KiB", progress=False)
    smallest = refused.value.smallest
    assert smallest is not None
    for memory in (smallest, 2 << 20):
        small = oc.import_graph(
            source, tmp_path / f"{memory}.oc", config=config, memory=memory, progress=False
        )
        assert small.digest() == whole.digest()


@pytest.mark.parametrize("storage", [None, "sparse", "dense"])
@pytest.mark.parametrize("columns", [7, 20_000])
def test_the_smallest_budget_that_is_named_works(tmp_path: Path, storage: Any, columns: int) -> None:
    """Whatever is chosen in the end, of rows of any size."""
    for name, x in (
        ("zeros", bag_of_words(np.random.default_rng(0), 200, columns, 2)),
        ("full", np.random.default_rng(0).standard_normal((200, columns)).astype(np.float32)),
    ):
        source, out = f"arrays:{folder_with(tmp_path / name, x)}", tmp_path / f"{name}.oc"
        config = oc.ImportConfig(feature_storage=storage)
        with pytest.raises(BudgetError) as refused:
            oc.import_graph(source, out, config=config, memory="30KiB", progress=False)
        smallest = refused.value.smallest
        assert smallest is not None
        with pytest.raises(BudgetError):
            oc.import_graph(source, out, config=config, memory=smallest - 1, progress=False)
        graph = oc.import_graph(source, out, config=config, memory=smallest, progress=False)
        assert same_bits(delivered(graph), x)


class Tasks(SilentProgress):
    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def start(self, task: str, total: int, unit: str) -> None:
        self.rows[task] = 0

    def advance(self, task: str, amount: int) -> None:
        self.rows[task] = self.rows.get(task, 0) + amount


def test_features_that_are_full_are_read_once_and_a_block() -> None:
    """Counting ends with the first block that tells; of mostly zeros all rows are counted."""
    x = np.random.default_rng(0).standard_normal((1000, 8)).astype(np.float32)
    asked: list[int] = []

    def blocks(rows: int) -> Any:
        for at in range(0, len(x), rows):
            asked.append(at)
            yield x[at : at + rows]

    features = FeatureSource("x", x.dtype, len(x), 8, blocks)
    tasks = Tasks()
    with Runtime(progress=tasks) as runtime:
        assert SparseChoice(None, "float32", 8).count(features, runtime, 100, lambda block: block) is None
        assert asked == [0]
        assert not tasks.rows
        x[:, 1:] = 0
        layout = SparseChoice(None, "float32", 8).count(features, runtime, 100, lambda block: block)
        assert layout == SparseLayout("float32", 8, 1, None)
        assert asked == [0, *range(0, 1000, 100)]
        assert tasks.rows == {"values that are not zero": 1000}
        x[950, 1:] = 5
        assert SparseChoice(None, "float32", 8).count(features, runtime, 100, lambda block: block) is None
        assert SparseChoice("dense", "float32", 8).count(features, runtime, 100, lambda block: block) is None


def test_a_source_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    x, layout = np.ones((3, 8), np.float32), SparseLayout("float32", 8, 2, None)
    with Runtime() as runtime:
        packed = np.empty(100, np.uint8)
        writer = SparseRowWriter(layout, runtime, tmp_path, packed, "words.npy")
        with pytest.raises(FormatError, match=r"words.npy was changed while it was imported"):
            writer.append(x)


def test_sparse_matrices(tmp_path: Path) -> None:
    """Of SciPy in any form, with entries that are zero, minus zero, or there twice: as of the same rows dense."""
    rng = np.random.default_rng(0)
    x = mostly_zeros(rng, 80, 500, 9)
    x[~np.isfinite(x)] = 2
    wanted = imported(x, tmp_path / "dense.oc", feature_storage=None)
    matrix = sp.csr_matrix(x)
    for name, form in (("csr", matrix), ("csc", matrix.tocsc()), ("coo", sp.coo_array(matrix))):
        graph = imported(form, tmp_path / f"{name}.oc")
        assert np.array_equal(stored(graph), sparse_rows(x + np.float32(0)))
        assert graph.row_file.decoder is not None
    odd = sp.csr_matrix(
        (np.array([0.0, -0.0, 2.0, 3.0], np.float32), ([0, 1, 2, 2], [4, 4, 4, 4])), shape=(80, 500)
    )
    assert same_bits(delivered(imported(odd, tmp_path / "odd.oc")), odd.toarray() + np.float32(0))
    assert wanted.feature_bytes < x.nbytes // 2


def test_a_budget_below_the_dense_features_imports_a_sparse_matrix(tmp_path: Path) -> None:
    """400 MB of zeros are never made."""
    rng = np.random.default_rng(0)
    matrix: Any = sp.random(5000, 20_000, 0.0005, "csr", np.float32, rng)
    graph = imported(matrix, tmp_path / "g.oc", memory="8MiB")
    most = int(np.diff(matrix.indptr).max())
    assert graph.feature_bytes == 5000 * (2 * (1 + most) + 4 * most)
    rows = graph.row_file.decoder.values(stored(graph)[4990:], _core.WorkerPool(1))  # type: ignore[union-attr]
    assert same_bits(rows, matrix[4990:].toarray())


def test_rows_in_another_order(tmp_path: Path) -> None:
    x, ids = mostly_zeros(np.random.default_rng(2), 100, 30, 2), np.random.default_rng(3).permutation(100)
    x[~np.isfinite(x)] = 7
    folder = tmp_path / "source"
    folder.mkdir()
    np.save(folder / "edges.npy", ring(100))
    columns = {"id": ids} | {f"c{j}": x[ids, j] for j in range(30)}
    pq.write_table(pa.table(columns), folder / "features.parquet")
    graph = oc.import_graph(f"arrays:{folder}", tmp_path / "g.oc", progress=False)
    assert np.array_equal(stored(graph), sparse_rows(x))


def test_what_is_not_finite_is_named(tmp_path: Path) -> None:
    x = np.zeros((50, 40), np.float32)
    x[33, 2] = np.nan
    source = f"arrays:{folder_with(tmp_path / 'source', x)}"
    with pytest.raises(FormatError, match=r"features.npy: row 33, column 2 is not finite as float32"):
        oc.import_graph(source, tmp_path / "g.oc", progress=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feature_storage": "ell"}, "feature storage 'ell' is none of dense, sparse"),
        (
            {"feature_storage": "sparse", "feature_dtype": "int8"},
            "'sparse' keeps values, and int8 keeps codes",
        ),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        oc.ImportConfig(**options)


def test_a_graph_without_features_is_refused(tmp_path: Path) -> None:
    config = oc.ImportConfig(feature_storage="sparse")
    with pytest.raises(ArgumentError, match="'sparse' is asked for, but the source has no features"):
        oc.import_graph(ring(5), tmp_path / "g.oc", config=config, progress=False)


def test_node_types_decide_each_for_themselves(tmp_path: Path) -> None:
    """Rows of edges keep all values, also where they are zeros."""
    rng = np.random.default_rng(0)
    paper, author = bag_of_words(rng, 30, 50, 4), rng.standard_normal((20, 3)).astype(np.float32)
    folder = tmp_path / "typed"
    folder.mkdir()
    np.save(folder / "paper.npy", paper)
    np.save(folder / "author.npy", author)
    np.save(folder / "writes.npy", np.stack([rng.integers(0, 20, 60), rng.integers(0, 30, 60)]))
    np.save(folder / "rows.npy", np.zeros((60, 20), np.float32))
    (folder / "graph.toml").write_text(
        '[[nodes]]\nname = "paper"\nfeatures = "paper.npy"\n'
        '[[nodes]]\nname = "author"\nfeatures = "author.npy"\n'
        '[[nodes]]\nname = "topic"\nnum_nodes = 4\n'
        '[[edges]]\nsource = "author"\nrelation = "writes"\ntarget = "paper"\nfile = "writes.npy"\n'
        'features = "rows.npy"\n'
    )
    for storage, sparse in ((None, [True, False]), ("sparse", [True, True]), ("dense", [False, False])):
        config = oc.ImportConfig(feature_storage=storage)  # type: ignore[arg-type]
        out = tmp_path / f"{storage}.oc"
        graph = oc.import_graph(f"arrays:{folder}", out, config=config, progress=False)
        assert graph.manifest.version == (3 if any(sparse) else 2)
        for number, x in enumerate((paper, author)):
            found = stored(graph, f"n{number}.features")
            assert np.array_equal(found, sparse_rows(x) if sparse[number] else x)
        assert same_bits(stored(graph, "e0.features"), np.zeros((60, 20), np.float32))
        about = describe(graph.path)["graph"]["node_types"]
        assert [(one["feature_dim"], one["feature_dtype"]) for one in about] == [
            (50, "float32"),
            (3, "float32"),
            (0, None),
        ]
        assert ["stored_values" in one for one in about] == [*sparse, False]
        assert (
            any(note.startswith("nodes 'paper': features are stored sparse: ") for note in graph.notes)
            is (sparse[0])
        )


def test_the_same_import_again_keeps_what_is_there(tmp_path: Path) -> None:
    source = f"arrays:{folder_with(tmp_path / 'source', np.eye(9, dtype=np.float32))}"

    def again(**options: Any) -> None:
        oc.import_graph(source, tmp_path / "g.oc", config=oc.ImportConfig(**options), progress=False)

    again()
    before = (tmp_path / "g.oc" / "features.bin").stat().st_ino
    again()
    assert (tmp_path / "g.oc" / "features.bin").stat().st_ino == before
    with pytest.raises(ArgumentError, match="feature_storage"):
        again(feature_storage="dense")


class SparseTensor:
    """What ``torch_sparse.SparseTensor`` offers of a matrix."""

    def __init__(self, matrix: Any, valued: bool = True):
        self._matrix, self._valued = matrix, valued

    def csr(self) -> tuple[Any, Any, Any]:
        parts = (
            torch.from_numpy(part.astype(np.int64)) for part in (self._matrix.indptr, self._matrix.indices)
        )
        return *parts, torch.from_numpy(self._matrix.data) if self._valued else None

    def size(self, dim: int) -> int:
        return self._matrix.shape[dim]


@pytest.mark.filterwarnings("ignore:Sparse")  # torch calls forms of it beta
def test_sparse_tensors_are_rows_of_features(tmp_path: Path) -> None:
    """Of torch in every form of two dimensions, in any order, entries twice; of torch_sparse; as ``Data.x`` too."""
    from torch_geometric.data import Data, HeteroData

    x = mostly_zeros(np.random.default_rng(0), 80, 500, 9)
    x[~np.isfinite(x) | (x == 0)] = 0
    coo = torch.from_numpy(x).to_sparse()
    order = torch.randperm(coo.values().numel(), generator=torch.Generator().manual_seed(0))
    mixed = torch.sparse_coo_tensor(coo.indices()[:, order], coo.values()[order], coo.shape)
    halves = torch.sparse_coo_tensor(coo.indices().repeat(1, 2), (coo.values() / 2).repeat(2), coo.shape)
    ones = SparseTensor(sp.csr_matrix((x != 0).astype(np.float32)), valued=False)
    forms: dict[str, tuple[Any, np.ndarray]] = {
        "coo": (coo, x),
        "mixed": (mixed, x),
        "halves": (halves, x),
        "csr": (coo.to_sparse_csr(), x),
        "csc": (coo.to_sparse_csc(), x),
        "torch_sparse": (SparseTensor(sp.csr_matrix(x)), x),
        "ones": (ones, (x != 0).astype(np.float32)),
    }
    edges = ring(80)
    for name, (form, wanted) in forms.items():
        graph = oc.import_graph(edges, tmp_path / f"{name}.oc", features=form, progress=False)
        assert np.array_equal(stored(graph), sparse_rows(wanted)), name
    data = Data(x=coo, edge_index=torch.from_numpy(edges))
    graph = oc.import_graph(data, tmp_path / "data.oc", progress=False)
    assert np.array_equal(stored(graph), sparse_rows(x))
    typed = HeteroData()
    typed["paper"].x, typed["author"].x = coo, torch.ones(80, 3)
    typed["author", "writes", "paper"].edge_index = torch.from_numpy(edges)
    graph = oc.import_graph(typed, tmp_path / "typed.oc", progress=False)
    assert np.array_equal(stored(graph, f"n{graph.node_type('paper').number}.features"), sparse_rows(x))


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    ("tensor", "error", "said"),
    [
        (
            lambda: torch.eye(8).to_sparse_bsr((2, 2)),
            ArgumentError,
            r"torch.sparse_bsr\): pass features.to_sparse_csr",
        ),
        (
            lambda: torch.ones(8, 4).to_sparse(1),
            ArgumentError,
            r"torch.sparse_coo\): pass features.to_sparse_csr",
        ),
        (
            lambda: torch.ones(8, 4, 2).to_sparse(),
            FormatError,
            r"features has shape \(8, 4, 2\); a matrix is needed",
        ),
        (lambda: torch.eye(8).bfloat16().to_sparse(), ArgumentError, "features is bfloat16"),
    ],
)
def test_sparse_tensors_that_are_no_rows(tmp_path: Path, tensor: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        oc.import_graph(ring(8), tmp_path / "g.oc", features=tensor(), progress=False)
