"""Sparse rows, used: every mode delivers the bits of the dense import, and learns what it learns from that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import outcrop as oc
from outcrop.errors import BudgetError, FormatError
from outcrop.loading.modes import MODES, Mode
from outcrop.loading.open import open_session
from outcrop.pyg import NeighborLoader, open_data, stores
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph, open_graph
from run_support import skewed_edges
from sparse_reference import bag_of_words, change_head, mostly_zeros, same_bits

NODES, WIDTH, CLASSES = 400, 331, 4
QUIET = oc.Observer(progress=False)
SAMPLING: dict[str, Any] = {"fanouts": (3, 3), "batch_size": 20, "seed": 4}
TRAINING = oc.TrainConfig(epochs=2, trace_losses=True)
Make = Callable[..., Runtime]


def words() -> np.ndarray:
    """float32 of 0 and 1, of which some words tell the class."""
    rng = np.random.default_rng(7)
    x = bag_of_words(rng, NODES, WIDTH, 20)
    x[np.arange(NODES), rng.integers(0, CLASSES, NODES)] = 1
    return x


def halves() -> np.ndarray:
    """float16 of any size and sign, also -0.0."""
    x = mostly_zeros(np.random.default_rng(8), NODES, WIDTH, 15, "float16")
    return np.where(np.isfinite(x), np.clip(x, -3, 3), np.float16(1)).astype(np.float16)


def imported(path: Path, x: Any, **options: Any) -> Graph:
    rng = np.random.default_rng(1)
    order = rng.permutation(NODES)
    return oc.import_graph(
        skewed_edges(NODES, 3000, 0),
        path,
        features=x,
        labels=rng.integers(0, CLASSES, NODES),
        splits={"train": order[:90], "valid": order[90:120], "test": order[120:160]},
        config=oc.ImportConfig(**options),
        progress=False,
    )


@pytest.fixture(scope="module", params=["words", "halves", "matrix"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """The graph with sparse rows, the same dense, and the features."""
    folder = tmp_path_factory.mktemp("made")
    x = halves() if request.param == "halves" else words()
    sparse = imported(folder / "sparse.oc", sp.csr_matrix(x) if request.param == "matrix" else x)
    dense = imported(folder / "dense.oc", x, feature_storage="dense")
    for graph in (sparse, dense):
        run = graph.path.with_suffix(".run")
        with pytest.raises(BudgetError) as refused:
            oc.prepare(graph, run, epochs=2, memory="100KiB", progress=False, **SAMPLING)
        assert refused.value.smallest is not None
        # Some rows are cached, the others packed.
        memory = refused.value.smallest + 9_000
        oc.prepare(graph, run, epochs=2, memory=memory, progress=False, **SAMPLING)
    assert sparse.row_file.decoder is not None
    assert dense.row_file.decoder is None
    assert sparse.feature_bytes < dense.feature_bytes // 4
    return sparse, dense, x


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("with_run", [True, False])
def test_every_mode_delivers_the_values(made, make_runtime: Make, mode: Mode, with_run: bool) -> None:
    graph, _, x = made
    if mode.needs_run and not with_run:
        pytest.skip("needs a run")
    run = graph.path.with_suffix(".run") if with_run else None
    config = None if with_run else oc.SampleConfig(**SAMPLING)
    with open_session(graph, make_runtime("2MiB", threads=1), mode, run_folder=run, config=config) as opened:
        for split, seeds in (("train", 90), ("valid", 30)):
            seen = 0
            for batch in opened.batches(split, 0):
                assert same_bits(batch.x, x[batch.graph.n_id])
                assert batch.x.data_ptr() % 64 == 0  # models need no copy
                seen += batch.graph.num_seeds
                del batch
            assert seen == seeds


def losses(graph: Graph, mode: Any, memory: str | None, **options: Any) -> Any:
    result = oc.train(
        graph,
        run=graph.path.with_suffix(".run") if memory is None else None,
        loading=mode,
        model=oc.ModelConfig("sage", hidden=8),
        sampling=None if memory is None else oc.SampleConfig(**SAMPLING),
        limits=oc.Limits(memory) if memory else None,
        training=TRAINING,
        observer=QUIET,
        **options,
    )
    return result.batch_losses, result.test_accuracy


def test_losses_are_those_of_the_dense_import(made) -> None:
    sparse, dense, _ = made
    wanted = losses(dense, "memory", None)
    for mode in ("memory", "packed", "online"):
        assert losses(sparse, mode, None) == wanted, mode
    for mode in ("packed", "online"):
        assert losses(sparse, mode, "2MiB") == losses(dense, "memory", "64MiB"), mode


def test_packing_writes_fewer_bytes(made) -> None:
    sizes = []
    for graph in made[:2]:
        pack = graph.path.with_suffix(".run") / "pack"
        sizes.append(sum(file.stat().st_size for file in pack.glob("records*.bin")))
    assert sizes[0] < sizes[1] // 2


def test_loaders_and_stores_of_torch_geometric(made) -> None:
    graph, _, x = made
    for batch in NeighborLoader(open_data(graph.path), [3, 3], "train", batch_size=30, memory="2MiB"):
        assert same_bits(batch.x, x[batch.n_id.numpy()])
        del batch
    table, _ = stores(graph)
    for index in (None, torch.tensor([5, 3, 3, 399]), slice(3, 9)):
        found = table.get_tensor(group_name=None, attr_name="x", index=index)
        assert same_bits(found, x[slice(None) if index is None else index])
    assert table.get_tensor_size(group_name=None, attr_name="x", index=None) == (NODES, WIDTH)
    assert open_data(graph.path).num_features == WIDTH


def test_inference_gives_what_it_gives_of_the_dense_import(made, tmp_path: Path) -> None:
    """Bit for bit, but for layers that are added up in parts, which a budget cuts where rows of that size fit."""
    found: dict[tuple[str, str], list[np.ndarray]] = {}
    for graph in made[:2]:
        checkpoint = tmp_path / graph.path.stem
        losses(graph, "memory", "64MiB", checkpoint=checkpoint)
        out = tmp_path / "out.npy"
        for method, memory in (("layerwise", "64MiB"), ("layerwise", "1MiB"), ("sampled", "2MiB")):
            oc.infer(graph, model=checkpoint, out=out, method=method, memory=memory, observer=QUIET)
            found.setdefault((method, memory), []).append(np.load(out))
            out.unlink()
    assert np.allclose(*found.pop(("layerwise", "1MiB")), rtol=1e-4, atol=1e-5)
    for sparse, dense in found.values():
        assert np.array_equal(sparse.view(np.uint32), dense.view(np.uint32))


def test_a_row_that_lies_is_refused_in_every_mode(tmp_path: Path, make_runtime: Make) -> None:
    """Also in a run that was packed from it, whose checksums are right as well."""
    path = imported(tmp_path / "g.oc", words()).path
    with Runtime() as runtime:
        row = int(open_graph(path).split(runtime, "train")[7])
    change_head(path, row, [1, WIDTH])
    graph, run = open_graph(path), path.with_suffix(".run")
    said = rf"g\.oc/features\.bin: row {row} has a value in column {WIDTH}, and there are {WIDTH} columns"
    oc.prepare(graph, run, epochs=1, memory="2MiB", progress=False, **SAMPLING)
    for mode in MODES:
        with (
            pytest.raises(FormatError, match=said),
            open_session(graph, make_runtime("8MiB"), mode, run_folder=run) as opened,
        ):
            for _ in opened.batches("train", 0):
                pass
    with pytest.raises(FormatError, match=said):
        stores(graph)[0].get_tensor(group_name=None, attr_name="x", index=torch.tensor([row]))


@pytest.mark.slow
def test_graphs_with_types(tmp_path: Path) -> None:
    """Batches, losses, derived rows and inference, of a node type with sparse rows beside one without."""
    rng = np.random.default_rng(0)
    rows = {"paper": words(), "author": rng.standard_normal((90, 5)).astype(np.float32)}
    edges = np.stack([rng.integers(0, 90, 900), rng.integers(0, NODES, 900)])
    about = np.stack([rng.integers(0, NODES, 300), rng.integers(0, 7, 300)])
    folder = tmp_path / "source"
    folder.mkdir()
    for what, array in (*rows.items(), ("writes", edges), ("about", about)):
        np.save(folder / f"{what}.npy", array)
    np.save(folder / "labels.npy", rng.integers(0, CLASSES, NODES))
    np.save(folder / "train.npy", np.arange(0, NODES, 4))
    (folder / "graph.toml").write_text(
        '[[nodes]]\nname = "paper"\nfeatures = "paper.npy"\nlabels = "labels.npy"\ntrain = "train.npy"\n'
        '[[nodes]]\nname = "author"\nfeatures = "author.npy"\n'
        '[[nodes]]\nname = "topic"\nnum_nodes = 7\n'
        '[[edges]]\nsource = "author"\nrelation = "writes"\ntarget = "paper"\nfile = "writes.npy"\nreverse = true\n'
        '[[edges]]\nsource = "paper"\nrelation = "about"\ntarget = "topic"\nfile = "about.npy"\nreverse = true\n'
    )
    found, graphs = [], []
    for storage in (None, "dense"):
        out = tmp_path / f"{storage}.oc"
        config = oc.ImportConfig(feature_storage=storage)  # type: ignore[arg-type]
        oc.import_graph(f"arrays:{folder}", out, config=config, progress=False)
        graphs.append(oc.derive_rows(out, "topic", mean="paper", by="about", progress=False))
        for mode in ("memory", "online", "packed"):
            checkpoint = tmp_path / f"{storage}-{mode}"
            result = oc.train(
                graphs[-1],
                loading=mode,
                model=oc.ModelConfig("rgcn", hidden=8),
                sampling=oc.SampleConfig(fanouts=(3, 3), batch_size=20),
                training=TRAINING,
                limits=oc.Limits("64MiB"),
                observer=QUIET,
                checkpoint=checkpoint,
            )
            out = tmp_path / "out.npy"
            oc.infer(graphs[-1], model=checkpoint, out=out, memory="8MiB", observer=QUIET)
            found.append((tuple(result.batch_losses), np.load(out).tobytes()))
    assert len(set(found)) == 1
    assert [graph.manifest.version for graph in graphs] == [3, 2]
    with Runtime() as runtime:
        assert np.array_equal(*(graph.array(runtime, "n2.features").memmap() for graph in graphs))
