"""Refusals of a budget write every count of bytes so that a person reads its size and a program its number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcrop as oc
from artifact_support import memory_folder
from outcrop import _core
from outcrop.advisor.choose import Spooling
from outcrop.api import spool
from outcrop.config import EmbedConfig, exact_bytes, format_bytes
from outcrop.embed.sizing import fewest_partitions
from outcrop.errors import BudgetError
from outcrop.partition import fitting_partitions
from outcrop.runtime import Runtime
from outcrop.store.graph import Graph

TRAIN = {"fanouts": (4, 4), "batch_size": 40, "hidden": 4, "epochs": 1, "progress": False}
MODES = ("packed", "online", "memory", "memmap", "ondisk", "dynamic")
COUNTS = ("rows", "nodes", "edges")  # what other large numbers are followed by


def unsized(text: str) -> list[str]:
    """The numbers of ``text`` with five digits or more that are no counts of something else and whose size is missing
    or wrong."""
    return [
        found[0]
        for found in re.finditer(r"(?<![\w./-])(\d{5,})(?![\w/])(?: (\w+))?(?: \(([^)]*)\))?", text)
        if found[2] not in COUNTS and (found[2], found[3]) != ("bytes", format_bytes(int(found[1])))
    ]


def test_what_is_unsized() -> None:
    assert unsized("12345 bytes (12.1 KiB) of 9999 bytes, 54321 rows in /tmp/12345/g") == []
    assert unsized("12345 bytes (12.0 KiB), 54321 are free, 77777 bytes") == [
        "12345 bytes (12.0 KiB)",
        "54321 are",
        "77777 bytes",
    ]


@pytest.mark.parametrize("count", [10_000, 1 << 20, 1_048_575, (1 << 30) + (1 << 29), 1 << 40, 1 << 51])
def test_both_languages_write_sizes_alike(count: int) -> None:
    with pytest.raises(BudgetError) as refused:
        _core.Budget.create(count).reserve("x", count + 10_000)
    assert (
        f"memory budget of {exact_bytes(count)} cannot hold another {exact_bytes(count + 10_000)} for 'x'"
        in str(refused.value)
    )


@pytest.fixture(scope="module")
def graph() -> Iterator[Graph]:
    with memory_folder() as folder:
        yield oc.generate_graph(
            folder / "g", nodes=600, edges=6000, features=200, classes=3, train_fraction=0.1
        )


def calls(graph: Graph, out: Path) -> dict[str, Callable[[], Any]]:
    """Calls that are refused, at each of several limits in Python and in C++."""
    edges = np.random.default_rng(0).integers(0, 600, (6000, 2))
    oc.train(graph, mode="memory", model="gcn", checkpoint=out / "ckpt", **TRAIN)
    oc.embed_prepare(graph.path, out / "embed", partitions=8, progress=False)

    def training(mode: str, memory: int) -> Callable[[], Any]:
        return lambda: oc.train(graph, mode=mode, memory=memory, **TRAIN)

    def preparing(name: str, **limits: Any) -> Callable[[], Any]:
        where: dict[str, Any] = {
            "fanouts": (4, 4),
            "batch_size": 40,
            "epochs": 1,
            "progress": False,
            **limits,
        }
        return lambda: oc.prepare(graph, out / name, **where)

    return {
        **{f"{mode} {memory}": training(mode, memory) for mode in MODES for memory in (20_000,)},
        **{f"prepare {n}": preparing(f"p{n}", memory=n) for n in (20_000, 200_000)},
        "disk": preparing("disk", memory="4MiB", disk_space=50_000),
        "device": preparing("device", memory="4MiB", gpu_memory=20_000),
        "infer": lambda: oc.infer(
            graph, checkpoint=out / "ckpt", out=out / "o.npy", memory=300_000, progress=False
        ),
        **{f"import {n}": lambda n=n: oc.import_graph(edges, out / "i", memory=n) for n in (20_000, 700_000)},
        "generate": lambda: oc.generate_graph(out / "n", memory=100_000),
        "buckets": lambda: oc.embed_prepare(
            graph.path, out / "b", partitions=8, memory=200_000, progress=False
        ),
        "embed": lambda: oc.embed_train(out / "embed", dim=400, memory=500_000, progress=False),
        "sizing": lambda: fewest_partitions(10**9, 10**9, 0, EmbedConfig(dim=400), 10**6),
        "partitions": lambda: fitting_partitions(graph, 64, 2, 20_000, 0),
        "topology": lambda: _core.CscBuilder(
            (runtime := Runtime()).io, runtime.budget, runtime.workers, str(out), 10, memory_bytes=10_000
        ),
    }


def test_every_refusal_writes_sizes(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the refusals that were turned into others on their way up."""
    monkeypatch.setattr(spool, "settle", lambda *_: Spooling(0, None, ""))  # which would measure the machine
    said = set()
    for name, call in calls(graph, tmp_path).items():
        with pytest.raises(BudgetError) as refused:
            call()
        error: BaseException | None = refused.value
        while error is not None:
            said.add(re.sub(r"\d+", "0", str(error)))
            assert unsized(str(error)) == [], (name, str(error))
            error = error.__cause__ or error.__context__
    assert len(said) >= 12
