"""Import of graphs with types: what is torn is refused by its file, and what is interrupted leaves nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from outcrop.errors import ArgumentError, FormatError
from outcrop.importing.graph import import_graph
from outcrop.runtime.progress import SilentProgress
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import open_graph
from outcrop.store.verify import verify_artifact
from support import held_bytes, new_runtime

GRAPH = """
[[nodes]]
name = "a"
features = "x.npy"
labels = "y.npy"
train = "train.npy"
[[nodes]]
name = "b"
features = "z.npy"
[[edges]]
source = "b"
relation = "r"
target = "a"
file = "e.npy"
weights = "w.npy"
reverse = true
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder, rng = tmp_path / "in", np.random.default_rng(0)
    folder.mkdir()
    np.save(folder / "x.npy", rng.random((40, 6), np.float32))
    np.save(folder / "y.npy", rng.integers(0, 3, 40))
    np.save(folder / "train.npy", np.arange(10))
    np.save(folder / "z.npy", rng.random((30, 2), np.float32))
    np.save(folder / "e.npy", np.stack([rng.integers(0, 30, 500), rng.integers(0, 40, 500)]))
    np.save(folder / "w.npy", rng.random(500, np.float32))
    (folder / "graph.toml").write_text(GRAPH)
    return folder


@pytest.mark.parametrize("name", ["x", "y", "train", "z", "e", "w"])
@pytest.mark.parametrize("keep", [0.0, 0.2, 0.9])
def test_a_torn_file_is_named(folder: Path, name: str, keep: float) -> None:
    path = folder / f"{name}.npy"
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    runtime = new_runtime("8MiB")
    with pytest.raises(FormatError, match=rf"{name}\.npy is (truncated|no \.npy file or is torn)"):
        import_graph(f"arrays:{folder}", folder.parent / "g.oc", runtime)
    assert held_bytes(runtime) == 0
    assert [path.name for path in folder.parent.iterdir()] == ["in"]


@pytest.mark.parametrize("name", ["x", "z"])
def test_rows_that_are_no_numbers_are_named(folder: Path, name: str) -> None:
    rows = np.load(folder / f"{name}.npy")
    rows[7, 1] = np.nan
    np.save(folder / f"{name}.npy", rows)
    with (
        Runtime() as runtime,
        pytest.raises(FormatError, match=rf"{name}\.npy: row 7, column 1 is not finite"),
    ):
        import_graph(f"arrays:{folder}", folder.parent / "g.oc", runtime)
    assert [path.name for path in folder.parent.iterdir()] == ["in"]


class _Stop(SilentProgress):
    """Raises at the n-th sign of progress."""

    def __init__(self, after: int):
        self.left = after

    def advance(self, task: str, amount: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("after", range(5))
def test_an_interruption_leaves_nothing_and_the_next_import_is_whole(folder: Path, after: int) -> None:
    source, out = f"arrays:{folder}", folder.parent / "g.oc"
    with Runtime() as runtime:
        whole = import_graph(source, folder.parent / "whole.oc", runtime).digest()
    runtime = new_runtime("8MiB", progress=_Stop(after))
    with pytest.raises(KeyboardInterrupt):
        import_graph(source, out, runtime)
    assert held_bytes(runtime) == 0
    assert sorted(path.name for path in folder.parent.iterdir()) == ["in", "whole.oc"]
    with Runtime("8MiB") as runtime:
        assert import_graph(source, out, runtime).digest() == whole
        verify_artifact(out, runtime)


def test_what_a_failed_import_was_to_replace_stays(folder: Path) -> None:
    source, out = f"arrays:{folder}", folder.parent / "g.oc"
    with Runtime() as runtime:
        before = import_graph(source, out, runtime).digest()
        edges = np.load(folder / "e.npy")
        edges[0, 3] = 30
        np.save(folder / "e.npy", edges)
        with pytest.raises(ArgumentError, match=r"edge 3 .* names node 30 of 'b', but nodes 'b' are 0 to 29"):
            import_graph(source, out, runtime)
        verify_artifact(out, runtime)
    assert open_graph(out).digest() == before
    assert sorted(path.name for path in folder.parent.iterdir()) == ["g.oc", "in"]


@pytest.mark.parametrize("name", ["x", "y", "train", "z", "e", "w"])
def test_a_header_that_is_no_python_is_named(folder: Path, name: str) -> None:
    path = folder / f"{name}.npy"
    path.write_bytes(path.read_bytes().replace(b"'fortran_order': ", b"'fortran_order':#"))
    with pytest.raises(FormatError, match=rf"{name}\.npy is no \.npy file or is torn"):
        import_graph(f"arrays:{folder}", folder.parent / "g.oc", new_runtime("8MiB"))
