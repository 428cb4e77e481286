"""Graphs on disk in place of torch_geometric's ``Data`` and ``HeteroData``, compared with these."""

from __future__ import annotations

import copy
import importlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

import outcrop as oc
from outcrop.errors import ArgumentError
from outcrop.pyg import DiskData, DiskHeteroData, NeighborLoader, open_data


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> tuple[HeteroData, DiskHeteroData]:
    draw = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["paper"].x = torch.randn(100, 8, generator=draw)
    data["paper"].y = torch.randint(0, 4, (100,), generator=draw)
    for at, name in ((0, "train_mask"), (60, "val_mask"), (80, "test_mask")):
        mask = torch.zeros(100, dtype=torch.bool)
        mask[at : at + 20] = True
        data["paper"][name] = mask
    data["author"].num_nodes = 50
    ends = torch.stack([torch.arange(300) % 50, torch.arange(300) * 7 % 100])
    data["author", "writes", "paper"].edge_index = ends
    data["paper", "by", "author"].edge_index = ends.flip(0)
    folder = tmp_path_factory.mktemp("typed") / "g.oc"
    oc.import_graph(data, folder, oc.ImportConfig(keep_duplicates=True), progress=False)
    opened = open_data(folder)
    assert isinstance(opened, DiskHeteroData)
    return data, opened


def test_a_graph_with_types_has_what_scripts_ask_for(typed: tuple[HeteroData, DiskHeteroData]) -> None:
    want, found = typed
    assert found.metadata() == want.metadata()
    assert (found.node_types, found.edge_types) == (want.node_types, want.edge_types)
    assert (found.num_nodes, found.num_edges) == (want.num_nodes, want.num_edges)
    for name in ("y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(getattr(found["paper"], name), getattr(want["paper"], name))
    for name in want.node_types:
        assert found[name].num_nodes == want[name].num_nodes
    assert (found["paper"].num_features, found["author"].num_features) == (8, 0)
    assert found["paper"].num_classes == 4


def test_two_lines_of_a_script_for_types_change(typed: tuple[HeteroData, DiskHeteroData]) -> None:
    want, found = typed
    loader = NeighborLoader(found, [-1, -1], input_nodes=("paper", found["paper"].val_mask), batch_size=8)
    seeds = []
    for batch in loader:
        seeds += batch["paper"].n_id[: batch["paper"].batch_size].tolist()
        assert torch.equal(batch["paper"].x, want["paper"].x[batch["paper"].n_id])
    assert sorted(seeds) == want["paper"].val_mask.nonzero()[:, 0].tolist()


def test_a_graph_with_types_is_asked_as_a_mapping(typed: tuple[HeteroData, DiskHeteroData]) -> None:
    want, found = typed
    for name in want.node_types:
        assert ("y" in found[name], "train_mask" in found[name]) == (
            "y" in want[name],
            "train_mask" in want[name],
        )
    assert torch.equal(found["paper"]["val_mask"], want["paper"]["val_mask"])
    with pytest.raises(KeyError, match=r"nodes 'author' .* have no y"):
        found["author"]["y"]
    assert found.num_node_features == found.num_features == {"paper": 8, "author": 0}
    assert found["paper"].num_node_features == want["paper"].num_node_features
    assert found.num_edge_features == want.num_edge_features


def test_types_without_labels_give_batches_without_y(typed: tuple[HeteroData, DiskHeteroData]) -> None:
    _, found = typed
    batch = next(iter(NeighborLoader(found, [2, 2], input_nodes="author", batch_size=8)))
    assert "y" not in batch["author"]
    assert batch["author"].batch_size == 8
    batch = next(iter(NeighborLoader(found, [2, 2], input_nodes="paper", batch_size=8)))
    assert "y" in batch["paper"]


def test_seeds_of_no_type_are_named(typed: tuple[HeteroData, DiskHeteroData]) -> None:
    _, found = typed
    mask = found["paper"].val_mask
    for nodes in (("papers", mask), (("paper", "by", "author"), None), ("paper", mask, 3)):
        with pytest.raises(
            ArgumentError, match=r"input_nodes is a tuple that begins with .*give \(node type, nodes\), of p"
        ):
            NeighborLoader(found, [2, 2], input_nodes=nodes)
    with pytest.raises(
        ArgumentError, match="'papers', no node type and no split: node types are paper, author"
    ):
        NeighborLoader(found, [2, 2], input_nodes="papers")


def test_a_graph_is_asked_as_a_mapping(tmp_path: Path) -> None:
    edges, mask = torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor([True, False, True])
    want = Data(x=torch.rand(3, 2), edge_index=edges, train_mask=mask, edge_attr=torch.rand(3, 4))
    oc.import_graph(want, tmp_path / "g.oc", progress=False)
    found = open_data(tmp_path / "g.oc")
    assert torch.equal(found["train_mask"], mask)
    assert ("train_mask" in found, "val_mask" in found, "y" in found) == (True, False, False)
    assert found.num_edge_features == want.num_edge_features == 4
    with pytest.raises(KeyError, match="x"):
        found["x"]
    assert "y" not in next(iter(NeighborLoader(found, [2], batch_size=2)))


def test_objects_in_memory_are_no_graph_on_disk(typed: tuple[HeteroData, DiskHeteroData]) -> None:
    want, found = typed
    with pytest.raises(
        ArgumentError, match=r"a HeteroData is no graph on disk: import it once with outcrop\.import_graph"
    ):
        open_data(want)
    assert open_data(found.graph).metadata() == found.metadata()


def test_what_is_not_there_is_named(typed: tuple[HeteroData, DiskHeteroData]) -> None:
    _, found = typed
    with pytest.raises(KeyError, match=r"'venue' is no node type.*known: paper, author"):
        found["venue"]
    with pytest.raises(AttributeError, match=r"nodes 'author' .* have no y"):
        _ = found["author"].y
    with pytest.raises(AttributeError, match=r"no 'x': batches of outcrop\.pyg\.NeighborLoader have it"):
        _ = found["paper"].x
    with pytest.raises(AttributeError, match=r"no 'year': .*the rows n_id; nodes of a type are data\[NAME\]"):
        _ = found.year


def test_nothing_can_be_set(typed: tuple[HeteroData, DiskHeteroData], tmp_path: Path) -> None:
    """Batches would not have it, and a script that changed labels train on the old ones."""
    ends = torch.stack([torch.arange(20), torch.arange(20).roll(1)])
    plain = Data(x=torch.randn(20, 3), edge_index=ends, y=torch.arange(20) % 3)
    oc.import_graph(plain, tmp_path / "g.oc", oc.ImportConfig(reverse=True), progress=False)
    opened = open_data(tmp_path / "g.oc")
    assert isinstance(opened, DiskData)
    assert (opened.num_classes, opened.num_features) == (3, 3)
    for one in (opened, typed[1], typed[1]["paper"]):
        for name in ("y", "other"):
            with pytest.raises(AttributeError, match=f"cannot be changed.*'{name}'.*batch.n_id"):
                setattr(one, name, torch.zeros(20))
    assert torch.equal(opened.y, plain.y)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_are_as_good(typed: tuple[HeteroData, DiskHeteroData], copied: Callable[[Any], Any]) -> None:
    """As Lightning makes them."""
    want, found = typed
    assert copied(found).metadata() == want.metadata()
    assert torch.equal(copied(found["paper"]).y, want["paper"].y)


def test_probes_of_other_libraries_get_answers(typed: tuple[HeteroData, DiskHeteroData]) -> None:
    _, found = typed
    assert "paper" in found
    assert "venue" not in found
    for name in ("labels_mask", "features_mask", "x", "__array__"):
        assert not hasattr(found["paper"], name)
    with pytest.raises(TypeError, match="not iterable"):
        iter(found)
    with pytest.raises(AttributeError, match="cannot be changed"):
        found["paper"] = 1


def test_loaders_that_are_not_here_say_what_is() -> None:
    with pytest.raises(ImportError, match="no HGTLoader: NeighborLoader draws"):
        from outcrop.pyg import HGTLoader  # noqa: F401
    module = importlib.import_module("outcrop.pyg")
    assert not hasattr(module, "no_such_thing")


def test_imports_say_what_they_make_of_data(tmp_path: Path) -> None:
    def notes(config: oc.ImportConfig | None = None, **values: torch.Tensor) -> str:
        ends = torch.stack([torch.arange(40) % 20, (torch.arange(40) % 20 + 1) % 20])  # each edge twice
        data = Data(x=torch.randn(20, 3), edge_index=ends, **values)
        config = config or oc.ImportConfig(reverse=False)
        graph = oc.import_graph(data, tmp_path / "g.oc", config, overwrite=True, progress=False)
        return " ".join(graph.notes)

    assert "20 of 40 edges join nodes that another one joins, and were dropped; --keep-duplicates" in notes()
    weights = torch.arange(40).float()
    assert "were dropped, with their weights; --keep-duplicates" in notes(edge_weight=weights)
    for config in (
        oc.ImportConfig(reverse=False, keep_duplicates=True),
        oc.ImportConfig(reverse=False, keep_duplicates=False),
        oc.ImportConfig(reverse=True),
    ):
        assert "were dropped" not in notes(config)
    assert "has one column, which is taken as edge weights" in notes(edge_attr=weights[:, None])
    assert "edge weights" not in notes(edge_attr=torch.randn(40, 2))
    numbers = torch.arange(20).float()
    assert "whole numbers of type float32, and taken for classes" in notes(y=numbers)
    for other in (numbers.long(), numbers + 0.5, torch.where(numbers < 5, torch.nan, numbers)):
        assert "taken for classes" not in notes(y=other)
    wanted = oc.ImportConfig(reverse=False, label_kind="class")
    assert "taken for classes" not in notes(wanted, y=numbers)
