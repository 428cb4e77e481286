"""Metrics that inference reports of the splits, against NumPy on the file that it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import outcrop as oc
from outcrop.cli.main import app
from outcrop.store.graph import Graph

QUIET = oc.Observer(progress=False)
NODES, CLASSES = 300, 4
SPLITS = {"train": np.arange(0, 300, 3), "valid": np.arange(1, 300, 3), "test": np.arange(2, 290, 3)}


def imported(folder: Path, labels: np.ndarray, kind: str | None = None, **splits: np.ndarray) -> Graph:
    random = np.random.default_rng(0)
    source = {
        "edges": random.integers(0, NODES, (1500, 2)),
        "features": random.normal(size=(NODES, 8)).astype(np.float32),
        "labels": labels,
        **SPLITS,
        **splits,
    }
    return oc.import_graph(source, folder / "g.oc", oc.ImportConfig(label_kind=kind), progress=False)


def trained(graph: Graph) -> Path:
    checkpoint = graph.path.with_name("ckpt")
    oc.train(
        graph,
        model=oc.ModelConfig("sage", hidden=8),
        training=oc.TrainConfig(epochs=1),
        sampling=oc.SampleConfig(fanouts=(3, 3), batch_size=50),
        loading="memory",
        checkpoint=checkpoint,
        observer=QUIET,
    )
    return checkpoint


def inferred(graph: Graph, checkpoint: Any, **options: Any) -> tuple[dict[str, dict[str, Any]], np.ndarray]:
    out = graph.path.with_name("out.npy")
    report = oc.infer(graph, model=checkpoint, out=out, observer=QUIET, **options)
    return report.metrics, np.load(out)


def f1(found: np.ndarray, true: np.ndarray) -> float:
    total = int(found.sum() + true.sum())
    return 2 * int((found & true).sum()) / total if total else 0.0


def of_classes(found: np.ndarray, y: np.ndarray) -> dict[str, float]:
    found, y = found[y >= 0], y[y >= 0]
    there = np.union1d(found, y)
    return {
        "accuracy": float((found == y).mean()),
        "macro_f1": float(np.mean([f1(found == one, y == one) for one in there])),
        "labels": len(y),
    }


@pytest.mark.parametrize("method", ["layerwise", "sampled"])
@pytest.mark.parametrize("output", ["logits", "classes", "probabilities"])
def test_of_classes(tmp_path: Path, output: str, method: str) -> None:
    y = np.random.default_rng(1).integers(-1, CLASSES, NODES)
    graph = imported(tmp_path, y)
    metrics, found = inferred(graph, trained(graph), output=output, method=method)
    best = found if output == "classes" else found.argmax(1)
    assert list(metrics) == list(SPLITS)
    for split, ids in SPLITS.items():
        assert list(metrics[split]) == ["accuracy", "macro_f1", "labels"]
        assert metrics[split] == pytest.approx(of_classes(best[ids], y[ids]))


def test_of_splits_that_are_written_whole(tmp_path: Path) -> None:
    """In any order; another has a node too few, and of the third no label is known."""
    y = np.random.default_rng(1).integers(0, CLASSES, NODES)
    y[SPLITS["test"]] = -1
    graph = imported(tmp_path, y)
    checkpoint = trained(graph)
    nodes = np.random.default_rng(2).permutation(np.setdiff1d(np.arange(NODES), SPLITS["valid"][5]))
    metrics, found = inferred(graph, checkpoint, nodes=nodes, memory="1MiB")
    place = np.argsort(nodes)
    ids = SPLITS["train"]
    best = found.argmax(1)[place[np.searchsorted(nodes[place], ids)]]
    assert list(metrics) == ["train"]
    assert metrics["train"] == pytest.approx(of_classes(best, y[ids]))
    assert list(inferred(graph, checkpoint, nodes="valid")[0]) == ["valid"]
    assert inferred(graph, checkpoint, output="embeddings")[0] == {}


def test_of_several_labels(tmp_path: Path) -> None:
    y = np.random.default_rng(1).integers(-1, 2, (NODES, CLASSES))
    graph = imported(tmp_path, y, "multilabel")
    metrics, scores = inferred(graph, trained(graph))
    for split, ids in SPLITS.items():
        known, true, found = y[ids] >= 0, y[ids] == 1, scores[ids] > 0
        assert metrics[split] == pytest.approx(
            {
                "micro_f1": f1(found & known, true),
                "macro_f1": np.mean([f1((found & known)[:, c], true[:, c]) for c in range(CLASSES)]),
                "accuracy": (found == true)[known].mean(),
                "labels": known.sum(),
            }
        )
        assert next(iter(metrics[split])) == "micro_f1"


def test_of_targets(tmp_path: Path) -> None:
    y = np.random.default_rng(1).normal(size=NODES).astype(np.float32)
    y[::5] = np.nan
    graph = imported(tmp_path, y, "regression")
    metrics, values = inferred(graph, trained(graph), output="values")
    for split, ids in SPLITS.items():
        error = np.abs(values[ids, 0].astype(np.float64) - y[ids])
        error = error[~np.isnan(error)]
        expected = {"mae": error.mean(), "rmse": np.sqrt((error**2).mean()), "labels": len(error)}
        assert metrics[split] == pytest.approx(expected)


def test_many_nodes_are_looked_at_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from outcrop.training import split_metrics

    y = np.random.default_rng(1).integers(0, CLASSES, NODES)
    graph = imported(tmp_path, y)
    checkpoint = trained(graph)
    whole, _ = inferred(graph, checkpoint)
    monkeypatch.setattr(split_metrics, "_PIECE_BYTES", 100)
    assert inferred(graph, checkpoint)[0] == whole


def test_labels_of_another_graph_may_mean_others(tmp_path: Path) -> None:
    """Values, more classes, and classes that are numbered otherwise: of words, or of the same numbers."""
    y = np.random.default_rng(1).integers(0, CLASSES, NODES)
    checkpoint = trained(imported(tmp_path, y))
    names = np.array(["a", "b", "c", "d"])[y]
    for name, labels, kind in (
        ("values", y + 0.5, "regression"),
        ("more", np.arange(NODES) % 7, None),
        ("words", names, None),
        ("same", y[::-1].copy(), None),
    ):
        (tmp_path / name).mkdir()
        assert inferred(imported(tmp_path / name, labels, kind), checkpoint, any_graph=True)[0] == {}
    own = oc.open_graph(tmp_path / "words" / "g.oc")
    assert set(inferred(own, trained(own), any_graph=True)[0]) == set(SPLITS)


def test_labels_are_not_read_where_no_split_is_written_whole(tmp_path: Path) -> None:
    graph = imported(tmp_path, np.arange(NODES) % CLASSES)
    checkpoint = trained(graph)
    whole = (graph.path / "labels.bin").read_bytes()
    (graph.path / "labels.bin").write_bytes(b"x" + whole[1:])
    assert inferred(graph, checkpoint, nodes=[5])[0] == {}
    with pytest.raises(oc.ChecksumError, match=r"labels\.bin"):
        inferred(graph, checkpoint)


def test_a_model_with_other_columns_has_none(tmp_path: Path) -> None:
    """One logit for two classes, and three values for one target."""
    graph = imported(tmp_path, np.arange(NODES) % 2)
    sampling = oc.InferSampling(fanouts=(3,))
    assert inferred(graph, _Linear(1), sampling=sampling)[0] == {}
    assert set(inferred(graph, _Linear(2), sampling=sampling)[0]) == set(SPLITS)
    (tmp_path / "values").mkdir()
    graph = imported(tmp_path / "values", np.arange(NODES) * 0.5, "regression")
    assert inferred(graph, _Linear(3), sampling=sampling)[0] == {}
    assert set(inferred(graph, _Linear(1), sampling=sampling)[0]) == set(SPLITS)


class _Linear(torch.nn.Module):
    def __init__(self, columns: int):
        super().__init__()
        self.of = torch.nn.Linear(8, columns)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.of(x)


def test_a_split_without_nodes_has_none(tmp_path: Path) -> None:
    graph = imported(tmp_path, np.arange(NODES) % CLASSES, test=np.zeros(0, np.int64))
    assert list(inferred(graph, trained(graph))[0]) == ["train", "valid"]


def test_the_command_says_them(tmp_path: Path) -> None:
    y = np.random.default_rng(1).integers(0, CLASSES, NODES)
    graph = imported(tmp_path, y)
    out = tmp_path / "out.npy"
    arguments = ["infer", str(graph.path), "--checkpoint", str(trained(graph)), "--out", str(out)]
    done = CliRunner().invoke(app, [*arguments, "--nodes", "test"])
    assert done.exit_code == 0, done.output
    right = (np.load(out).argmax(1) == y[SPLITS["test"]]).mean()
    assert f"accuracytest{right:.4f}" in "".join(done.output.split())
