"""Progress as lines, by a clock that the test moves; who shows what; and that a display ends with its function."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import outcrop as oc
from artifact_support import memory_folder
from outcrop.errors import ArgumentError
from outcrop.runtime import bars, progress
from outcrop.runtime.progress import LineProgress, Progress, SilentProgress, shown, shows_progress, skip
from outcrop.runtime.recorder import _ListeningProgress
from outcrop.runtime.runtime import Runtime


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def lines(clock: Clock) -> tuple[LineProgress, list[str]]:
    written: list[str] = []
    return LineProgress(written.append, clock), written


def test_what_was_done_before_says_nothing_of_the_rest() -> None:
    """As where a training on a run goes on from a checkpoint; where nothing was left, nothing is said."""
    clock = Clock()
    shows, written = lines(clock)
    shows.start("embed", 100, "edges")
    skip(shows, "embed", 100)
    clock.now = 30.0
    shows.finish("embed")
    assert written == []
    clock.now = 0.0
    listening = _ListeningProgress(shows, lambda: None)
    listening.start("train", 4, "epochs")
    skip(listening, "train", 2)
    for clock.now, epochs in ((12.0, 0), (20.0, 1), (40.0, 1)):
        listening.advance("train", epochs)
    listening.finish("train")
    assert written == [
        "train: 50 % of 4 epochs in 12 s",
        "train: 75 % of 4 epochs in 20 s, about 20 s left",
        "train: 2 epochs in 40 s",
    ]


def test_bars_and_receivers_of_somebodys_own_are_told_what_was_done_before() -> None:
    drawn = bars.Bars(Console(file=io.StringIO()))
    drawn.start("train", 1000, "epochs")
    for _ in range(3):
        skip(drawn, "train", 300)
    drawn.advance("train", 1)
    assert drawn._bars is not None
    (task,) = drawn._bars.tasks
    assert (task.completed, (task.speed or 0.0) * task.elapsed <= 2) == (901, True)
    drawn.close()

    class Own:
        """A receiver of somebody's own, which knows no such thing."""

        moved = 0

        def advance(self, task: str, amount: int) -> None:
            self.moved += amount

    own = Own()
    skip(own, "train", 2)  # type: ignore[arg-type]
    assert own.moved == 2


def test_a_line_every_ten_seconds() -> None:
    clock = Clock()
    shows, written = lines(clock)
    shows.start("pack", 1000 << 20, "bytes")
    for second in range(1, 26):
        clock.now = second
        shows.advance("pack", 25 << 20)
    clock.now = 40
    shows.finish("pack")
    assert written == [
        "pack: 5 % of 1000.0 MiB in 2 s, about 38 s left",
        "pack: 30 % of 1000.0 MiB in 12 s, about 28 s left",
        "pack: 55 % of 1000.0 MiB in 22 s, about 18 s left",
        "pack: 625.0 MiB in 40 s",
    ]


def test_a_line_for_each_epoch_with_what_is_known() -> None:
    clock = Clock()
    shows, written = lines(clock)
    shows.start("train", 3, "epochs")
    for epoch, loss in enumerate((0.5, 0.25, 0.125), start=1):
        clock.now = 3700.0 * epoch
        shows.note("train", f"loss {loss}")
        shows.advance("train", 1)
    shows.finish("train")
    assert written == [
        "train: 33 % of 3 epochs in 1 h 01 min, about 2 h 03 min left; loss 0.5",
        "train: 66 % of 3 epochs in 2 h 03 min, about 1 h 01 min left; loss 0.25",
        "train: 3 epochs in 3 h 05 min; loss 0.125",
    ]


@pytest.mark.leaks("env", reason="torch sets TORCHINDUCTOR_CACHE_DIR when its compiler is first imported")
def test_a_line_every_ten_seconds_within_an_epoch() -> None:
    """A real training, one batch a second by the clock: what is written tells epoch, batch and the loss before."""
    clock, batches = Clock(), 25

    class Second(oc.Callback):
        def on_step(self, step: int, values: Any) -> None:
            clock.now += 1

    shows, written = lines(clock)
    with memory_folder() as folder:
        graph = oc.generate_graph(
            folder / "g",
            oc.GenerateConfig(
                nodes=500, edges=2000, features=4, classes=3, train_fraction=0.5, valid_fraction=0.1
            ),
        )
        options: dict[str, Any] = {
            "mode": "memory",
            "fanouts": (2,),
            "batch_size": 10,
            "hidden": 4,
            "test": False,
        }
        result = oc.train(graph, epochs=2, progress=shows, callbacks=[Second()], **options)
    loss, last = (
        f"loss {e['loss']:.4f}, validation accuracy {e['valid_accuracy']:.4f}" for e in result.epochs
    )
    assert graph.spec("train").shape[0] == 10 * batches
    assert [line for line in written if line.startswith("train")] == [
        "train: 0 % of 2 epochs in 2 s; epoch 1: 2 of 25 batches",
        "train: 0 % of 2 epochs in 12 s; epoch 1: 12 of 25 batches",
        "train: 0 % of 2 epochs in 22 s; epoch 1: 22 of 25 batches",
        f"train: 50 % of 2 epochs in 25 s, about 25 s left; {loss}",
        f"train: 50 % of 2 epochs in 35 s, about 15 s left; epoch 2: 10 of 25 batches; the epoch before: {loss}",
        f"train: 50 % of 2 epochs in 45 s, about 5 s left; epoch 2: 20 of 25 batches; the epoch before: {loss}",
        f"train: 2 epochs in 50 s; {last}",
    ]


def test_imports_and_generation_show_what_they_do(tmp_path: Path) -> None:
    class Seen(SilentProgress):
        """How much of how much each task has come to."""

        def __init__(self) -> None:
            self.tasks: dict[str, list[int]] = {}

        def start(self, task: str, total: int, unit: str) -> None:
            self.tasks[task] = [0, total]

        def advance(self, task: str, amount: int) -> None:
            self.tasks[task][0] += amount

    (tmp_path / "train.txt").write_text("a\tlikes\tb\n" * 30)
    generated, imported, triples = Seen(), Seen(), Seen()
    oc.generate_graph(
        tmp_path / "g", oc.GenerateConfig(nodes=50, edges=200, features=3, classes=2), progress=generated
    )
    parts = {"edges": np.arange(80).reshape(40, 2), "features": np.ones((80, 2), np.float32)}
    oc.import_graph(parts, tmp_path / "i", progress=imported)
    oc.import_triples(tmp_path, tmp_path / "kg", progress=triples)
    assert generated.tasks == {"edges": [200, 200], "features": [50, 50]}
    assert {"edges", "features"} <= imported.tasks.keys()
    assert len(triples.tasks) == 1
    for seen in (imported, triples):
        assert all(done == total for done, total in seen.tasks.values()), seen.tasks


def test_what_is_over_at_once_has_no_line() -> None:
    clock = Clock()
    shows, written = lines(clock)
    for task in ("sample", "plan"):
        shows.start(task, 10, "batches")
        clock.now += 1.5
        shows.advance(task, 10)
        shows.finish(task)
    shows.advance("plan", 1)  # of no task
    assert written == []


def test_who_shows_what(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    own = SilentProgress()
    assert shown(own) is own
    assert isinstance(shown(False), SilentProgress)
    assert isinstance(shown(None), SilentProgress)
    assert isinstance(shown(True), SilentProgress), "OUTCROP_PROGRESS=0"
    monkeypatch.delenv("OUTCROP_PROGRESS")
    found = shown(True)
    assert isinstance(found, LineProgress)
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.0)
    found.start("train", 2, "epochs")
    found.advance("train", 1)
    found.finish("train")
    printed = capsys.readouterr()
    assert (printed.out, len(printed.err.splitlines())) == ("", 2)
    monkeypatch.setattr("sys.stderr", Terminal())
    assert isinstance(shown(True), bars.Bars)
    with Runtime(progress=False) as runtime:
        assert isinstance(runtime.progress, SilentProgress)


def test_what_receives_no_progress_is_refused() -> None:
    with pytest.raises(
        ArgumentError, match="progress <built-in function print> has no start, advance, finish"
    ):
        shown(print)  # type: ignore[arg-type]


def test_a_notebook_without_widgets_has_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich would warn there, and draw nothing."""
    monkeypatch.delenv("OUTCROP_PROGRESS")
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    found: dict[str, Any] = {"ipywidgets": None}
    monkeypatch.setattr("importlib.util.find_spec", found.get)
    assert isinstance(shown(True), LineProgress)
    found["ipywidgets"] = object()
    assert isinstance(shown(True), bars.Bars)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Displays that were closed."""
    closed: list[Any] = []

    class Watched(SilentProgress):
        def close(self) -> None:
            closed.append(self)

    monkeypatch.setattr(progress, "shown", lambda given: Watched() if given is True else given)
    return closed


def test_a_display_ends_with_its_function(ended: list[Any]) -> None:
    @shows_progress
    def work(fails: bool, progress: Progress | bool = True) -> Any:
        if fails:
            raise ZeroDivisionError
        return progress

    used = work(False)
    assert ended == [used]
    with pytest.raises(ZeroDivisionError):
        work(True)
    assert len(ended) == 2
    own = SilentProgress()
    assert work(False, progress=own) is own
    assert len(ended) == 2


def test_bars_live_while_tasks_do() -> None:
    """conftest.py sees to it that no thread stays."""
    file = Terminal()
    shows = bars.Bars(Console(file=file, force_terminal=True, width=120))
    for task in ("sample", "pack"):
        shows.start(task, 4, "bytes" if task == "pack" else "batches")
        shows.advance(task, 4)
        shows.note(task, "[red]as it is")
        shows.finish(task)
    shows.start("train", 4, "epochs")
    shows.close()
    text = file.getvalue()
    assert all(task in text for task in ("sample", "pack", "train", "[red]as it is"))
