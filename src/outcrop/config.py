"""Options as frozen dataclasses with units and defaults, and the sizes people type."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Literal

from outcrop.errors import ArgumentError

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS[f"{_letter}iB"] = 1024**_power
    _UNITS[f"{_letter}B"] = 1000**_power
    _UNITS[_letter] = 1024**_power

Size = int | str

ALLOWANCE_BYTES = 384 << 20
"""Memory that a training process takes on top of its budget, whatever the size of the graph.

Covers the interpreter, torch (a CPU build) and its allocator, the model with its optimizer, and activations and
gradients of hidden size 256 with batches of 1024 seeds and fanouts 10,10. Measured under a kernel limit that
counts everything: 252 MiB for sage and 265 MiB for gat with batches of 200 seeds, 288 MiB and 326 MiB with
1024. Preparing does not load torch and takes 64 MiB. Wider models and larger batches add activations: hidden
size x 4 bytes x nodes per batch, a few times.
"""


def parse_size(size: Size, *, feature_bytes: int | None = None) -> int:
    """Bytes meant by ``size``: an int, ``"512MiB"``, ``"4GiB"``, or ``"3x"`` = 3 times ``feature_bytes``."""
    if isinstance(size, int):
        if size < 0:
            raise ArgumentError(f"size {size} is negative")
        return size
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", size)
    if match:
        number, unit = float(match[1]), match[2]
        if unit == "x" and feature_bytes is not None:
            return int(number * feature_bytes)
        if unit in _UNITS:
            return int(number * _UNITS[unit])
    raise ArgumentError(
        f"size {size!r} is not understood; write for example 512MiB, 4GiB, or 3x for disk space"
    )


def format_bytes(count: float) -> str:
    """``count`` bytes for people: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


@dataclass(frozen=True)
class IoConfig:
    """Block I/O engine. ``backend``: automatic tries io_uring first. ``depth``: requests in flight.
    ``rate_bytes_per_second``: limit of reads and writes together, on average; 0 = none."""

    backend: Literal["automatic", "uring", "pread"] = "automatic"
    depth: int = 128
    max_request_bytes: int = 1 << 20
    direct: bool = True
    threads: int = 4
    rate_bytes_per_second: int = 0


@dataclass(frozen=True)
class SampleConfig:
    """What is sampled. ``fanouts``: neighbours per hop, -1 = all. ``epochs``: pool of epochs sampled ahead.
    ``degrees``: record each node's in-degree in the whole graph too, for GCN's normalisation.
    ``first_epoch``: training epoch number of the first epoch of the pool, a multiple of ``epochs``; epochs are
    drawn by their number."""

    fanouts: tuple[int, ...] = (10, 10)
    batch_size: int = 1024
    epochs: int = 1
    replace: bool = False
    seed: int = 0
    sampler: Literal["neighbor"] = "neighbor"
    splits: tuple[str, ...] = field(default=("train", "valid", "test"))
    degrees: bool = False
    first_epoch: int = 0

    def __post_init__(self) -> None:
        problems = []
        if not 1 <= len(self.fanouts) <= 15:
            problems.append(f"{len(self.fanouts)} fanouts given, 1 to 15 are possible")
        problems += [f"fanout {f} is neither positive nor -1" for f in self.fanouts if f < 1 and f != -1]
        if self.replace and -1 in self.fanouts:
            problems.append("fanout -1 (all neighbours) cannot be drawn with replacement")
        if self.batch_size < 1:
            problems.append(f"batch size {self.batch_size} is below 1")
        if not 0 <= self.seed < 2**64:
            problems.append(f"seed {self.seed} is negative or does not fit 64 bits")
        if self.epochs < 1:
            problems.append(f"epochs {self.epochs} is below 1")
        if self.first_epoch < 0:
            problems.append(f"first epoch {self.first_epoch} is negative")
        elif self.epochs >= 1 and self.first_epoch % self.epochs:
            problems.append(
                f"first epoch {self.first_epoch} is no multiple of the {self.epochs} epochs of a pool"
            )
        if self.sampler != "neighbor":
            problems.append(f"sampler {self.sampler!r} is unknown; known: neighbor")
        if problems:
            raise ArgumentError("; ".join(problems))


@dataclass(frozen=True)
class PlanConfig:
    """Limits in bytes. ``memory``: host memory of loading; ``gpu_memory``: device cache and batches on the device;
    ``disk_space``: all files of the run. None = no limit (memory: everything is cached)."""

    memory: int | None = None
    gpu_memory: int = 0
    disk_space: int | None = None
    packed_splits: tuple[str, ...] = ("train", "valid")
    slots: int | None = None


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained.

    Attributes:
        hidden: Width between layers, for gat all heads together; None = 256, for gat 32 per head.
        layers: As many as the batches have hops.
        dropout: Share of hidden values zeroed between layers.
        device: cpu, cuda or cuda:N.
        trace_losses: Whether the result lists the loss of every batch.
        checkpoint_every: Epochs between checkpoints; the last epoch always has one.
    """

    model: str = "sage"
    hidden: int | None = None
    layers: int = 2
    heads: int = 4
    dropout: float = 0.0
    epochs: int = 10
    learning_rate: float = 3e-3
    weight_decay: float = 0.0
    seed: int = 0
    device: str = "cpu"
    trace_losses: bool = False
    checkpoint_every: int = 1

    def __post_init__(self) -> None:
        problems = []
        if self.model not in ("sage", "gat", "gcn"):
            problems.append(f"model {self.model!r} is unknown; known: sage, gat, gcn")
        counts = {
            "hidden": 1 if self.hidden is None else self.hidden,
            "layers": self.layers,
            "heads": self.heads,
            "epochs": self.epochs,
            "checkpoint_every": self.checkpoint_every,
        }
        problems += [f"{name} {value} is below 1" for name, value in counts.items() if value < 1]
        if self.model == "gat" and self.hidden is not None and self.heads >= 1 and self.hidden % self.heads:
            problems.append(f"hidden {self.hidden} is no multiple of heads {self.heads}")
        if not 0.0 <= self.dropout < 1.0:
            problems.append(f"dropout {self.dropout} is not in [0, 1)")
        if not 0.0 < self.learning_rate < math.inf:
            problems.append(f"learning rate {self.learning_rate} is not a positive number")
        if not 0.0 <= self.weight_decay < math.inf:
            problems.append(f"weight decay {self.weight_decay} is negative or not a number")
        if not -(2**63) <= self.seed < 2**64:
            problems.append(f"seed {self.seed} does not fit 64 bits")
        if problems:
            raise ArgumentError("; ".join(problems))


@dataclass(frozen=True)
class GraphShape:
    """Size of a generated benchmark graph; the default is the standard graph of docs/benchmarks.md."""

    name: str = "standard"
    nodes: int = 2_000_000
    edges: int = 30_000_000
    features: int = 128
    train_fraction: float = 0.01
    eval_fraction: float = 0.005

    @property
    def feature_bytes(self) -> int:
        return self.nodes * self.features * 4

    def arguments(self) -> list[str]:
        """Options of ``outcrop generate``."""
        return [
            "--nodes",
            str(self.nodes),
            "--edges",
            str(self.edges),
            "--features",
            str(self.features),
            "--train-fraction",
            str(self.train_fraction),
            "--valid-fraction",
            str(self.eval_fraction),
            "--test-fraction",
            str(self.eval_fraction),
        ]
