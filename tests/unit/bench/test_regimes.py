"""The grid of settings in which ways of training are compared: which cells, what is counted, and going on."""

from __future__ import annotations

import json
import subprocess
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from outcrop.bench import regimes
from outcrop.bench.cgroup import SlowDisk
from outcrop.bench.graphs import GraphShape
from outcrop.bench.regimes import AUTO, Cell
from outcrop.errors import OutcropError


def silent(text: str) -> None:
    assert text


def test_the_first_cells_differ_from_the_middle_in_one_factor_and_none_comes_twice():
    every = list(regimes.cells())
    assert every == list(regimes.cells())
    assert len({cell.name for cell in every}) == len(every) > 100
    assert every[0] == Cell()
    for cell in every[1:12]:
        assert sum(a != b for a, b in zip(vars(cell).values(), vars(Cell()).values(), strict=True)) == 1
    assert all(cell.batches <= 5000 for cell in every)
    assert {cell.disk for cell in every} == {"its own", "a third", "a tenth", "random at a tenth"}


@pytest.mark.parametrize(
    ("disk", "slowed"),
    [
        ("its own", None),
        ("a third", (400, 20)),
        ("a tenth", (120, 6)),
        ("random at a tenth", (None, 6)),
    ],
)
def test_disks_are_slowed_from_the_rates_that_they_have(
    monkeypatch: pytest.MonkeyPatch, disk: str, slowed: tuple[int | None, int] | None
):
    rates = {"sequential_bytes_per_s": 1200.0, "random_ops_per_s": 60.0}
    monkeypatch.setattr(regimes, "read_rates", lambda path: rates)
    found = regimes._slowed(Path("g.oc"), disk)
    assert found == (None if slowed is None else SlowDisk(Path("g.oc/features.bin"), *slowed))


class Trainings:
    """Stands for training: each way takes its seconds, or ends in what it raises."""

    def __init__(self, seconds: dict[str, Any], taken: str):
        self.seconds, self.taken, self.limits, self.count = seconds, taken, [], 0

    def __call__(
        self, graph: Path, cell: Cell, way: list[str], disk: SlowDisk | None, limit: float | None = None
    ) -> tuple[float, dict[str, Any]]:
        self.count += 1
        if "start" in graph.name:
            return 1.0, {}
        name = next(name for name, options in regimes.WAYS.items() if options == way)
        self.limits.append((name, limit))
        if isinstance(found := self.seconds[name], Exception):
            raise found
        return found, {"mode": self.taken, "spooled_epochs": 0, "chosen": "because", "choice_seconds": 0.5}


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def ensure(folder: Path, shape: GraphShape, log: object) -> Path:
        return folder / f"{shape.name}.oc"

    def run(
        seconds: dict[str, Any], count: int = 1, rounds: int = 3, taken: str = "packed"
    ) -> tuple[dict[str, Any], Trainings]:
        trainings = Trainings(seconds, taken)
        monkeypatch.setattr(regimes, "_train", trainings)
        monkeypatch.setattr(regimes, "ensure_graph", ensure)
        monkeypatch.setattr(regimes, "_slowed", lambda graph, disk: None)
        return regimes.run(tmp_path, count, rounds, silent), trainings

    return run


def test_regret_is_the_time_of_auto_over_that_of_the_best_way_without_starting(measured):
    found, trainings = measured({"packed": 11.0, "online, spooled": 6.0, "online": 21.0, AUTO: 9.0})
    (cell,) = found["cells"].values()
    # auto was packed, and took half a second to choose it.
    assert cell["seconds"] == {"packed": 7.5, "online, spooled": 5.0, "online": 20.0, AUTO: 8.0}
    assert (cell["taken"], cell["choice_seconds"]) == (["packed"] * 3, [0.5] * 3)
    assert (cell["best"], cell["regret"]) == ("online, spooled", 1.6)
    assert found["shares"] == {"most": 0.0, "all": 0.0}
    assert not found["holds"]
    assert trainings.limits[:4] == [
        (AUTO, None),
        ("online, spooled", 12.75),
        ("online", 9.0),
        (AUTO, None),
    ]


def test_ways_that_auto_did_not_take_are_trained(measured):
    found, _ = measured({"packed": 4.0, "online, spooled": 6.0, "online": 21.0, AUTO: 5.5}, taken="online")
    (cell,) = found["cells"].values()
    assert cell["seconds"] == {"packed": 3.0, "online, spooled": 5.0, "online": 4.0, AUTO: 4.5}
    assert (cell["best"], cell["regret"]) == ("packed", 1.5)


def test_ways_that_fail_or_take_too_long_are_left_out_and_told(measured):
    late = subprocess.TimeoutExpired("outcrop", 22.0)
    failing = OutcropError("memory is too small")
    found, trainings = measured({"packed": 11.0, "online, spooled": failing, "online": late, AUTO: 11.5})
    (cell,) = found["cells"].values()
    assert cell["seconds"] == {"packed": 10.0, "online, spooled": None, "online": None, AUTO: 10.5}
    assert cell["regret"] == 1.05
    assert found["holds"]
    assert found["rows"][0][1:5] == ["10.5 s", "10.0 s", "-", "> 21 s"]
    assert cell["problems"] == {"online, spooled": "memory is too small", "online": "stopped after 22.0 s"}
    assert len([way for way, _ in trainings.limits if way == "online"]) == 1  # not in every round


def test_a_way_that_was_stopped_in_one_round_is_not_the_best():
    """Its other rounds may have been those of a faster disk."""
    cell = {
        "cell": {},
        "start_seconds": 1.0,
        "all_seconds": {AUTO: [6.0, 9.0], "packed": [5.0, 8.0], "online, spooled": [5.0], "online": []},
        "stopped": {"online, spooled": 13.0, "online": 6.5},
    }
    (found,) = regimes.summary({"one": cell})["cells"].values()
    assert found["seconds"] == {AUTO: 6.5, "packed": 5.5, "online, spooled": None, "online": None}
    assert (found["best"], found["regret"]) == ("packed", 6.5 / 5.5)
    assert regimes.summary({"one": cell})["rows"][0][3] == "> 13 s"


def test_a_cell_in_which_auto_alone_fails_holds_no_bar(measured):
    failing = OutcropError("memory is too small")
    found, _ = measured({"packed": 11.0, "online, spooled": failing, "online": failing, AUTO: failing})
    (cell,) = found["cells"].values()
    assert (cell["best"], cell["regret"]) == ("packed", None)
    assert found["shares"] == {"most": 0.0, "all": 0.0}
    assert not found["holds"]


def test_the_same_command_goes_on_where_it_was_stopped(measured, tmp_path: Path):
    seconds = {"packed": 11.0, "online, spooled": 6.0, "online": 21.0, AUTO: 9.0}
    measured(seconds, count=2)
    found, trainings = measured(dict.fromkeys(seconds, 3.0), count=3)
    assert trainings.count == 3 * 4  # one cell more
    assert [cell["best"] for cell in found["cells"].values()][:2] == ["online, spooled"] * 2
    assert len(json.loads((tmp_path / "regimes.json").read_text())["measured"]) == 3
    assert [row[0] for row in found["rows"]] == [cell.name for cell in islice(regimes.cells(), 3)]
