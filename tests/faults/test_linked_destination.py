"""A destination that is a symbolic link: what it leads to is replaced, the link stays, nothing is left over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import outcrop as oc
from artifact_support import small_graph
from outcrop.errors import ArgumentError
from outcrop.importing.graph import import_graph
from outcrop.store.graph import open_graph
from outcrop.store.lock import only_process_in
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


SAMPLING = oc.SampleConfig(fanouts=(3, 3), batch_size=30)


def test_what_is_made_in_place_is_made_where_a_link_leads(tmp_path: Path) -> None:
    """Runs, checkpoints and buckets grow in their folder; the first process makes it."""
    graph = small_graph(tmp_path / "g")
    links = {name: tmp_path / name for name in ("run", "checkpoint", "pools", "buckets", "vectors")}
    for name, link in links.items():
        link.symlink_to(f"of {name}")
    oc.prepare(graph, links["run"], sampling=SAMPLING, epochs=1)
    oc.train(graph, run=links["run"], epochs=1, checkpoint=links["checkpoint"])
    oc.train(graph, run=oc.Refresh(folder=links["pools"]), sampling=SAMPLING, epochs=2)
    oc.embed_prepare(graph.path, links["buckets"], partitions=2)
    oc.embed_train(links["buckets"], model="dot", dim=4, epochs=1)
    oc.embed_export(links["buckets"], out=links["vectors"])
    assert {str(link.readlink()) for link in links.values()} == {f"of {name}" for name in links}
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["g", *links, *(f"of {n}" for n in links)])
    assert all(any((tmp_path / f"of {name}").iterdir()) for name in links)
    assert oc.load_model(tmp_path / "of checkpoint")


def test_a_refused_command_leaves_a_link_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")

    def refused(folder: Path) -> None:
        with only_process_in(folder):
            assert (tmp_path / "target").is_dir()
            raise ArgumentError("refused")

    for folder in (tmp_path / "link", tmp_path / "link/inner"):
        with pytest.raises(ArgumentError, match="refused"):
            refused(folder)
        assert [p.name for p in tmp_path.iterdir()] == ["link"]
