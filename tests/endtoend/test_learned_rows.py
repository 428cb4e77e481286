"""Training with rows that are learned: the same losses in all modes and after resuming, inside the budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import outcrop as oc
from outcrop.errors import ArgumentError, BudgetError
from outcrop.nn import checkpoint as checkpoints
from outcrop.nn.schema import learned_bytes
from outcrop.store.graph import Graph
from typed_infer_support import expected, whole_of

SAMPLING = oc.SampleConfig(fanouts=(6, 4), batch_size=64)
QUIET = oc.Observer(progress=False)
LEARNED = oc.ModelConfig("rsage", hidden=32, no_rows="learned:8")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    path = tmp_path_factory.mktemp("typed") / "g.oc"
    config = oc.GenerateConfig(nodes=4000, edges=60_000, kind="typed", train_fraction=0.3)
    return oc.generate_graph(path, config, progress=False)


def trained(graph: Graph, **options: Any) -> Any:
    asked = {
        "model": LEARNED,
        "sampling": SAMPLING,
        "training": oc.TrainConfig(trace_losses=True, learning_rate=0.01),
        "epochs": 2,
        "observer": QUIET,
        "memory": "16MiB",
    }
    return oc.train(graph, **{**asked, **options})


@pytest.fixture(scope="module")
def in_memory(graph: Graph) -> Any:
    return trained(graph, loading="memory")


@pytest.mark.parametrize("mode", ["ondisk", "online", None])
def test_every_mode_has_the_losses_of_memory(graph: Graph, in_memory: Any, mode: str | None) -> None:
    again = trained(graph, **({} if mode is None else {"loading": mode}))
    assert again.batch_losses == in_memory.batch_losses
    state = in_memory.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in again.model.state_dict().items())


def test_steps_of_several_batches(graph: Graph, tmp_path: Path) -> None:
    """Losses are those of memory in every mode; rows that are learned are updated batch by batch alone."""
    options: dict[str, Any] = {
        "model": oc.ModelConfig("rsage", hidden=32, no_rows="random:8"),
        "training": oc.TrainConfig(trace_losses=True, accumulate=4),
    }
    found = trained(graph, loading="memory", **options).batch_losses
    alone = trained(graph, loading="memory", **options | {"training": oc.TrainConfig(trace_losses=True)})
    assert found[:4] != alone.batch_losses[:4]
    assert found[0] == alone.batch_losses[0]
    for mode in ("packed", "online", "ondisk"):
        assert trained(graph, loading=mode, **options).batch_losses == found, mode
    with pytest.raises(ArgumentError, match=r"updated after each batch: leave --accumulate 4 out"):
        trained(graph, training=oc.TrainConfig(accumulate=4))
    with pytest.raises(ArgumentError, match="accumulate 0"):
        oc.TrainConfig(accumulate=0)


def test_they_are_learned_from_random_rows_on(graph: Graph, in_memory: Any) -> None:
    random = trained(graph, model=oc.ModelConfig("rsage", hidden=32, no_rows="random:8"), loading="memory")
    assert random.batch_losses[0] == in_memory.batch_losses[0]
    assert random.batch_losses[2:] != in_memory.batch_losses[2:]
    table = in_memory.model.learned.table(3).numpy()
    begun = random.model.make_rows(3, np.arange(len(table))).numpy()
    moved = np.abs(table - begun).max(1)
    assert (moved > 0).mean() > 0.9
    assert moved.max() < 2


def test_a_training_that_goes_on_has_the_losses_of_one_that_did_not_end(
    graph: Graph, in_memory: Any, tmp_path: Path
) -> None:
    kept = tmp_path / "ckpt"
    trained(graph, loading="ondisk", epochs=1, checkpoint=kept)
    again = trained(graph, loading="ondisk", checkpoint=kept)
    assert again.resumed_from == 1
    assert again.batch_losses == in_memory.batch_losses
    loaded = oc.load_model(kept)
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name])
    found = oc.predict(graph, kept, observer=QUIET)
    np.testing.assert_allclose(found, expected(loaded, whole_of(graph, loaded)), rtol=1e-4, atol=1e-4)
    other = oc.generate_graph(
        tmp_path / "other.oc", oc.GenerateConfig(nodes=3000, edges=20_000, kind="typed"), progress=False
    )
    with pytest.raises(ArgumentError, match="whose rows were learned"):
        oc.predict(other, kept, any_graph=True, observer=QUIET)
    with pytest.raises(ArgumentError, match="schema"):
        trained(graph, checkpoint=kept, model=oc.ModelConfig("rsage", hidden=32, no_rows="random:8"))


def test_means_are_kept(graph: Graph, tmp_path: Path) -> None:
    trained(graph, loading="memory", epochs=1, checkpoint=tmp_path)
    found = checkpoints.read(tmp_path / checkpoints.LAST)
    assert found.optimizer["rows.3.exp_avg"].shape == found.model["learned.3"].shape
    assert found.optimizer["rows.3.exp_avg_sq"].any()
    assert "learned.3" in found.best


@pytest.mark.parametrize("mode", ["ondisk", "online"])
def test_they_are_inside_the_budget(graph: Graph, in_memory: Any, mode: str) -> None:
    """13 MB of rows: the smallest budget that is named is enough, and a byte less is not."""
    wide = oc.ModelConfig("rsage", hidden=32, no_rows="learned:40000")
    learned = 12 * 40_000 * graph.node_types[3].num_nodes
    with pytest.raises(BudgetError) as failed:
        trained(graph, model=wide, loading=mode, memory="8MiB", epochs=1)
    smallest = int(str(failed.value).split("the smallest budget that can is ")[1].split()[0])
    assert smallest > learned
    with pytest.raises(BudgetError):
        trained(graph, model=wide, loading=mode, memory=smallest - 1, epochs=1)
    report = trained(graph, model=wide, loading=mode, memory=smallest, epochs=1)
    assert learned < report.peak_host_bytes <= smallest
    assert report.peak_by_tag["learned-rows"] == learned_bytes(report.model.schema)
