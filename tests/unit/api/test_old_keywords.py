"""Keywords of before options were objects: what they mean is what the objects that the warning shows mean."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from artifact_support import memory_folder, small_graph
from outcrop.api import advise, embed, graph, infer, prepare, train
from outcrop.api.old_keywords import written
from outcrop.errors import ArgumentError
from outcrop.runtime.progress import SilentProgress
from outcrop.store.graph import Graph

SILENT = SilentProgress()


def told(line: str) -> None: ...


# For each front door: old keywords, and the arguments that they are now. Every old keyword is in one of them.
TRAIN: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"model": "gat", "hidden": 64, "heads": 2, "dropout": 0.5, "layers": 2},
        {"model": oc.ModelConfig("gat", 64, 2, 2, 0.5)},
    ),
    ({"fanouts": [5, 3]}, {"sampling": oc.SampleConfig((5, 3))}),
    (
        {"batch_size": 7, "sampler": "labor", "dependency": 4, "seed": 9, "epochs": 3},
        {
            "sampling": oc.SampleConfig(batch_size=7, sampler="labor", batch_dependency=4, seed=9),
            "training": oc.TrainConfig(seed=9),
            "epochs": 3,
        },
    ),
    ({"seed": 9}, {"training": oc.TrainConfig(seed=9)}),
    ({"mode": "memory"}, {"loading": oc.InMemory()}),
    ({"mode": "online", "topology": "paged"}, {"loading": oc.Online(topology="paged")}),
    (
        {"mode": "online", "io": "gpu", "stripes": ["a", "b"], "cache_strategy": "GTCF"},
        {"loading": oc.Online(row_reads="gpu", stripes=("a", "b"), cache_strategy="GTCF")},
    ),
    ({"mode": "online", "sample_on": "gpu"}, {"loading": oc.Online(sample_on="gpu")}),
    ({"mode": "dynamic", "cache_policy": "lru"}, {"loading": oc.Dynamic(cache_policy="lru")}),
    (
        {"mode": "partition", "partitions": 6, "resident": 2},
        {"loading": oc.Partition(partitions=6, resident=2)},
    ),
    ({"partitions": 6}, {"loading": oc.Packed()}),  # meant nothing in this mode
    ({"sample_epochs": 2}, {"run": oc.Replay(2)}),
    ({"refresh": True, "sample_epochs": 2, "refresh_rate": "9MiB"}, {"run": oc.Refresh(2, "9MiB")}),
    ({"refresh": True, "run": "pools"}, {"run": oc.Refresh(1, None, "pools")}),
    ({"run": "a.run", "sampler": "labor"}, {"run": "a.run"}),  # which a run overruled
    (
        {"memory": "1GiB", "gpu_memory": "2MiB", "disk_space": "3x"},
        {"memory": "1GiB", "limits": oc.Limits(gpu_memory="2MiB", disk_space="3x")},
    ),
    (
        {"checkpoint": "ckpt", "checkpoint_minutes": 2.0, "resume": False},
        {"checkpoint": oc.Checkpoints("ckpt", 2.0, resume=False)},
    ),
    (
        {
            "learning_rate": 0.1, "weight_decay": 0.2, "device": "cuda", "evaluate_every": 2, "patience": 3,
            "schedule": "step", "warmup_steps": 4, "step_epochs": 5, "step_factor": 0.6,
            "class_weights": [1, 2], "precision": "bfloat16", "loss": "bce", "metric": "auc",
            "trace_losses": True, "test": False,
        },
        {
            "training": oc.TrainConfig(
                learning_rate=0.1, weight_decay=0.2, device="cuda", evaluate_every=2, patience=3, schedule="step",
                warmup_steps=4, step_epochs=5, step_factor=0.6, class_weights=(1.0, 2.0), precision="bfloat16",
                loss="bce", metric="auc", trace_losses=True, test=False,
            )
        },
    ),
    (
        {"progress": SILENT, "trace_path": "t.jsonl", "on_choice": told},
        {"observer": oc.Observer(SILENT, "t.jsonl", told)},
    ),
]  # fmt: skip
PREPARE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {
            "fanouts": [4, 4], "batch_size": 8, "sampler": "labor", "replace": False, "dependency": 2,
            "degrees": True, "seed": 3, "epochs": 2,
        },
        {"sampling": oc.SampleConfig((4, 4), 8, sampler="labor", batch_dependency=2, degrees=True, seed=3),
         "epochs": 2},
    ),
    (
        {"task": "link", "negatives": 2.0, "filter_negatives": True},
        {"sampling": oc.SampleConfig(task="link", negatives=2.0, filter_negatives=True)},
    ),
    ({"gpu_memory": 5, "disk_space": "2x"}, {"limits": oc.Limits(gpu_memory=5, disk_space="2x")}),
    ({"layout": "4,2", "rates": (1e9, 1e5)}, {"packing": oc.PackConfig("4,2", (1e9, 1e5))}),
    ({"progress": False, "on_choice": told}, {"observer": oc.Observer(False, on_choice=told)}),
]  # fmt: skip
INFER: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"checkpoint": "ckpt"}, {"model": "ckpt"}),
    (
        {"fanouts": [3, 3], "batch_size": 5, "seed": 1},
        {"sampling": oc.InferSampling((3, 3), 5, 1)},
    ),
    ({"trace_path": "t", "progress": False}, {"observer": oc.Observer(False, "t")}),
]
EMBED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {
            "model": "dot", "dim": 8, "negatives": 5, "by_degree": 0.5, "chunk": 3, "batch": 9, "loss": "margin",
            "margin": 2.0, "optimizer": "sgd", "learning_rate": 0.3, "relation_learning_rate": 0.4, "start": 0.1,
            "n3": 0.01, "l2": 0.02, "buffer": 2, "sweeps": 4, "order": "beta", "seed": 5, "reciprocal": True,
        },
        {
            "config": oc.EmbedConfig(
                model="dot", dim=8, negatives=5, by_degree=0.5, chunk=3, batch=9, loss="margin", margin=2.0,
                optimizer="sgd", learning_rate=0.3, relation_learning_rate=0.4, start=0.1, n3=0.01, l2=0.02,
                buffer=2, sweeps=4, order="beta", seed=5, reciprocal=True,
            )
        },
    ),
    (
        {"rate": 0.3, "relation_rate": 0.4},
        {"config": oc.EmbedConfig(learning_rate=0.3, relation_learning_rate=0.4)},
    ),
    ({"gpu_memory": "1MiB"}, {"limits": oc.Limits(gpu_memory="1MiB")}),
    ({"trace_path": "t", "progress": False}, {"observer": oc.Observer(False, "t")}),
]  # fmt: skip
IMPORT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {
            "num_nodes": 9, "label_kind": "class", "reverse": True, "keep_duplicates": True, "keep_self_loops": False,
            "feature_dtype": "float16", "bfloat16_bits": False, "allow_nonfinite": True,
        },
        {
            "config": oc.ImportConfig(
                num_nodes=9, label_kind="class", reverse=True, keep_duplicates=True, keep_self_loops=False,
                feature_dtype="float16", allow_nonfinite=True,
            )
        },
    ),
    (
        {
            "split_protocol": "fractions", "train_fraction": 0.5, "valid_fraction": 0.1, "test_fraction": 0.2,
            "split_seed": 3, "split_index": 1,
        },
        {
            "config": oc.ImportConfig(
                split_protocol="fractions", train_fraction=0.5, valid_fraction=0.1, test_fraction=0.2, split_seed=3,
                split_index=1,
            )
        },
    ),
    ({"features": "x", "train": [0], "valid": None}, {"features": "x", "splits": {"train": [0]}}),
    ({"splits": {"train": [0]}, "valid": [1], "test": [2]}, {"splits": {"train": [0], "valid": [1], "test": [2]}}),
]  # fmt: skip
GENERATE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {
            "kind": "rmat", "nodes": 9, "edges": 20, "features": 3, "classes": 2, "dtype": "int8",
            "train_fraction": 0.5, "valid_fraction": 0.1, "test_fraction": 0.2, "homophily": 0.7, "skew": 0.8,
            "a": 0.4, "b": 0.3, "c": 0.2, "signal": 1.5, "seed": 7,
        },
        {
            "config": oc.GenerateConfig(
                kind="rmat", nodes=9, edges=20, features=3, classes=2, dtype="int8", train_fraction=0.5,
                valid_fraction=0.1, test_fraction=0.2, homophily=0.7, skew=0.8, a=0.4, b=0.3, c=0.2, signal=1.5,
                seed=7,
            )
        },
    ),
]  # fmt: skip
BUCKETS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {
            "partitions": 6, "slices": 2, "dim": 8, "numbering": "degree", "valid_fraction": 0.1, "test_fraction": 0.2,
            "seed": 3,
        },
        {"config": oc.BucketConfig(6, "degree", 0.1, 0.2, 3, 2), "dim": 8},
    ),
    ({"partitions": None}, {"config": oc.BucketConfig()}),
]  # fmt: skip
ADVISE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {
            "model": "gcn", "hidden": 8, "fanouts": [4, 4], "batch_size": 9, "sampler": "labor", "seed": 2,
            "sample_epochs": 3,
        },
        {
            "model": oc.ModelConfig("gcn", 8),
            "sampling": oc.SampleConfig((4, 4), 9, sampler="labor", seed=2),
            "run": oc.Replay(3),
        },
    ),
    ({"memory": 9, "gpu_memory": 5, "disk_space": "2x"}, {"memory": 9, "limits": oc.Limits(None, 5, "2x")}),
    (
        {"machines": ["machine-a"], "prices": "prices", "budget": 1e4},
        {"market": oc.Market(("machine-a",), "prices", 1e4)},
    ),
    ({"run": "a.run", "fanouts": [3], "sample_epochs": 2}, {"run": "a.run"}),  # which a run overruled
]  # fmt: skip
DOORS: dict[str, tuple[dict[str, str], Callable[..., dict[str, Any]], list[Any]]] = {
    "advise": (advise._OLD, advise._objects, ADVISE),
    "train": (train._OLD, train._objects, TRAIN),
    "prepare": (prepare._OLD, prepare._objects, PREPARE),
    "infer": (infer.OLD, infer.objects, INFER),
    "import_graph": (graph._OLD_OF_IMPORT, graph._objects_of_import, IMPORT),
    "generate_graph": (graph._OLD_OF_GENERATE, graph._objects_of_generate, GENERATE),
    "embed_prepare": (embed._OLD_OF_PREPARE, embed._objects_of_prepare, BUCKETS),
    "embed_train": (embed._OLD, embed._objects, EMBED),
}
CASES = [(door, number) for door, (_, _, cases) in DOORS.items() for number in range(len(cases))]


@pytest.mark.parametrize(("door", "number"), CASES)
def test_old_keywords_are_these_objects(door: str, number: int) -> None:
    table, build, cases = DOORS[door]
    call, now = cases[number]
    old = {name: value for name, value in call.items() if name in table}
    given = {name: value for name, value in call.items() if name not in table}
    assert {**given, **build(old, given)} == now


def test_every_old_keyword_is_tried() -> None:
    for door, (table, _, cases) in DOORS.items():
        assert set(table) <= {name for call, _ in cases for name in call}, door


@pytest.fixture(scope="module", name="graph")
def a_graph():
    with memory_folder() as folder:
        yield small_graph(folder / "g")


def test_the_warning_shows_the_call_as_it_is_written_now(graph: Graph) -> None:
    """What it shows, run as it stands, trains the same batches to the same losses without a warning."""
    old: dict[str, Any] = {"fanouts": [3, 2], "batch_size": 20, "hidden": 8, "sample_epochs": 1, "seed": 4}
    usual: dict[str, Any] = {"epochs": 2, "memory": "4MiB"}
    with pytest.warns(DeprecationWarning, match="is now written") as caught:
        before = oc.train(graph, **old, **usual, trace_losses=True, progress=False, mode="ondisk")
    (message,) = [str(one.message) for one in caught if "is now written" in str(one.message)]
    shown = re.search(r"outcrop\.train\(\.\.\., (.*)\)$", message)
    assert shown is not None, message
    assert Path(caught[0].filename) == Path(__file__), "the line to be changed"
    now = eval(f"dict({shown[1]})", {"outcrop": oc})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after = oc.train(graph, **now, **usual)
    assert after.batch_losses == before.batch_losses
    assert len(before.batch_losses) > 2


def test_old_and_new_together(graph: Graph) -> None:
    """An object that is given is changed by the keywords beside it."""
    made = train._objects({"dropout": 0.5}, {"model": oc.ModelConfig("gcn", 16)})
    assert made == {"model": oc.ModelConfig("gcn", 16, dropout=0.5)}
    made = train._objects({"batch_size": 7}, {"sampling": oc.SampleConfig(seed=5)})
    assert made == {"sampling": oc.SampleConfig(batch_size=7, seed=5)}
    with pytest.raises(ArgumentError, match="epochs 0 is below 1"):
        oc.train(graph, refresh=True, sample_epochs=0)  # type: ignore[call-arg]
    with pytest.raises(
        ArgumentError, match=r"memory='1MiB' and limits=Limits\(memory='2MiB'\): keep one of them"
    ):
        oc.train(graph, memory="1MiB", limits=oc.Limits("2MiB"))
    with pytest.raises(
        ArgumentError, match=r"epochs=3 and training=TrainConfig\(epochs=5\): keep one of them"
    ):
        oc.train(graph, epochs=3, training=oc.TrainConfig(epochs=5))
    with pytest.raises(TypeError, match="unexpected keyword argument 'hiden'"):
        oc.train(graph, hiden=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'hiden'"):
        train.dry_run(graph, {"hiden": 3})
    with pytest.raises(ArgumentError, match=r"sampling has epochs=3: leave that out, and write run=Replay"):
        oc.train(graph, sampling=oc.SampleConfig(epochs=3))
    with pytest.raises(ArgumentError, match=r"sampling has epochs=3: leave that out, and write epochs=4"):
        oc.prepare(graph, graph.path.with_name("r"), sampling=oc.SampleConfig(epochs=3))


def test_a_graph_made_with_old_keywords_is_that_of_the_objects(tmp_path: Path) -> None:
    """Data are not written into the warning."""
    sizes: dict[str, Any] = {"nodes": 40, "edges": 90, "features": 2, "classes": 2}
    with pytest.warns(
        DeprecationWarning, match=r"generate_graph\(\.\.\., config=outcrop.GenerateConfig\(nodes=40, edges=90"
    ):
        before = oc.generate_graph(tmp_path / "a", **sizes, progress=False)
    now = oc.generate_graph(tmp_path / "b", oc.GenerateConfig(**sizes), progress=False)
    assert before.digest() == now.digest()
    edges, train = np.arange(60).reshape(30, 2), np.arange(30)
    with pytest.warns(DeprecationWarning, match="is now written") as caught:
        before = oc.import_graph(edges, tmp_path / "c", reverse=True, train=train, test=[31])  # type: ignore[call-arg]
    (message,) = [str(one.message) for one in caught if "is now written" in str(one.message)]
    assert message == (
        "outcrop.import_graph(reverse=, train=, test=) is now written outcrop.import_graph(..., "
        "config=outcrop.ImportConfig(reverse=True), splits={'train': ..., 'test': [31]})"
    )
    splits = {"train": train, "test": [31]}
    now = oc.import_graph(edges, tmp_path / "d", oc.ImportConfig(reverse=True), splits=splits)
    assert before.digest() == now.digest()
    with pytest.raises(ArgumentError, match="give train or a table of splits, one of them"):
        oc.import_graph(edges, tmp_path / "e", train=train, splits=[1])  # type: ignore[call-arg]


def test_options_are_written_as_a_call_that_makes_them() -> None:
    for options in (
        oc.ModelConfig("gat", heads=2),
        oc.SampleConfig((3, -1), replace=False, sampler="shadow"),
        oc.Limits("4GiB", disk_space=0),
        oc.Checkpoints("folder", minutes=0.5),
        oc.Partition(4, topology="paged"),
        replace(oc.TrainConfig(), class_weights=(1.0, 2.0)),
        oc.ImportConfig(keep_self_loops=False, train_fraction=0.5),
        oc.GenerateConfig("rmat", a=0.5),
        oc.Market(["machine-a"], budget=5.0),
    ):
        assert eval(written(options), {"outcrop": oc}) == options


def test_a_field_that_was_renamed_is_understood_by_its_old_name() -> None:
    now = oc.SampleConfig(sampler="labor", batch_dependency=4)
    written_now = (
        r"^outcrop.SampleConfig\(dependency=\) is now written outcrop.SampleConfig\(batch_dependency=4\)$"
    )
    with pytest.warns(DeprecationWarning, match=written_now) as caught:
        assert oc.SampleConfig(sampler="labor", dependency=4) == now  # type: ignore[call-arg]
    assert Path(caught[0].filename) == Path(__file__), "the line to be changed"
    with pytest.warns(DeprecationWarning, match="is now written"):
        assert replace(now, dependency=2).batch_dependency == 2  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match="outcrop.SampleConfig.batch_dependency$") as caught:
        assert now.dependency == 4  # type: ignore[attr-defined]
    assert Path(caught[0].filename) == Path(__file__), "the line to be changed"
    with pytest.raises(TypeError, match="unexpected keyword argument 'dependence'"):
        oc.SampleConfig(dependence=4)  # type: ignore[call-arg]
