"""What the tests of training share: a runtime without the core, and a small graph whose labels can be learned."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from batch_reference import deliver, loopless_degrees, random_adjacency, sample
from outcrop.config import TrainConfig
from outcrop.runtime.trace import Trace
from outcrop.store.minibatch import MiniBatch
from outcrop.training.evaluate import evaluate
from outcrop.training.loop import TrainResult, train

NUM_NODES, DIM, CLASSES, BATCH = 120, 6, 3, 16


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, because a second only waits on matrices this small; no fsync, because no power fails here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    yield
    torch.set_num_threads(before)


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

    def run(self, config: TrainConfig, out=None, **kwargs) -> TrainResult:
        kwargs.setdefault("evaluate", evaluate)
        return train(
            kwargs.pop("train_batches", self.train_batches),
            kwargs.pop("valid_batches", self.valid_batches),
            config,
            out,
            a_runtime(),
            in_dim=DIM,
            num_classes=CLASSES,
            **kwargs,
        )
