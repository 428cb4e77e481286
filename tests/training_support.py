"""What the tests of training share: a runtime without the core, and a small graph whose labels can be learned."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields, make_dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from batch_reference import deliver, loopless_degrees, random_adjacency, sample
from outcrop.config import Checkpoints, ModelConfig, TrainConfig
from outcrop.runtime.trace import Trace
from outcrop.store.minibatch import MiniBatch
from outcrop.training.evaluate import evaluate
from outcrop.training.learning import LearningTask
from outcrop.training.loop import TrainResult, train
from outcrop.training.objectives import CLASSES as OF_CLASSES

NUM_NODES, DIM, CLASSES, BATCH = 120, 6, 3, 16


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, because a second only waits on matrices this small; no fsync, because no power fails here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    yield
    torch.set_num_threads(before)


_OF_MODEL = {"model": "name", **{name: name for name in ("hidden", "layers", "heads", "dropout")}}
Settings: Any = make_dataclass(
    "Settings",
    [
        ("model", str, "sage"),
        ("layers", int, 2),
        ("checkpoint_every", int, 1),
        ("checkpoint_minutes", float | None, None),
        ("checkpoint_steps", int | None, None),
        *(
            (of.name, of.type, of.default)
            for kind in (ModelConfig, TrainConfig)
            for of in fields(kind)
            if of.name not in ("name", "layers")
        ),
    ],
    frozen=True,
)
"""Model, training and checkpoints in one object, so that a test changes any field by ``replace``."""


def learning(settings: Any, in_dim: int, num_classes: int, **rest: Any) -> LearningTask:
    model = ModelConfig(**{new: getattr(settings, old) for old, new in _OF_MODEL.items()})
    training = TrainConfig(**{of.name: getattr(settings, of.name) for of in fields(TrainConfig)})
    return LearningTask(model, training, in_dim, num_classes, **rest)


class SilentProgress:
    def start(self, task: str, total: int, unit: str) -> None: ...
    def advance(self, task: str, amount: int) -> None: ...
    def note(self, task: str, text: str) -> None: ...
    def finish(self, task: str) -> None: ...


def a_runtime() -> SimpleNamespace:
    return SimpleNamespace(trace=Trace(), progress=SilentProgress())


class Problem:
    """Labels follow the mean of one feature over a node and its in-neighbours; batches depend on the epoch alone."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.adjacency = random_adjacency(NUM_NODES, 4, 0)
        self.features = torch.randn(NUM_NODES, DIM, generator=generator)
        means = [self.features[[v, *sources], 0].mean() for v, sources in enumerate(self.adjacency)]
        self.labels = torch.bucketize(torch.stack(means), torch.tensor([-0.2, 0.2])).tolist()
        self.degrees = loopless_degrees(self.adjacency)
        self.train_ids, self.valid_ids = list(range(80)), list(range(80, NUM_NODES))

    def batches(self, ids: list[int], key: int) -> Iterator[MiniBatch]:
        for start in range(0, len(ids), BATCH):
            graph = sample(
                self.adjacency, ids[start : start + BATCH], (4, 3), 1000 * key + start, self.labels
            )
            yield deliver(graph, self.features, self.degrees)

    def train_batches(self, epoch: int) -> Iterator[MiniBatch]:
        return self.batches(self.train_ids, epoch + 1)

    def valid_batches(self) -> Iterator[MiniBatch]:
        return self.batches(self.valid_ids, 0)

    def run(self, settings: Any, out=None, *, resume: bool = True, **kwargs) -> TrainResult:
        kwargs.setdefault("evaluate", evaluate)
        told = {"objective": kwargs.pop("objective", OF_CLASSES), "inputs": kwargs.pop("inputs", {})}
        return train(
            kwargs.pop("train_batches", self.train_batches),
            kwargs.pop("valid_batches", self.valid_batches),
            learning(settings, DIM, CLASSES, **told),
            a_runtime(),
            kept=out
            and Checkpoints(
                out,
                settings.checkpoint_minutes,
                settings.checkpoint_every,
                resume,
                settings.checkpoint_steps,
            ),
            **kwargs,
        )
