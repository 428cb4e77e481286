"""Multi-label and regression targets: batches, losses, metrics and whole trainings, against NumPy written out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import outcrop as oc
from outcrop.errors import ArgumentError
from outcrop.training.metrics import Tally, batch_tally, loss_of, mean_auc, num_known
from outcrop.training.objectives import METRICS, choose_objective

pytestmark = pytest.mark.leaks(
    "env", reason="torch sets TORCHINDUCTOR_CACHE_DIR when its compiler is first imported"
)
NODES, COLUMNS = 240, 4
KINDS = ("multilabel", "regression", "one target")


def made_targets(kind: str, x: np.ndarray) -> np.ndarray:
    """Float [N, columns] or [N], NaN = unknown: every seventh node, and in regression single values."""
    rng = np.random.default_rng(3)
    values = x[:, :COLUMNS] + 0.1 * rng.normal(size=(NODES, COLUMNS)).astype(np.float32)
    if kind == "multilabel":
        values = (values > 0.3).astype(np.float32)
    else:
        values[rng.random(values.shape) < 0.05] = np.nan
    values[::7] = np.nan
    return values[:, 0] if kind == "one target" else values


@pytest.fixture(params=KINDS)
def made(request, tmp_path):
    """(graph, targets)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NODES, 8)).astype(np.float32)
    targets = made_targets(request.param, x)
    order = rng.permutation(NODES)
    labels = targets.copy()
    if request.param == "multilabel":
        labels = np.where(np.isnan(labels), -1, labels).astype(np.int64)
    source = {
        "edges": rng.integers(0, NODES, (1200, 2)),
        "features": x,
        "labels": labels,
        "train": order[:120],
        "valid": order[120:180],
        "test": order[180:],
    }
    kind = "multilabel" if request.param == "multilabel" else "regression"
    graph = oc.import_graph(source, tmp_path / "g", oc.ImportConfig(label_kind=kind))
    assert graph.label_kind == kind
    return graph, targets


OPTIONS = {
    "hidden": 16,
    "epochs": 3,
    "fanouts": [4, 3],
    "batch_size": 32,
    "trace_losses": True,
    "learning_rate": 0.02,
}


@pytest.mark.parametrize("mode", ["memory", "online"])
def test_batches_carry_the_targets_of_their_seeds(made, tmp_path, mode):
    graph, targets = made
    run = oc.prepare(graph, tmp_path / "run", fanouts=[4, 3], batch_size=32, memory="8MiB")
    for batch in run.loader(mode=mode):
        assert batch.y.dtype == torch.float32
        seeds = batch.n_id[: batch.batch_size].numpy()
        assert np.array_equal(batch.y.numpy(), targets[seeds], equal_nan=True)


def test_every_mode_learns_the_same(made, tmp_path):
    graph, targets = made
    results = {}
    for mode in ("memory", "online", "packed"):
        results[mode] = oc.train(graph, mode=mode, memory="16MiB", checkpoint=tmp_path / mode, **OPTIONS)
    first = results["memory"]
    assert first.metric == {"multilabel": "micro_f1", "regression": "mae"}[graph.label_kind]
    assert (first.test_accuracy, first.epochs[-1]["valid_accuracy"]) == (None, None)
    assert first.epochs[-1]["loss"] < first.epochs[0]["loss"]
    scores = [record["valid_metric"] for record in first.epochs]
    best = min(scores) if graph.label_kind == "regression" else max(scores)
    assert scores[first.best_epoch] == best
    for mode in ("online", "packed"):
        assert results[mode].batch_losses == first.batch_losses
        assert [r["valid_metric"] for r in results[mode].epochs] == scores
        assert results[mode].test_metric == first.test_metric
    # The score of the test nodes, from predictions with all neighbours where the batches have all of them.
    whole = oc.train(graph, mode="memory", **{**OPTIONS, "fanouts": [-1, -1], "epochs": 1})
    oc.infer(graph, model=whole.model, out=tmp_path / "o.npy")
    tests = graph_split(graph, "test")
    found, wanted = np.load(tmp_path / "o.npy")[tests], targets[tests].reshape(len(tests), -1)
    known = ~np.isnan(wanted)
    if graph.label_kind == "regression":
        expected = np.abs(found - wanted)[known].mean()
    else:
        right = (found > 0) & (wanted == 1) & known
        expected = 2 * right.sum() / (((found > 0) & known).sum() + (wanted == 1).sum())
    assert whole.test_metric == pytest.approx(expected, rel=1e-5)


def test_predictions_are_probabilities_or_values(made, tmp_path):
    graph, _ = made
    oc.train(graph, mode="memory", checkpoint=tmp_path / "c", **OPTIONS)

    def infer(output):
        oc.infer(graph, checkpoint=tmp_path / "c", out=tmp_path / f"{output}.npy", output=output)
        return np.load(tmp_path / f"{output}.npy")

    logits = infer("logits")
    if graph.label_kind == "regression":
        assert np.array_equal(infer("values"), logits)
        wrong = "probabilities"
    else:
        expected = torch.tensor(logits).double().sigmoid().numpy()
        assert infer("probabilities") == pytest.approx(expected, rel=1e-6)
        wrong = "values"
    for output in (wrong, "classes"):
        with pytest.raises(
            ArgumentError, match=rf"output '{output}' is unknown for labels of kind {graph.label_kind}"
        ):
            infer(output)


def test_probabilities_of_classes(tmp_path):
    golden = Path(__file__).parents[2] / "golden" / "checkpoint-0.1"
    for output in ("logits", "probabilities"):
        oc.infer(
            golden / "graph.oc", checkpoint=golden / "ckpt", out=tmp_path / f"{output}.npy", output=output
        )
    expected = torch.tensor(np.load(tmp_path / "logits.npy")).double().softmax(1).numpy()
    assert np.load(tmp_path / "probabilities.npy") == pytest.approx(expected, rel=1e-6)


def graph_split(graph, name):
    spec = graph.spec(name)
    return np.fromfile(graph.path / spec.file, np.int64)[: spec.shape[0]]


def test_training_goes_on_bit_for_bit(made, tmp_path):
    graph, _ = made
    whole = oc.train(graph, mode="memory", checkpoint=tmp_path / "a", sample_epochs=1, **OPTIONS)
    for epochs in (1, 3):
        options = {**OPTIONS, "epochs": epochs}
        parts = oc.train(graph, mode="memory", checkpoint=tmp_path / "b", sample_epochs=1, **options)
    assert parts.batch_losses == whole.batch_losses
    left, right = (load_file(tmp_path / name / "last.safetensors") for name in "ab")
    assert all(torch.equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize(
    ("kind", "loss"), [("multilabel", "bce"), ("regression", "mse"), ("regression", "l1")]
)
@pytest.mark.parametrize("columns", [None, 3])
def test_losses(kind, loss, columns):
    rng = np.random.default_rng(1)
    shape = (20,) if columns is None else (20, columns)
    scores = rng.normal(size=(20, columns or 1)).astype(np.float32)
    y = rng.integers(0, 2, shape).astype(np.float32) if kind == "multilabel" else rng.normal(size=shape)
    y = np.where(rng.random(shape) < 0.3, np.nan, y).astype(np.float32)
    found = loss_of(choose_objective(kind, loss), torch.tensor(scores), torch.tensor(y))
    s, t = (a.reshape(20, -1).astype(np.float64) for a in (scores, y))
    each = {
        "bce": np.log1p(np.exp(s)) - t * s,
        "mse": (s - t) ** 2,
        "l1": np.abs(s - t),
    }[loss]
    assert float(found) == pytest.approx(np.nanmean(each), rel=1e-5)
    known = (~np.isnan(t)).any(1).sum()
    assert num_known(choose_objective(kind, loss), torch.tensor(y)) == known


def f1(found: np.ndarray, true: np.ndarray) -> float:
    total = found.sum() + true.sum()
    return 2 * (found & true).sum() / total if total else 0.0


def tally(kind, metric, batches):
    made = Tally(choose_objective(kind, None, metric))
    for scores, y in batches:
        made.add(batch_tally(made.objective, torch.tensor(scores), torch.tensor(y)))
    return made.values()


def test_metrics_of_classes():
    rng = np.random.default_rng(2)
    scores, y = rng.normal(size=(90, 6)).astype(np.float32), rng.integers(-1, 4, 90)
    scores[:, 5] = -9  # neither there nor found: left out, as scikit-learn does
    found = tally("class", "macro_f1", [(scores[:50], y[:50]), (scores[50:], y[50:])])
    there, best = y >= 0, scores.argmax(1)
    assert found["accuracy"] == pytest.approx((best == y)[there].mean())
    assert found["macro_f1"] == pytest.approx(
        np.mean([f1((best == c)[there], (y == c)[there]) for c in range(5)])
    )


def area(positive: np.ndarray, negative: np.ndarray) -> float:
    """The chance that a positive scores above a negative, ties half."""
    above, below = positive[:, None], negative[None]
    return float(((above > below) + 0.5 * (above == below)).mean())


@pytest.mark.parametrize("classes", [2, 4])
def test_area_under_the_curve_of_classes(classes):
    rng = np.random.default_rng(classes)
    scores, y = rng.normal(size=(70, classes)).astype(np.float32), rng.integers(-1, classes, 70)
    found = tally("class", "auc", [(scores[:30], y[:30]), (scores[30:], y[30:])])
    s, t = scores[y >= 0].astype(np.float64), y[y >= 0]
    chance = np.exp(s) / np.exp(s).sum(1, keepdims=True)
    each = [area(chance[t == c, c], chance[t != c, c]) for c in range(classes)]
    assert found["auc"] == pytest.approx(np.mean(each), rel=1e-9)
    if classes == 2:
        assert each[0] == pytest.approx(each[1])  # the area of either class is that of the other


def test_metrics_of_multilabel_targets():
    rng = np.random.default_rng(3)
    scores = np.round(rng.normal(size=(80, 5)), 1).astype(np.float32)  # with ties
    y = rng.integers(0, 2, (80, 5)).astype(np.float32)
    y[:, 3], y[::9] = 1.0, np.nan  # a column without negatives has no area
    found = tally("multilabel", "auc", [(scores[:33], y[:33]), (scores[33:], y[33:])])
    known = ~np.isnan(y[:, 0])
    s, t = scores[known], y[known] == 1
    assert found["accuracy"] == pytest.approx(((s > 0) == t).mean())
    assert found["micro_f1"] == pytest.approx(f1((s > 0).ravel(), t.ravel()))
    assert found["macro_f1"] == pytest.approx(np.mean([f1(s[:, c] > 0, t[:, c]) for c in range(5)]))
    areas = [area(s[t[:, c], c], s[~t[:, c], c]) for c in (0, 1, 2, 4)]
    assert found["auc"] == pytest.approx(np.mean(areas), rel=1e-12)
    assert np.isnan(mean_auc(torch.zeros(3, 1), torch.ones(3, 1)))


def test_metrics_of_regression_and_of_nothing():
    rng = np.random.default_rng(4)
    scores, y = rng.normal(size=(40, 2)).astype(np.float32), rng.normal(size=(40, 2)).astype(np.float32)
    y[rng.random(y.shape) < 0.2] = np.nan
    found = tally("regression", None, [(scores[:11], y[:11]), (scores[11:], y[11:])])
    error = np.abs(scores.astype(np.float64) - y)
    assert found["mae"] == pytest.approx(np.nanmean(error))
    assert found["rmse"] == pytest.approx(np.sqrt(np.nanmean(error**2)))
    for kind in METRICS:
        assert all(np.isnan(value) for value in tally(kind, None, []).values())


def test_wrong_losses_and_metrics_are_refused(made, tmp_path: Path):
    graph, _ = made
    with pytest.raises(
        ArgumentError, match=rf"loss 'cross_entropy' does not go with labels of kind {graph.label_kind}"
    ):
        oc.train(graph, mode="memory", loss="cross_entropy")
    with pytest.raises(ArgumentError, match=r"metric 'f2' does not go with labels"):
        oc.train(graph, mode="memory", metric="f2")
    with pytest.raises(ArgumentError, match="class weights are for classes"):
        oc.train(graph, mode="memory", class_weights="balanced", **OPTIONS)
