"""Progress as bars of rich: on a terminal, in a notebook."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class _Amount(ProgressColumn):
    """Shows bytes as sizes, everything else as counts."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes, self._count, self._speed = (
            DownloadColumn(binary_units=True),
            MofNCompleteColumn(),
            TransferSpeedColumn(),
        )

    def render(self, task: Task) -> Any:
        if task.fields.get("unit") == "bytes":
            text = self._bytes.render(task)
            text.append("  ")
            text.append_text(self._speed.render(task))
            return text
        text = self._count.render(task)
        rate = task.finished_speed or task.speed
        text.append(f" {task.fields.get('unit', '')}" + (f"  {rate:,.1f}/s" if rate else ""))
        return text


class Bars:
    """Progress as bars, one line per task; the display lives while a task does, and until :meth:`close` at the most.

    Args:
        console: Where; None: standard error.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bars: Progress | None = None
        self._tasks: dict[str, Any] = {}

    def start(self, task: str, total: int, unit: str) -> None:
        if self._bars is None:
            self._bars = self._display()
            self._bars.start()
        self._tasks[task] = self._bars.add_task(task, total=max(total, 1), unit=unit, note="")

    def advance(self, task: str, amount: int) -> None:
        if self._bars is not None and task in self._tasks:
            self._bars.advance(self._tasks[task], amount)

    def skip(self, task: str, amount: int) -> None:
        """Shows an amount as done, which does not count for the speed."""
        if self._bars is not None and task in self._tasks:
            number = self._tasks[task]
            self._bars.reset(number, completed=int(self._bar(number).completed) + amount)

    def note(self, task: str, text: str) -> None:
        if self._bars is not None and task in self._tasks:
            self._bars.update(self._tasks[task], note=text)

    def finish(self, task: str) -> None:
        if self._bars is not None and task in self._tasks:
            entry = self._tasks.pop(task)
            self._bars.update(entry, completed=self._bar(entry).total)
            if not self._tasks:
                self.close()

    def close(self) -> None:
        """Ends the display; the bars stay as far as they came."""
        if self._bars is not None:
            self._bars.stop()
        self._bars = None
        self._tasks.clear()

    def _bar(self, number: Any) -> Task:
        assert self._bars is not None
        return self._bars.tasks[self._bars.task_ids.index(number)]

    def _display(self) -> Progress:
        return Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            _Amount(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[note]}", markup=False),
            console=self._console,
        )
