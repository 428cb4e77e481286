"""How far scoring the test nodes is, which no epoch counts, is said batch by batch, and keeps none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import outcrop as oc

TASK = "score the test nodes"


class Told:
    """A receiver of progress that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def start(self, task: str, total: int, unit: str) -> None:
        self.said.append(("start", task, total, unit))

    def advance(self, task: str, amount: int) -> None:
        self.said.append(("advance", task, amount))

    def note(self, task: str, text: str) -> None: ...

    def finish(self, task: str) -> None:
        self.said.append(("finish", task))


@pytest.mark.parametrize("mode", ["packed", "online", "memory"])
def test_batches_of_the_test_nodes_are_counted(tmp_path: Path, mode: str) -> None:
    shape = oc.GenerateConfig(nodes=600, edges=4000, features=16, train_fraction=0.1, test_fraction=0.3)
    graph = oc.generate_graph(tmp_path / "g.oc", shape)
    told = Told()
    options = {"sampling": oc.SampleConfig(fanouts=(3, 3), batch_size=20), "memory": "4MiB", "epochs": 1}
    trained = oc.train(graph, loading=mode, observer=oc.Observer(progress=told), **options)
    of_test = [one for one in told.said if one[1] == TASK]
    count = 9  # 180 nodes
    assert of_test[0] == ("start", TASK, count, "batches")
    assert sum(one[2] for one in of_test if one[0] == "advance") == count
    assert of_test[-1] == ("finish", TASK)
    quiet = oc.train(graph, loading=mode, observer=oc.Observer(progress=False), **options)
    assert quiet.test_accuracy == trained.test_accuracy
