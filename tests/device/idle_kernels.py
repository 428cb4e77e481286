"""A pytest plugin: kernels of the fake GPU compute nothing. A test that passes all the same compares too little.

Launches of a test, and of fixtures that it has for itself, are checked and queued as ever; when their turn comes they
do nothing, or fill with junk what ``gather`` and ``assemble`` are to write. Kernels of rings give and take commands, so
that nobody waits in vain, but junk is what they write and what is in the place of rows that they read. Fixtures that
tests share get kernels that work.

A test that launched a kernel has to fail then, which is counted as xfailed; one that passed is an error, unless
``EXCUSED`` says why it may. A test that fails before its first launch, or hangs, fails here, too. The list at the end
has the launches and the outcome of each. Long tests that launch nothing are left out (``no_kernels``, conftest.py).

    pytest -p idle_kernels tests/device/test_gather.py        (tests/device_runs.py has the whole command)
"""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import hypothesis
import numpy as np
import pytest

EXCUSED = {
    "test_rings.py::test_a_completion_kernel_that_never_runs_ends_the_wait[never]": (
        "no row is to come: the kernel that takes them does not run"
    ),
}
"""Tests that launch kernels and may pass though these do nothing, and why. One that no longer does is an error."""

JUNK = 0x40  # a number, equal to itself: to compare results of one GPU with each other is not enough
_LANDINGS, _ROW_BYTES, _OUT, _WRITE = 6, 16, 18, 26  # words of struct Submit of kernels/io_queue.h
_LANDING = np.dtype({"names": ["to", "bytes"], "formats": ["u8", "u4"], "offsets": [0, 8], "itemsize": 24})
_WRITTEN = {"gather": slice(4, 7), "assemble": slice(10, 13)}  # arguments: rows, address, bytes of a row


def pytest_configure(config: pytest.Config) -> None:
    # The first failure is enough: nobody reads the smallest one.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("idle", hypothesis.settings(), phases=phases, derandomize=True)
    hypothesis.settings.load_profile("idle")
    config.pluginmanager.register(IdleKernels())


@dataclass
class Outcome:
    """Of a test.

    Attributes:
        name: Of the module and of the test, with its parameters.
        why: The first line of what it said when it failed.
    """

    name: str
    launches: int = 0
    failed: bool = False
    why: str = ""

    @property
    def lucky(self) -> bool:
        """Whether kernels that did nothing made no difference."""
        return self.launches > 0 and not self.failed


class IdleKernels:
    """Notes launches and outcomes, and turns the outcomes round."""

    def __init__(self) -> None:
        self._outcomes: dict[str, Outcome] = {}
        self._running: Outcome | None = None
        self._shared = 0  # fixtures of several tests that are being made

    @property
    def _idle(self) -> Outcome | None:
        """The test that kernels do nothing for."""
        return None if self._shared else self._running

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = {item for item in items if item.get_closest_marker("no_kernels")}
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=sorted(left_out, key=str))

    def pytest_collection_finish(self) -> None:
        """By now conftest.py has begun the GPU."""
        from device_under_test import FAKE

        if not FAKE:
            raise pytest.UsageError("kernels of a real GPU cannot be kept from working")
        from fake.kernels import work_of
        from fake_gpu import FakeGpu

        launch = FakeGpu.launch

        def idle_launch(
            gpu: Any,
            name: str,
            entry: str,
            device: Any,
            warps: int,
            arguments: list[int],
            *how: Any,
            **named: Any,
        ) -> None:
            if self._idle is None:
                launch(gpu, name, entry, device, warps, arguments, *how, **named)
                return
            self._idle.launches += 1
            gpu.give(_idle_work(work_of(name, entry, warps, arguments), name, arguments))

        FakeGpu.launch = idle_launch  # type: ignore[method-assign]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._running = self._outcomes[item.nodeid] = Outcome(f"{item.path.name}::{item.name}")
        try:
            return (yield)
        finally:
            self._running = None

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        shared = fixturedef.scope != "function"
        self._shared += shared
        try:
            return (yield)
        finally:
            self._shared -= shared

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        found = self._outcomes[item.nodeid]
        hangs = call.excinfo is not None and str(call.excinfo.value).startswith("Timeout")
        if report.failed and call.excinfo is not None:
            found.failed, found.why = True, call.excinfo.exconly().splitlines()[0]
        if report.failed and found.launches and not hangs:
            report.outcome = "passed" if report.when == "teardown" else "skipped"
            if report.skipped:
                report.wasxfail = found.why
        elif report.when == "teardown" and report.passed and found.lucky and found.name not in EXCUSED:
            report.outcome = "failed"
            report.longrepr = (
                f"{item.nodeid} launched {found.launches} kernels, which did nothing, and passed: compare values that "
                "they make, or say in EXCUSED of tests/device/idle_kernels.py why it need not"
            )
        return report

    def _no_longer_lucky(self) -> list[str]:
        seen = {found.name for found in self._outcomes.values()}
        lucky = {found.name for found in self._outcomes.values() if found.lucky}
        return sorted(EXCUSED.keys() & (seen - lucky))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._no_longer_lucky():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("kernels that do nothing")
        for test, found in self._outcomes.items():
            ended = f"failed: {test}: {found.why}" if found.failed else f"passed: {test}"
            terminalreporter.line(f"{found.launches:7d} launches, {ended}")
        for name in self._no_longer_lucky():
            terminalreporter.line(f"{name} needs no excuse any more: take it out of EXCUSED", red=True)


def _idle_work(work: Any, name: str, arguments: list[int]) -> Any:
    """What is queued in the place of ``work``."""

    def run() -> None:
        if work.name == "io_submit":
            _submit_junk(work, *arguments[:3])
        elif name == "io_queue":
            work.run()
        elif name in _WRITTEN:
            rows, address, row_bytes = arguments[_WRITTEN[name]]
            if rows:
                ctypes.memset(address, JUNK, rows * row_bytes)

    return replace(work, run=run)


def _submit_junk(work: Any, table: int, fetched: int, queues: int) -> None:
    """Rows of junk are written; those that are read are not moved from where the disk puts them."""
    from fake.kernels import bytes_at

    from outcrop import _core

    rows = bytes_at(table, 8 * queues * _core.SUBMIT_WORDS).view(np.int64).reshape(queues, -1)
    junk = np.full(rows[:, _ROW_BYTES].max(), JUNK, np.uint8)
    rows[rows[:, _WRITE] != 0, _OUT : _OUT + 2] = junk.ctypes.data, 0  # where the first is, bytes to the next
    work.run()
    for address, count in rows[:, _LANDINGS : _LANDINGS + 2]:
        landings = bytes_at(int(address), _LANDING.itemsize * int(count)).view(_LANDING)
        for at in np.flatnonzero((landings["to"] != 0) & (landings["bytes"] != 0)):
            ctypes.memset(int(landings["to"][at]), JUNK, int(landings["bytes"][at]))
            landings["to"][at] = 0
