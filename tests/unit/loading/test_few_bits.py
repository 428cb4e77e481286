"""Features in few bits, used: every mode delivers the values of NumPy, and learns what it learns from these."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import outcrop as oc
from outcrop import _core
from outcrop.errors import BudgetError, FormatError
from outcrop.loading.modes import MODES, Mode, Partition
from outcrop.loading.open import open_session
from outcrop.pyg import NeighborLoader, open_data, stores
from outcrop.runtime.runtime import Runtime
from outcrop.store.graph import Graph, open_graph
from outcrop.store.verify import verify_artifact
from quantised_reference import FEW_BITS, WRONG_HEADS, any_features, change_row, dequantised, stored_rows
from run_support import skewed_edges

NODES, WIDTH, CLASSES = 400, 131, 4
QUIET = oc.Observer(progress=False)
SAMPLING: dict[str, Any] = {"fanouts": (3, 3), "batch_size": 20, "seed": 4}
TRAINING = oc.TrainConfig(epochs=2, trace_losses=True)
Make = Callable[..., Runtime]


def features() -> np.ndarray:
    """Odd columns and rows, but of a size that trains."""
    rng = np.random.default_rng(7)
    x = np.clip(any_features(rng, NODES, WIDTH), -3, 3)
    x[:, :CLASSES] += np.eye(CLASSES)[rng.integers(0, CLASSES, NODES)].astype(np.float32)
    return x


def imported(path: Path, x: np.ndarray, **options: Any) -> Graph:
    rng = np.random.default_rng(1)
    order = rng.permutation(NODES)
    splits = {"train": order[:90], "valid": order[90:120], "test": order[120:160]}
    return oc.import_graph(
        skewed_edges(NODES, 3000, 0),
        path,
        features=x,
        labels=rng.integers(0, CLASSES, NODES),
        splits=splits,
        config=oc.ImportConfig(**options),
        progress=False,
    )


@pytest.fixture(scope="module", params=FEW_BITS, ids=lambda how: f"{how[0]}-{how[1]}")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """The graph in few bits, the same of the values in float32, and these values."""
    dtype, by = request.param
    folder, x = tmp_path_factory.mktemp("made"), features()
    few = imported(folder / "few.oc", x, feature_dtype=dtype, scale=by)
    values = dequantised(x, dtype, by)
    plain = imported(folder / "plain.oc", values)
    for graph in (few, plain):
        run = graph.path.with_suffix(".run")
        with pytest.raises(BudgetError) as refused:
            oc.prepare(graph, run, epochs=2, memory="100KiB", progress=False, **SAMPLING)
        assert refused.value.smallest is not None
        # Some rows are cached, the others packed.
        memory = refused.value.smallest + 12_000
        oc.prepare(graph, run, epochs=2, memory=memory, progress=False, **SAMPLING)
    assert few.feature_bytes == stored_rows(x, dtype, by).nbytes < plain.feature_bytes
    return few, plain, values


def assert_same_bits(found: Any, wanted: np.ndarray) -> None:
    assert found.dtype == torch.float32
    assert np.array_equal(found.numpy().view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("with_run", [True, False])
def test_every_mode_delivers_the_values(made, make_runtime: Make, mode: Mode, with_run: bool) -> None:
    graph, _, values = made
    if mode.needs_run and not with_run:
        pytest.skip("needs a run")
    run = graph.path.with_suffix(".run") if with_run else None
    config = None if with_run else oc.SampleConfig(**SAMPLING)
    with open_session(graph, make_runtime("2MiB", threads=1), mode, run_folder=run, config=config) as opened:
        for split, seeds in (("train", 90), ("valid", 30)):
            seen = 0
            for batch in opened.batches(split, 0):
                assert_same_bits(batch.x, values[batch.graph.n_id])
                assert batch.x.data_ptr() % 64 == 0  # models need no copy
                seen += batch.graph.num_seeds
                del batch
            assert seen == seeds


def losses(graph: Graph, mode: Any, memory: str | None, **options: Any) -> Any:
    result = oc.train(
        graph,
        run=graph.path.with_suffix(".run") if memory is None else None,
        loading=mode,
        model=oc.ModelConfig(options.pop("model", "sage"), hidden=8),
        sampling=None if memory is None else oc.SampleConfig(**SAMPLING),
        limits=oc.Limits(memory) if memory else None,
        training=TRAINING,
        observer=QUIET,
        **options,
    )
    return result.batch_losses, result.test_accuracy


@pytest.mark.slow
def test_losses_are_those_of_the_values_in_every_mode(made) -> None:
    few, plain, _ = made
    wanted = losses(plain, "memory", None)
    for mode in MODES:
        if not mode.batches_by_budget:
            assert losses(few, mode.name, None) == wanted, mode.name
    for mode in ("packed", "online", "dynamic", "ondisk"):
        assert losses(few, mode, "2MiB") == losses(plain, "memory", "64MiB"), mode


def test_partitions_are_those_of_the_values(made) -> None:
    few, plain, _ = made
    mode = Partition(4, resident=2)
    assert losses(few, mode, "3MiB") == losses(plain, mode, "3MiB")


def test_packing_writes_fewer_bytes(made) -> None:
    sizes = []
    for graph in made[:2]:
        pack = graph.path.with_suffix(".run") / "pack"
        sizes.append(sum(file.stat().st_size for file in pack.glob("*.bin")))
    assert sizes[0] <= sizes[1]


def test_a_batch_keeps_its_buffer_as_long_as_its_rows_live(made, make_runtime: Make) -> None:
    """As with other rows: whoever keeps all batches is told, and rows that are kept stay what they are."""
    graph, _, values = made
    run = graph.path.with_suffix(".run")
    with open_session(graph, make_runtime("2MiB", threads=1), "packed", run_folder=run) as opened:
        kept = []
        with pytest.raises(BudgetError, match="batch buffers"):
            kept.extend(
                (batch.x, batch.graph) for epoch in (0, 1) for batch in opened.batches("train", epoch)
            )
        gc.collect()
        kept.clear()
        batches = iter(opened.batches("train", 0))
        first = next(batches)
        x, ids = first.x, first.graph.n_id.copy()
        del first
        _ = next(batches).x.sum()
        assert_same_bits(x, values[ids])


def test_loaders_and_stores_of_torch_geometric(made) -> None:
    graph, _, values = made
    for batch in NeighborLoader(open_data(graph.path), [3, 3], "train", batch_size=30, memory="2MiB"):
        assert_same_bits(batch.x, values[batch.n_id.numpy()])
        del batch
    table, _ = stores(graph)
    assert_same_bits(table.get_tensor(group_name=None, attr_name="x", index=None), values)
    index = torch.tensor([5, 3, 3, 399])
    assert_same_bits(table.get_tensor(group_name=None, attr_name="x", index=index), values[index.numpy()])
    assert_same_bits(table.get_tensor(group_name=None, attr_name="x", index=slice(3, 9)), values[3:9])
    assert table.get_tensor_size(group_name=None, attr_name="x", index=None) == (NODES, WIDTH)
    assert open_data(graph.path).num_features == WIDTH


def test_inference_gives_what_it_gives_of_the_values(made, tmp_path: Path) -> None:
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
    for few, plain in found.values():
        assert np.array_equal(few.view(np.uint32), plain.view(np.uint32))


@pytest.fixture(params=["int8", "uint4"])
def by_row(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return imported(tmp_path / "g.oc", features(), feature_dtype=request.param, scale="row").path


@pytest.mark.parametrize("head", WRONG_HEADS)
def test_a_row_without_finite_values_is_refused_where_it_is_decoded(
    by_row: Path, make_runtime: Make, head: tuple[float, float]
) -> None:
    """Also those of a run that was packed from it, whose checksums are right as well."""
    with Runtime() as runtime:
        order = open_graph(by_row).split(runtime, "train")
    row = int(order[7])
    change_row(by_row, row, head)
    graph = open_graph(by_row)
    said = rf"g\.oc/features\.bin: row {row} has scale .* and offset .*not finite: .*import the graph again"
    runtime = make_runtime("8MiB")
    with pytest.raises(FormatError, match=said):
        verify_artifact(by_row, runtime)
    run = by_row.with_suffix(".run")
    oc.prepare(graph, run, epochs=1, memory="2MiB", progress=False, **SAMPLING)
    for mode in MODES:
        with (
            pytest.raises(FormatError, match=said),
            open_session(graph, make_runtime("8MiB"), mode, run_folder=run) as opened,
        ):
            for _ in opened.batches("train", 0):
                pass
    table, _ = stores(graph)
    with pytest.raises(FormatError, match=said):
        table.get_tensor(group_name=None, attr_name="x", index=torch.tensor([row]))
    other = [(row + 1) % NODES]
    assert table.get_tensor(group_name=None, attr_name="x", index=torch.tensor(other)).isfinite().all()


def test_inference_refuses_a_row_without_finite_values(by_row: Path, tmp_path: Path) -> None:
    graph = open_graph(by_row)
    losses(graph, "memory", "64MiB", checkpoint=tmp_path / "ckpt")
    change_row(by_row, 3, WRONG_HEADS[0])
    for method, memory in (("layerwise", "64MiB"), ("layerwise", "1MiB")):
        with pytest.raises(FormatError, match=r"features\.bin: row 3 has scale nan"):
            oc.infer(
                open_graph(by_row),
                model=tmp_path / "ckpt",
                out=tmp_path / "out.npy",
                any_graph=True,
                method=method,
                memory=memory,
                observer=QUIET,
            )
        assert not (tmp_path / "out.npy").exists()


def test_a_row_that_the_file_has_right_is_said_to_come_from_elsewhere(by_row: Path) -> None:
    decoder = open_graph(by_row).row_file.decoder
    assert decoder is not None
    rows = np.zeros((5, decoder.row_bytes), np.uint8)
    rows[2:, :8] = np.array([1, np.nan], "<f4").view(np.uint8)
    assert decoder.first_wrong(rows) == 2
    assert decoder.first_wrong(rows[:2]) == 2
    with pytest.raises(FormatError, match=r"no such row here: records of a run, or .*prepare the run again"):
        decoder.values(rows, _core.WorkerPool(1))
    (by_row / "features.bin").unlink()
    with pytest.raises(FormatError, match="no such row here"):
        decoder.values(rows, _core.WorkerPool(1))


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "by"), FEW_BITS[1:3])
def test_graphs_with_types(tmp_path: Path, dtype: str, by: str) -> None:
    """Batches, losses, derived rows and inference, of two node types in few bits beside rows of edges that are not."""
    rng = np.random.default_rng(0)
    rows = {"paper": features(), "author": features()[:90, :5]}
    edges = np.stack([rng.integers(0, 90, 900), rng.integers(0, NODES, 900)])
    about = np.stack([rng.integers(0, NODES, 300), rng.integers(0, 7, 300)])
    edge_rows = rng.standard_normal((900, 3)).astype(np.float32)
    labels = rng.integers(0, CLASSES, NODES)

    def graph_of(name: str, values: dict[str, np.ndarray], **options: Any) -> Graph:
        folder = tmp_path / name
        folder.mkdir()
        for what, array in (*values.items(), ("writes", edges), ("about", about), ("rows", edge_rows)):
            np.save(folder / f"{what}.npy", array)
        np.save(folder / "labels.npy", labels)
        np.save(folder / "train.npy", np.arange(0, NODES, 4))
        (folder / "graph.toml").write_text(
            '[[nodes]]\nname = "paper"\nfeatures = "paper.npy"\nlabels = "labels.npy"\ntrain = "train.npy"\n'
            '[[nodes]]\nname = "author"\nfeatures = "author.npy"\n'
            '[[nodes]]\nname = "topic"\nnum_nodes = 7\n'
            '[[edges]]\nsource = "author"\nrelation = "writes"\ntarget = "paper"\nfile = "writes.npy"\n'
            'features = "rows.npy"\nreverse = true\n'
            '[[edges]]\nsource = "paper"\nrelation = "about"\ntarget = "topic"\nfile = "about.npy"\nreverse = true\n'
        )
        out = tmp_path / f"{name}.oc"
        config = oc.ImportConfig(**options)
        oc.import_graph(f"arrays:{folder}", out, config=config, progress=False)
        return oc.derive_rows(out, "topic", mean="paper", by="about", progress=False)

    values = {name: dequantised(x, dtype, by) for name, x in rows.items()}
    few, plain = graph_of("few", rows, feature_dtype=dtype, scale=by), graph_of("plain", values)
    assert few.manifest.version == 3
    with Runtime() as runtime:
        derived = [graph.array(runtime, "n2.features").memmap() for graph in (few, plain)]
        assert derived[0].dtype == np.float32
        assert np.array_equal(*derived)
    sampling = oc.SampleConfig(fanouts=(3, 3), batch_size=20, edge_rows=True, splits=("train",))
    with Runtime() as runtime, open_session(few, runtime, "online", config=sampling) as opened:
        for batch in opened.batches("train", 0):
            for number, name in enumerate(values):
                ids = batch.graph.nodes[number].ids
                assert_same_bits(batch.rows[number], values[name][ids])
            assert batch.rows[3].shape[1] == 3  # of edges, as they are
            del batch
    found = []
    for graph in (few, plain):
        for mode in ("memory", "online", "packed"):
            checkpoint = tmp_path / f"{graph.path.stem}-{mode}"
            result = oc.train(
                graph,
                loading=mode,
                model=oc.ModelConfig("rgcn", hidden=8),
                sampling=oc.SampleConfig(fanouts=(3, 3), batch_size=20),
                training=TRAINING,
                limits=oc.Limits("64MiB"),
                observer=QUIET,
                checkpoint=checkpoint,
            )
            out = tmp_path / "out.npy"
            oc.infer(graph, model=checkpoint, out=out, memory="8MiB", observer=QUIET)
            found.append((tuple(result.batch_losses), np.load(out).tobytes()))
    assert len(set(found)) == 1
