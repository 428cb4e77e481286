"""Options and arguments of other types than declared are refused where they enter, by name and value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from artifact_support import small_graph
from outcrop.config import BucketConfig, EmbedConfig, ImportConfig, InferSampling
from outcrop.config.declared import checks_arguments
from outcrop.errors import ArgumentError

OF_OPTIONS: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (oc.TrainConfig, {"epochs": "3"}, "epochs '3' is a str: give an integer"),
    (oc.TrainConfig, {"epochs": 2.5}, "epochs 2.5 is a float: give an integer"),
    (oc.TrainConfig, {"epochs": True}, "epochs True is a bool: give an integer"),
    (oc.TrainConfig, {"seed": None}, "seed is None: give an integer"),
    (oc.TrainConfig, {"learning_rate": "1e-3"}, "learning_rate '1e-3' is a str: give a number"),
    (oc.TrainConfig, {"patience": "2"}, "patience '2' is a str: give an integer or None"),
    (oc.TrainConfig, {"test": "no"}, "test 'no' is a str: give True or False"),
    (oc.TrainConfig, {"schedule": 3}, "schedule 3 is an int: give text"),
    (oc.TrainConfig, {"class_weights": 3}, "class_weights 3 is an int: give text, a sequence or None"),
    (oc.TrainConfig, {"class_weights": ["a"]}, "class_weights .*: give one number per class"),
    (oc.TrainConfig, {"epochs": "3", "seed": "a"}, "epochs '3' .*; seed 'a' is a str: give an integer"),
    (oc.ModelConfig, {"hidden": "64"}, "hidden '64' is a str: give an integer or None"),
    (oc.ModelConfig, {"name": None}, "name is None: give text"),
    (oc.SampleConfig, {"batch_size": 10.5}, "batch_size 10.5 is a float: give an integer"),
    (oc.SampleConfig, {"splits": "train"}, "splits 'train' is a str: give a sequence"),
    (oc.PackConfig, {"layout": 3}, "layout 3 is an int: give text"),
    (oc.Observer, {"trace": 3}, "trace 3 is an int: give text, a path or None"),
    (oc.SampleConfig, {"fanouts": 10}, "fanouts 10 are not understood"),
    (oc.Limits, {"memory": 1e9}, "memory 1000000000.0 is a float: give an integer, text or None"),
    (oc.Checkpoints, {"folder": 3}, "folder 3 is an int: give text or a path"),
    (oc.Checkpoints, {"folder": "a", "minutes": "1"}, "minutes '1' is a str: give a number or None"),
    (oc.Replay, {"epochs": "1"}, "epochs '1' is a str: give an integer"),
    (oc.Refresh, {"rate": 1.5}, "rate 1.5 is a float: give an integer, text or None"),
    (oc.Online, {"topology": 1}, "topology 1 is an int: give text"),
    (oc.Partition, {"partitions": "16"}, "partitions '16' is a str: give an integer or None"),
    (EmbedConfig, {"dim": "100"}, "dim '100' is a str: give an integer"),
    (BucketConfig, {"partitions": 2.0}, "partitions 2.0 is a float: give an integer"),
    (InferSampling, {"batch_size": "8"}, "batch_size '8' is a str: give an integer"),
    (ImportConfig, {"reverse": "yes"}, "reverse 'yes' is a str: give True or False or None"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "options", "says"), OF_OPTIONS)
def test_options(make: Callable[..., Any], options: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        make(**options)


def test_numbers_of_numpy_become_pythons() -> None:
    training = oc.TrainConfig(epochs=np.int64(3), learning_rate=np.float32(0.5), test=np.bool_(False))  # pyright: ignore[reportArgumentType]
    assert training == oc.TrainConfig(epochs=3, learning_rate=0.5, test=False)
    assert [type(v) for v in (training.epochs, training.learning_rate, training.test)] == [int, float, bool]
    assert type(oc.TrainConfig(learning_rate=1).learning_rate) is int  # as it was written


OF_TRAIN: list[tuple[dict[str, Any], str]] = [
    ({"graph": None}, "graph is None: give a Graph, text or a path"),
    ({"model": None}, "model is None: give text or a ModelConfig"),
    (
        {"model": oc.ModelConfig},
        "model is the class ModelConfig: give an object of it, ModelConfig()",
    ),
    ({"training": {"epochs": 2}}, "training {'epochs': 2} is a dict: give a TrainConfig or None"),
    ({"sampling": {}}, "sampling {} is a dict: give a SampleConfig or None"),
    ({"limits": {"memory": 3}}, "limits {'memory': 3} is a dict: give a Limits or None"),
    ({"loading": oc.Online}, "loading is the class Online: give an object of it, Online()"),
    ({"checkpoint": 3}, "checkpoint 3 is an int: give text, a path, a Checkpoints or None"),
    ({"memory": 1e9}, "memory 1000000000.0 is a float: give an integer, text or None"),
    ({"epochs": "3"}, "epochs '3' is a str: give an integer or None"),
    ({"callbacks": print}, "callbacks <built-in function print> is .*: give a sequence"),
    ({"observer": print}, "observer <built-in function print> is .*: give an Observer or None"),
]


@pytest.mark.parametrize(("given", "says"), OF_TRAIN)
def test_arguments_of_train(tmp_path: Path, given: dict[str, Any], says: str) -> None:
    graph = small_graph(tmp_path / "g")
    with pytest.raises(ArgumentError, match=says.replace("()", r"\(\)")):
        oc.train(**{"graph": graph, **given})
    assert not (tmp_path / "g.run").exists()


def test_a_module_is_not_trained_by_train(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(ArgumentError, match=r"model .*is a Linear: give text or a ModelConfig"):
        oc.train(small_graph(tmp_path / "g"), model=torch.nn.Linear(2, 2))


DOORS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (oc.prepare, {"graph": "g", "out": "r"}),
    (oc.infer, {"graph": "g", "model": "m", "out": "o.npy"}),
    (oc.predict, {"graph": "g", "model": "m"}),
    (oc.import_graph, {"source": "arrays:a", "out": "g"}),
    (oc.generate_graph, {"out": "g"}),
    (oc.embed_prepare, {"source": "g", "run": "e"}),
    (oc.embed_train, {"run": "e"}),
]


@pytest.mark.parametrize(("door", "given"), DOORS)
def test_every_front_door_checks_its_arguments(door: Callable[..., Any], given: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=r"memory 1.5 is a float: give an integer, text or None"):
        door(**given, memory=1.5)


def test_a_keyword_that_there_is_not_is_pythons_error() -> None:
    with pytest.raises(TypeError, match=r"train\(\) got an unexpected keyword argument 'epoch'"):
        oc.train("g", epoch=1)  # pyright: ignore[reportCallIssue]


def test_what_a_parameter_of_any_type_is_given_passes() -> None:
    @checks_arguments
    def door(a: Any, b: dict[str, int], *, c: str = "") -> tuple[Any, ...]:
        return a, b, c

    assert door(1, {}) == (1, {}, "")
    with pytest.raises(ArgumentError, match="c 1 is an int: give text"):
        door(1, {}, c=1)  # pyright: ignore[reportArgumentType]
