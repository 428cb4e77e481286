"""A small training on a graph with types, the same in this process and in children that are killed."""

from __future__ import annotations

import os
from typing import Any

import torch

import outcrop as oc
from outcrop.runtime.runtime import Runtime

EPOCHS, BATCHES = 3, 7
OPTIONS: dict[str, Any] = {
    "model": oc.ModelConfig("rsage", hidden=16, no_rows="learned:4", dropout=0.2),
    "sampling": oc.SampleConfig(fanouts=(4, 3), batch_size=16, seed=3),
    "training": oc.TrainConfig(trace_losses=True, seed=3),
    "epochs": EPOCHS,
    "memory": "4MiB",
}


class DyingProgress:
    """Dies by SIGKILL once training has told of more than ``after`` batches and epochs."""

    def __init__(self, after: int):
        self.left = after

    def start(self, task: str, total: int, unit: str) -> None: ...
    def note(self, task: str, text: str) -> None: ...
    def finish(self, task: str) -> None: ...
    def advance(self, task: str, amount: int) -> None:
        if task == "train":
            self.left -= 1
            if self.left < 0:
                os.kill(os.getpid(), 9)


def train_and_die(graph: str, folder: str, mode: str, after: int) -> None:
    """Trains with a checkpoint after every batch until it dies."""
    torch.set_num_threads(1)  # as in the tests
    oc.train(
        graph,
        loading=mode,
        checkpoint=oc.Checkpoints(folder, minutes=0),
        observer=oc.Observer(DyingProgress(after)),
        **OPTIONS,
    )


def train_with_threads(graph: str, folder: str, mode: str, threads: int) -> None:
    """Trains with so many workers and threads of torch, and prints how many there are."""
    os.sched_setaffinity(0, {*sorted(os.sched_getaffinity(0))[:threads]})
    torch.set_num_threads(threads)
    with Runtime() as runtime:
        print(runtime.workers.threads, torch.get_num_threads())
    oc.train(graph, loading=mode, checkpoint=folder, observer=oc.Observer(progress=False), **OPTIONS)
