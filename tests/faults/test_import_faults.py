"""Torn, hostile and contradictory sources, full disks and interruptions: a clear error, and no artifact."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outcrop import _core
from outcrop.errors import ArgumentError, BudgetError, FormatError, IoError
from outcrop.importing.graph import import_graph
from outcrop.runtime.progress import SilentProgress
from outcrop.runtime.runtime import Runtime
from outcrop.store.verify import verify_artifact
from support import HANGS_SECONDS, held_bytes, new_runtime

TORTURED = True
NODES = 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good source; each test spoils one thing."""
    rng = np.random.default_rng(0)
    path = tmp_path / "in"
    path.mkdir()
    np.save(path / "edges.npy", rng.integers(0, NODES, (500, 2)))
    np.save(path / "features.npy", rng.random((NODES, 6), np.float32))
    np.save(path / "labels.npy", rng.integers(0, 3, NODES))
    np.save(path / "train.npy", np.arange(10))
    np.save(path / "valid.npy", np.arange(10, 20))
    return path


def fails(
    folder: Path,
    kind: type[Exception],
    match: str,
    source: str | None = None,
    runtime: Runtime | None = None,
    **options: Any,
) -> None:
    runtime = runtime or new_runtime("16MiB")
    out = folder.parent / "graph"
    with pytest.raises(kind, match=match):
        import_graph(source or f"arrays:{folder}", out, runtime, **options)
    assert [p.name for p in folder.parent.iterdir() if "graph" in p.name] == []
    assert held_bytes(runtime) == 0


def truncate(path: Path, keep: float = 0.5) -> None:
    with path.open("r+b") as file:
        file.truncate(int(path.stat().st_size * keep))


def change(name: str, spoil: Callable[[np.ndarray], np.ndarray | None]) -> Callable[[Path], None]:
    """Spoils one array in place or by what ``spoil`` returns."""

    def apply(folder: Path) -> None:
        array = np.load(folder / f"{name}.npy")
        changed = spoil(array)
        np.save(folder / f"{name}.npy", array if changed is None else changed)

    return apply


def put(at: Any, value: Any) -> Callable[[np.ndarray], None]:
    def apply(array: np.ndarray) -> None:
        array[at] = value

    return apply


@pytest.mark.parametrize(
    ("spoil", "kind", "match"),
    [
        (
            change("edges", put((7, 1), NODES)),
            ArgumentError,
            r"edges\.npy, edge 7 .* names node 40, but there are 40 nodes",
        ),
        (change("edges", put((9, 0), -1)), ArgumentError, r"edges\.npy, edge 9 .* names node -1, but"),
        (change("edges", lambda a: a.astype(float)), ArgumentError, r"float64, integers are needed"),
        (change("edges", lambda a: a[:, :1]), FormatError, r"shape \(500, 1\)"),
        (change("edges", lambda a: a.ravel()), FormatError, r"shape \(1000,\)"),
        (change("features", put((3, 2), np.nan)), FormatError, r"row 3, column 2 is not finite"),
        (change("features", put((39, 5), np.inf)), FormatError, r"row 39, column 5 is not finite"),
        (change("features", lambda a: a[:-1]), ArgumentError, r"39 rows.*40 rows"),
        (change("features", lambda a: a[:, :0]), FormatError, r"zero feature columns"),
        (change("features", lambda a: a[:, 0]), FormatError, r"features are \[nodes, columns\]"),
        (change("features", lambda a: a.astype(np.complex64)), FormatError, r"complex64"),
        (change("labels", lambda a: a[:-3]), ArgumentError, r"37 rows"),
        (change("labels", put(4, -2)), FormatError, r"row 4 is -2"),
        (
            change("labels", lambda a: np.where(a > 0, np.inf, a)),
            FormatError,
            r"row \d+ is inf.*whole numbers",
        ),
        (change("train", put(3, NODES)), ArgumentError, r"split train lists node 40"),
        (change("train", put(3, -1)), ArgumentError, r"split train lists node -1"),
        (change("train", put(3, 4)), ArgumentError, r"lists node 4 twice"),
        (change("valid", put(0, 9)), ArgumentError, r"node 9 is in split train and in split valid"),
        (change("valid", lambda a: np.zeros(NODES - 1, bool)), ArgumentError, r"masks 39 nodes"),
        (change("valid", lambda a: a.astype(float)), ArgumentError, r"float64"),
        (lambda f: (f / "edges.npy").unlink(), ArgumentError, r"holds no edges"),
        (lambda f: truncate(f / "edges.npy"), FormatError, r"edges\.npy is truncated: it has \d+ bytes"),
        (lambda f: truncate(f / "features.npy"), FormatError, r"features\.npy is truncated"),
        (lambda f: truncate(f / "labels.npy", 0.02), FormatError, r"labels\.npy is no \.npy file or is torn"),
        (lambda f: (f / "features.npy").write_bytes(b"PK not an array"), FormatError, r"features\.npy is no"),
        (lambda f: (f / "edges.csv").write_text("1,2\n"), ArgumentError, r"keep one of them"),
        (
            lambda f: np.save(f / "labels.npy", np.array([{}] * NODES, object), allow_pickle=True),
            FormatError,
            r"Python objects",
        ),
        (lambda f: (f / "splits.csv").write_text("id,split\n1,train\n"), ArgumentError, r"more than one way"),
    ],
)
def test_spoiled_folder(
    folder: Path, spoil: Callable[[Path], object], kind: type[Exception], match: str
) -> None:
    spoil(folder)
    fails(folder, kind, match)


def header(shape: str) -> bytes:
    """A ``.npy`` file of version 1 whose header has ``shape``, without data."""
    text = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def replaced_by(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Puts something else at ``name``, in place of all files of that stem."""

    def spoil(folder: Path) -> None:
        for path in folder.glob(f"{name.partition('.')[0]}.*"):
            path.unlink()
        make(folder / name)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "kind", "match"),
    [
        (
            replaced_by("edges.npy", lambda p: p.write_bytes(header("(-5, 2)"))),
            FormatError,
            r"shape \(-5, 2\)",
        ),
        (
            replaced_by("edges.npy", lambda p: p.write_bytes(header("(-2, -2)"))),
            FormatError,
            r"shape \(-2, -2\)",
        ),
        (
            replaced_by("edges.csv", lambda p: p.write_text("src,dst\n1," + "2" * 140_000 + "\n")),
            FormatError,
            r"edges\.csv",
        ),
        (
            replaced_by("edges.csv", lambda p: p.write_text("x" * 140_000 + ",dst\n1,2\n")),
            FormatError,
            r"edges\.csv is no table.*field larger",
        ),
        (
            replaced_by("edges.csv", lambda p: p.write_text("src,dst,src\n1,2,3\n")),
            FormatError,
            r"edges\.csv has two columns named 'src'",
        ),
        (replaced_by("features.npy", lambda p: os.mkfifo(p)), ArgumentError, r"features\.npy is no file"),
        (replaced_by("features.npy", lambda p: p.mkdir()), ArgumentError, r"features\.npy is no file"),
        (replaced_by("labels.npy", lambda p: p.symlink_to("gone")), ArgumentError, r"labels\.npy is no file"),
    ],
)
def test_odd_files_end_in_one_line(
    folder: Path, spoil: Callable[[Path], object], kind: type[Exception], match: str
) -> None:
    spoil(folder)
    fails(folder, kind, match)


@pytest.mark.parametrize("text", ["\n", "\n\n\n", " \n\n"])
def test_a_table_of_empty_lines_has_no_edges(folder: Path, text: str) -> None:
    (folder / "edges.npy").unlink()
    (folder / "edges.csv").write_text(text)
    assert import_graph(f"arrays:{folder}", folder.parent / "graph", new_runtime()).num_edges == 0


def test_empty_lines_before_a_table_are_skipped(folder: Path) -> None:
    (folder / "edges.npy").unlink()
    (folder / "edges.csv").write_text("\n\nsrc,dst\n1,2\n2,3\n")
    assert import_graph(f"arrays:{folder}", folder.parent / "graph", new_runtime()).num_edges == 2


@pytest.mark.parametrize(
    ("text", "kind", "match"),
    [
        ("src,dst\n1,2\n3\n", FormatError, r"Expected 2 columns, got 1"),
        ("src,dst\n1,2\n3,\n", FormatError, r"edges\.csv, line 3, column 'dst' is empty"),
        (
            "src,dst\n1,2\n1.5,2\n",
            ArgumentError,
            r"line 3, column 'src': 1\.5 is a decimal number; integers are needed",
        ),
        ("src,dst\n1,2\nbob,2\n", ArgumentError, r"text|known"),
        (
            "src,dst\n1,40\n",
            ArgumentError,
            r"edges\.csv, line 2, column 'dst' names node 40, but there are 40 nodes",
        ),
        ("src\n1\n", FormatError, r"1 columns"),
    ],
)
def test_spoiled_csv_edges(folder: Path, text: str, kind: type[Exception], match: str) -> None:
    (folder / "edges.npy").unlink()
    (folder / "edges.csv").write_text(text)
    fails(folder, kind, match)


def test_binary_garbage_is_no_csv(folder: Path) -> None:
    (folder / "edges.npy").unlink()
    (folder / "edges.csv").write_bytes(b"\xff\xfe\x00\x81" * 50)
    fails(folder, FormatError, "not UTF-8")


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.99])
def test_truncated_parquet(folder: Path, keep: float) -> None:
    pairs = np.load(folder / "edges.npy")
    (folder / "edges.npy").unlink()
    pq.write_table(pa.table({"src": pairs[:, 0], "dst": pairs[:, 1]}), folder / "edges.parquet")
    truncate(folder / "edges.parquet", keep)
    fails(folder, FormatError, r"edges\.parquet")


def test_garbled_parquet_pages(folder: Path) -> None:
    pairs = np.random.default_rng(0).integers(0, NODES, (5000, 2))
    (folder / "edges.npy").unlink()
    pq.write_table(pa.table({"src": pairs[:, 0], "dst": pairs[:, 1]}), folder / "edges.parquet")
    with (folder / "edges.parquet").open("r+b") as file:
        file.seek(4)
        file.write(b"\xff" * 300)
    fails(folder, FormatError, r"edges\.parquet")


def test_unknown_sources(folder: Path) -> None:
    fails(
        folder,
        ArgumentError,
        "unknown; known: arrays, edges, npz, scipy, mat, musae, graphbolt, igb, mag240m, ogb, pyg, dgl, "
        "ntriples, tables, triples",
        source="zip:x",
    )
    fails(folder, ArgumentError, "is a knowledge graph, not a graph", source="triples:x")
    fails(folder, ArgumentError, r"names no files; write arrays:DIR.* triples:DIR$", source="edges.npy")
    fails(folder, ArgumentError, rf"here perhaps 'arrays:{folder}'$", source=str(folder))
    for kind, mark in (
        ("graphbolt", "metadata.yaml"),
        ("igb", "processed/paper__cites__paper"),
        ("ogb", "raw/data.npz"),
    ):
        (folder / kind / mark).mkdir(parents=True)
        fails(folder, ArgumentError, rf"here perhaps '{kind}:{folder}/{kind}'$", source=f"{folder}/{kind}")
    fails(folder, ArgumentError, rf"here perhaps 'edges:{folder}/edges.npy'$", source=f"{folder}/edges.npy")
    (folder / "graph.npz").touch()
    fails(folder, ArgumentError, rf"here perhaps 'npz:{folder}/graph.npz'$", source=f"{folder}/graph.npz")
    fails(folder, ArgumentError, "is no folder", source="arrays:/nowhere")
    fails(folder, ArgumentError, "is no file: edges:FILE needs", source="edges:/nowhere.csv")
    fails(folder, ArgumentError, "is missing", source="npz:/nowhere.npz")
    fails(folder, ArgumentError, "yaml is missing: graphbolt:DIR", source=f"graphbolt:{folder}")
    fails(folder, ArgumentError, "paper is no folder: igb:DIR", source=f"igb:{folder}")
    fails(folder, ArgumentError, "raw is no folder: ogb:DIR", source=f"ogb:{folder}")
    fails(folder, ArgumentError, "musae:DIR needs exactly one", source=f"musae:{folder}")


def sparse_archive() -> dict[str, np.ndarray]:
    return {
        "adj_data": np.ones(3, np.float32),
        "adj_indices": np.array([1, 2, 0]),
        "adj_indptr": np.array([0, 1, 2, 3]),
        "adj_shape": np.array([3, 3]),
        "attr_data": np.ones(2, np.float32),
        "attr_indices": np.array([0, 1]),
        "attr_indptr": np.array([0, 1, 2, 2]),
        "attr_shape": np.array([3, 2]),
        "labels": np.array([0, 1, 0]),
    }


@pytest.mark.parametrize(
    ("member", "value", "match"),
    [
        ("adj_indptr", np.array([0, 5, 2, 3]), "indptr does not rise"),
        ("adj_indptr", np.array([0, 1, 2, 9]), "indptr does not rise"),
        ("adj_indptr", np.array([0.0, 1, 2, 3]), "lists of integers"),
        ("adj_indices", np.array([1, 3, 0]), "outside 0 to 2"),
        ("adj_indices", np.array([1, -1, 0]), "outside 0 to 2"),
        ("adj_shape", np.array([3, 4]), "not square"),
        ("adj_shape", np.array([3]), "two sizes"),
        ("attr_shape", np.array([3, 0]), "outside|zero"),
        ("attr_data", np.ones(3, np.float32), r"\(3,\) values"),
        ("labels", np.array([0, 1]), "2 rows"),
        ("labels", np.array([{}, 1, 2], object), "Python objects"),
        ("adj_data", None, ""),
        ("adj_indices", None, "'adj_indices' is missing"),
    ],
)
def test_hostile_archives(folder: Path, member: str, value: np.ndarray | None, match: str) -> None:
    arrays = sparse_archive()
    if value is None:
        del arrays[member]
    else:
        arrays[member] = value
    np.savez(folder / "x.npz", allow_pickle=True, **arrays)
    if not match:  # weights are not needed
        import_graph(f"npz:{folder / 'x.npz'}", folder.parent / "graph", new_runtime())
        return
    fails(folder, (FormatError, ArgumentError), match, source=f"npz:{folder / 'x.npz'}")  # pyright: ignore


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9, 0.999])
def test_truncated_archive(folder: Path, keep: float) -> None:
    np.savez(folder / "x.npz", **sparse_archive())  # pyright: ignore
    truncate(folder / "x.npz", keep)
    fails(folder, FormatError, "x.npz", source=f"npz:{folder / 'x.npz'}")


def test_archive_with_garbled_data(folder: Path) -> None:
    arrays = sparse_archive() | {"labels": np.arange(3) % 2}
    np.savez_compressed(folder / "x.npz", **arrays)  # pyright: ignore
    with zipfile.ZipFile(folder / "x.npz") as archive:
        at = archive.getinfo("adj_indices.npy").header_offset
    with (folder / "x.npz").open("r+b") as file:
        file.seek(at + 60)
        file.write(b"\x00\xff" * 20)
    fails(folder, FormatError, "adj_indices", source=f"npz:{folder / 'x.npz'}")


def test_archive_that_promises_more_than_it_holds(folder: Path) -> None:
    """A header of a petabyte must not become an allocation; a big member must fit the budget."""
    header = (
        b"\x93NUMPY\x01\x00v\x00"
        + b"{'descr': '<i8', 'fortran_order': False, 'shape': (100000000000000,), }".ljust(117)
        + b"\n"
    )
    np.savez(folder / "x.npz", **{k: v for k, v in sparse_archive().items() if k != "labels"})  # pyright: ignore
    with zipfile.ZipFile(folder / "x.npz", "a") as archive:
        archive.writestr("labels.npy", header + bytes(24))
    fails(folder, FormatError, "header promises", source=f"npz:{folder / 'x.npz'}")
    arrays = sparse_archive() | {"labels": np.zeros(10_000_000, np.int64)}
    np.savez_compressed(folder / "y.npz", **arrays)  # pyright: ignore
    fails(folder, BudgetError, "80000", source=f"npz:{folder / 'y.npz'}")


def test_text_ids_beyond_the_budget(folder: Path) -> None:
    for name in ("edges", "features", "labels", "train", "valid"):
        (folder / f"{name}.npy").unlink()
    with (folder / "edges.csv").open("w") as file:
        file.write("src,dst\n")
        file.writelines(f"node-{i},node-{i + 1}\n" for i in range(60_000))
    fails(folder, BudgetError, "node-names", runtime=new_runtime("8MiB"))
    import_graph(f"arrays:{folder}", folder.parent / "graph", new_runtime("64MiB"))


def test_something_else_in_the_way(folder: Path) -> None:
    (folder.parent / "graph").mkdir()
    (folder.parent / "graph" / "thesis.txt").write_text("mine")
    with pytest.raises(ArgumentError, match="in the way"):
        import_graph(f"arrays:{folder}", folder.parent / "graph", new_runtime())
    assert (folder.parent / "graph" / "thesis.txt").read_text() == "mine"


class _Stop(SilentProgress):
    """Raises at the n-th sign of progress."""

    def __init__(self, after: int):
        self.left = after

    def advance(self, task: str, amount: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("after", range(4))
def test_interruption_leaves_nothing_and_a_rerun_works(folder: Path, after: int) -> None:
    out = folder.parent / "graph"
    import_graph(f"arrays:{folder}", folder.parent / "want", new_runtime())
    runtime = new_runtime("16MiB", progress=_Stop(after))
    with pytest.raises(KeyboardInterrupt):
        import_graph(f"arrays:{folder}", out, runtime)
    assert sorted(p.name for p in folder.parent.iterdir()) == ["in", "want"]
    assert held_bytes(runtime) == 0
    graph = import_graph(f"arrays:{folder}", out, new_runtime())
    assert (out / "manifest.json").read_bytes() == (folder.parent / "want/manifest.json").read_bytes()
    verify_artifact(graph.path, new_runtime())


def test_interruption_keeps_the_artifact_that_was_there(folder: Path) -> None:
    out = folder.parent / "graph"
    graph = import_graph(f"arrays:{folder}", out, new_runtime())
    before = graph.digest()
    with pytest.raises(KeyboardInterrupt):
        import_graph(f"arrays:{folder}", out, new_runtime(progress=_Stop(1)), reverse=True)
    assert verify_artifact(out, new_runtime())["arrays"] == len(graph.manifest.arrays)
    assert import_graph(f"arrays:{folder}", out, new_runtime()).digest() == before


_CHILD = """
import resource, sys
from outcrop.errors import IoError
from outcrop.runtime.runtime import Runtime
from outcrop.importing.graph import import_graph
limit = int(sys.argv[3])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
print("ready", flush=True)
try:
    import_graph(sys.argv[1], sys.argv[2], Runtime("4MiB"))
except IoError as error:
    print("IoError", error.errno, error)
"""


def _child(source: str, out: Path, limit: int) -> subprocess.Popen[str]:
    package = Path(_core.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(package)}
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, source, str(out), str(limit)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.mark.parametrize("limit", [4096, 600_000])
def test_writes_that_the_system_refuses(folder: Path, limit: int) -> None:
    """A limit on file size stands for a full disk: the write fails in the middle of an array or of the scratch file."""
    np.save(folder / "edges.npy", np.random.default_rng(0).integers(0, NODES, (300_000, 2)))
    child = _child(f"arrays:{folder}", folder.parent / "graph", limit)
    output, _ = child.communicate(timeout=HANGS_SECONDS)
    assert f"IoError {errno.EFBIG}" in output, output
    assert [p.name for p in folder.parent.iterdir()] == ["in"]


def test_full_disk(folder: Path) -> None:
    plan = _core.FaultPlan()
    plan.disk_full_after_bytes = 3000
    runtime = new_runtime("16MiB", faults=plan)
    probe = runtime.io.open(str(folder / "probe"), _core.OpenMode.create)
    try:
        runtime.io.write(probe, 0, np.zeros(4096, np.uint8))
        pytest.skip("this build's I/O engine does not inject faults")
    except IoError:
        pass
    finally:
        runtime.io.close(probe)
    fails(folder, IoError, "space", runtime=new_runtime("16MiB", faults=plan))


def test_killed_import_leaves_no_artifact(folder: Path) -> None:
    np.save(folder / "features.npy", np.ones((NODES, 1_000_000), np.float32))
    out = folder.parent / "graph"
    child = _child(f"arrays:{folder}", out, 0)
    partial = folder.parent / ".graph.partial" / "features.bin"
    deadline = time.monotonic() + HANGS_SECONDS
    while child.poll() is None and not partial.exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=HANGS_SECONDS)
    if child.returncode == 0:
        pytest.skip("the import was faster than the signal")
    assert not out.exists()
    np.save(folder / "features.npy", np.ones((NODES, 3), np.float32))
    import_graph(f"arrays:{folder}", out, new_runtime())
    verify_artifact(out, new_runtime())
    assert sorted(p.name for p in folder.parent.iterdir()) == ["graph", "in"]
