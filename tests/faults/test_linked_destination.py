"""A destination that is a symbolic link: what it leads to is replaced, the link stays, nothing is left over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from outcrop.errors import ArgumentError
from outcrop.importing.graph import import_graph
from outcrop.store.graph import open_graph
from support import new_runtime


def source(folder: Path, nodes: int) -> str:
    folder.mkdir(exist_ok=True)
    np.save(folder / "edges.npy", np.array([[0, nodes - 1]]))
    return f"arrays:{folder}"


def existing(target: Path) -> None:
    import_graph(source(target.parent / "in", 3), target, new_runtime())


@pytest.mark.parametrize("before", [existing, lambda target: None], ids=["existing", "dangling"])
def test_import_through_a_link(tmp_path: Path, before: Callable[[Path], None]) -> None:
    target, link = tmp_path / "far/target", tmp_path / "link"
    target.parent.mkdir()
    before(target)
    link.symlink_to(target)
    for nodes in (5, 6, 7):
        import_graph(source(tmp_path / "in", nodes), link, new_runtime())
        assert link.readlink() == target
        assert open_graph(target).num_nodes == open_graph(link).num_nodes == nodes
    assert sorted(p.name for p in tmp_path.iterdir()) == ["far", "in", "link"]
    assert not [p for p in target.parent.iterdir() if p.name.startswith(".")]


def test_a_place_that_an_earlier_version_broke_is_mended(tmp_path: Path) -> None:
    """It moved the link to ``.link.old``, put the graph in its place, and could not remove the link."""
    existing(tmp_path / "target")
    existing(tmp_path / "link")
    (tmp_path / ".link.old").symlink_to(tmp_path / "target")
    import_graph(source(tmp_path / "in", 8), tmp_path / "link", new_runtime())
    assert open_graph(tmp_path / "link").num_nodes == 8
    assert open_graph(tmp_path / "target").num_nodes == 3
    assert not list(tmp_path.glob(".*"))


def test_a_link_to_what_is_no_artifact_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/data").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(ArgumentError, match="link is in the way and no Outcrop artifact"):
        import_graph(source(tmp_path / "in", 5), tmp_path / "link", new_runtime())
    assert (tmp_path / "mine/data").read_text() == "precious"
    assert not list(tmp_path.glob(".*"))
