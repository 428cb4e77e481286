"""Loaders in the training loops of others: Lightning, Accelerate, torchdata. Each test skips where they are absent."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import outcrop
from artifact_support import memory_folder
from outcrop.api.run import Run
from outcrop.runtime.runtime import Runtime
from outcrop.testing import write_graph

importlib.import_module("torch_geometric")

EPOCHS, STEPS = 3, 10
# Their warnings, threads and variables are no concern of ours.
pytestmark = [
    pytest.mark.slow,  # importing Lightning takes seconds
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.leaks("env", "thread", "fd", reason="the framework keeps what it starts"),
]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    rng = np.random.default_rng(0)
    edges = np.unique(rng.integers(0, 400, (2, 3000)), axis=1)
    with memory_folder() as folder:
        graph = write_graph(
            folder / "graph",
            edges,
            400,
            Runtime(threads=1),
            features=rng.standard_normal((400, 8)).astype(np.float32),
            labels=rng.integers(0, 3, 400),
            splits={"train": np.arange(100), "valid": np.arange(100, 130)},
            edge_weight=rng.random(edges.shape[1]).astype(np.float32),
        )
        yield outcrop.prepare(
            graph, folder / "run", fanouts=(3, 3), batch_size=100 // STEPS, epochs=EPOCHS, memory="4MiB"
        )


@pytest.fixture(scope="module")
def expected(run: Run) -> list[list[int]]:
    """``n_id`` of all batches of three epochs."""
    return [batch.n_id.tolist() for epoch in range(EPOCHS) for batch in run.loader(epoch=epoch)]


def loss_of(model: Any, batch: Any) -> torch.Tensor:
    out = model(batch.x, batch.edge_index, edge_weight=batch.edge_weight)[: batch.batch_size]
    return torch.nn.functional.cross_entropy(out, batch.y)


def a_model() -> Any:
    from torch_geometric.nn import GCN

    torch.manual_seed(0)
    return GCN(8, 16, num_layers=2, out_channels=3)


def plain_weights(run: Run) -> torch.Tensor:
    """All weights after three epochs of a loop without a framework."""
    model, loader = a_model(), run.loader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def test_expected_batches_differ(expected):
    assert len(expected) == EPOCHS * STEPS == len(set(map(tuple, expected)))


def test_lightning_trains_every_epoch(run, expected, tmp_path):
    """30 steps, not 10: each on another batch; and the weights of a plain loop."""
    lightning = pytest.importorskip("lightning")
    seen: list[list[int]] = []
    scored: list[int] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = a_model()

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            seen.append(batch.n_id.tolist())
            return loss_of(self.model, batch)

        def validation_step(self, batch: Any, number: int) -> None:
            scored.append(batch.batch_size)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    options: dict[str, Any] = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "default_root_dir": tmp_path,
    }
    module, trainer = Module(), lightning.Trainer(max_epochs=EPOCHS, enable_checkpointing=False, **options)
    trainer.fit(module, run.loader(), run.loader("valid"))
    assert trainer.global_step == EPOCHS * STEPS
    assert seen == expected
    assert scored == [10, 10, 10] * EPOCHS
    weights = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    assert torch.equal(weights, plain_weights(run))
    # Stopped within the second epoch, its checkpoint goes on with the batches that are left.
    del seen[:]
    keep = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, "stopped", every_n_train_steps=STEPS + 4)
    first = lightning.Trainer(max_epochs=EPOCHS, max_steps=STEPS + 4, callbacks=[keep], **options)
    first.fit(Module(), run.loader())
    module = Module()
    second = lightning.Trainer(max_epochs=EPOCHS, enable_checkpointing=False, **options)
    second.fit(module, run.loader(), ckpt_path=tmp_path / "stopped.ckpt", weights_only=False)
    assert seen == expected


def test_accelerate_trains_every_epoch(run, expected):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = a_model()
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), run.loader()
    )
    seen = []
    for _ in range(EPOCHS):
        for batch in loader:
            with accelerator.accumulate(model):
                seen.append(batch.n_id.tolist())
                optimizer.zero_grad()
                accelerator.backward(loss_of(model, batch))
                optimizer.step()
    assert seen == expected
    weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    assert torch.equal(weights, plain_weights(run))


def test_torchdata_keeps_and_restores_the_state(run, expected):
    """A StatefulDataLoader asks its data set for ``state_dict`` in the middle of an epoch, and gives it back."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    class Batches(torch.utils.data.IterableDataset):
        def __init__(self) -> None:
            self.loader = run.loader()

        def __iter__(self) -> Iterator[Any]:
            return iter(self.loader)

        def state_dict(self) -> dict[str, Any]:
            return self.loader.state_dict()

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.loader.load_state_dict(state)

    loader = stateful.StatefulDataLoader(Batches(), batch_size=None)
    seen = [batch.n_id.tolist() for batch in loader]
    for number, batch in enumerate(loader):
        seen.append(batch.n_id.tolist())
        if number == 3:
            break
    state = loader.state_dict()
    del batch, loader
    again = stateful.StatefulDataLoader(Batches(), batch_size=None)
    again.load_state_dict(state)
    seen += [batch.n_id.tolist() for batch in again]
    seen += [batch.n_id.tolist() for batch in again]
    assert seen == expected
