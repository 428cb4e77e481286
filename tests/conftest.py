"""Fixtures for every test: leak guards, runtimes, real data; markers and what they need.

A test fails if it leaves a thread, a file descriptor, a changed environment variable or a memory reservation behind
(leaks.py says what counts). ``@pytest.mark.leaks("thread", reason=...)`` excuses a test, and says why.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

import leaks
import support
import tiers

if TYPE_CHECKING:
    from outcrop.runtime.runtime import Runtime

hypothesis.settings.register_profile(
    "outcrop",
    deadline=None,  # no test depends on how fast the machine is
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=bool(os.environ.get("OUTCROP_STRICT")),  # CI gives the same answer twice
    database=None,
    print_blob=True,
)
hypothesis.settings.load_profile("outcrop")

os.environ["OUTCROP_PROGRESS"] = "0"  # what tests print does not depend on how long they take

# A shell starts what it runs in the background deaf to Ctrl-C, which tests send, to themselves and their children.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["store_support"]

_failed = pytest.StashKey[bool]()

GPU_TESTS = "OUTCROP_GPU_TESTS"  # set where tests/device may run: unit/test_fake_gpu.py
collect_ignore = [] if os.environ.get(GPU_TESTS) else ["device"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        action="append",
        default=[],
        metavar="MARKER",
        help="a test with this marker must run: being skipped is a failure",
    )
    parser.addoption(
        "--share", metavar="K/N", help="runs each N-th test of those asked for, from the K-th on"
    )


_MANY_CASES = 3
# Of the guards themselves; of what reads as others do, at length; of what hardly reads.
_UNTORTURED = (
    "unit/test_guards.py",
    "endtoend/test_infer.py",
    "unit/embed/test_evaluate.py",
    "unit/embed/test_schedule.py",
    "unit/embed/test_step.py",
    "unit/embed/test_training.py",
    "unit/test_fake_gpu.py",
)


def pytest_configure(config: pytest.Config) -> None:
    try:
        support.torture()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Marks cases of tests before ``-m`` and ``-k`` choose; chooses among what these leave."""
    tiers.mark_slow_cases(items)
    yield
    _choose(config, items)
    if (share := config.getoption("--share")) is not None:
        items[:], others = tiers.in_share(items, tiers.share_of(share))
        config.hook.pytest_deselected(items=others)


def _choose(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under torture only the tests that it can affect run; see scripts/torture.sh. Long searches run where they are
    asked for, by ``-m soak`` or by name.
    """
    asked = "soak" in config.option.markexpr or any("::" in argument for argument in config.args)
    if not asked:
        searches = [item for item in items if item.get_closest_marker("soak")]
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=searches)
    if not support.torture():
        return
    untortured = [Path(__file__).parent / name for name in _UNTORTURED]
    if moved := [str(path) for path in untortured if not path.exists()]:
        raise pytest.UsageError(f"_UNTORTURED in tests/conftest.py names files that are not there: {moved}")

    def affected(item: pytest.Item) -> bool:
        uses = "make_runtime" in getattr(item, "fixturenames", ())
        uses = uses or getattr(getattr(item, "module", None), "TORTURED", False)
        left = "exact_io" in item.keywords and support.torture() != "pread"  # backends count alike
        left = left or item.path in untortured
        return (uses or "torture" in item.keywords) and not left

    # Of a test with many cases each torture takes another third, so that all three take them all.
    cases: dict[str, int] = {}
    turn = sorted(support.TORTURES).index(support.torture()) % 3

    def chosen(item: pytest.Item) -> bool:
        name = item.nodeid.partition("[")[0]
        cases[name] = cases.get(name, -1) + 1
        return many[name] <= _MANY_CASES or cases[name] % 3 == turn

    many = Counter(item.nodeid.partition("[")[0] for item in items)
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (kept if chosen(item) and affected(item) else left_out).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if "gpu" in item.keywords:
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_failed] = True
    required = [name for name in item.config.getoption("--require") if name in item.keywords]
    if report.skipped and required and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped although --require={required[0]}: {call.excinfo and call.excinfo.value}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A module under tests/device that skips itself while it is collected is caught by ``--require=gpu`` too."""
    report = yield
    required = [name for name in collector.config.getoption("--require") if name in collector.path.parts]
    if report.skipped and required:
        report.outcome = "failed"
        report.longrepr = f"skipped although --require={required[0]}: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def _pools() -> leaks.Pools:
    return leaks.Pools()


_frozen_modules = 0


def _freeze_modules() -> None:
    """Keeps what modules hold out of collections: with torch loaded one takes half a second, more than most tests."""
    global _frozen_modules
    if len(sys.modules) > _frozen_modules:
        gc.collect()
        gc.freeze()
        _frozen_modules = len(sys.modules)


@pytest.fixture(autouse=True)
def _leak_guard(request: pytest.FixtureRequest, _pools: leaks.Pools) -> Iterator[None]:
    _freeze_modules()
    _pools.warm()
    before = leaks.Snapshot.take()
    yield
    excused = {kind for mark in request.node.iter_markers("leaks") for kind in mark.args}
    found = {} if request.node.stash.get(_failed, False) else before.leaks(excused=excused)
    before.restore_variables()
    if found:
        pytest.fail("leaked " + "; ".join(f"{kind}: {what}" for kind, what in found.items()), pytrace=False)


@pytest.fixture
def make_runtime(request: pytest.FixtureRequest) -> Iterator[Callable[..., Runtime]]:
    """Makes runtimes: ``make_runtime(memory=None, **options of Runtime)``. At the end none may hold a reservation."""
    from outcrop.runtime.runtime import Runtime

    made: list[Runtime] = []

    def make(memory: int | str | None = None, **options: Any) -> Runtime:
        made.append(Runtime(**support.runtime_options(request.node.nodeid, memory, options)))
        return made[-1]

    yield make
    budgets = []
    for runtime in made:
        runtime.close()
        budgets.append(runtime.budget)
        vars(runtime).clear()  # pytest itself still refers to it; the engine must go now
    request.node.funcargs.clear()
    if not request.node.stash.get(_failed, False):
        _check_released(budgets)


def _check_released(budgets: list[Any]) -> None:
    deadline = time.monotonic() + leaks.GRACE_SECONDS
    while any(budget.now_bytes for budget in budgets):
        gc.collect()
        if time.monotonic() > deadline:
            held = [
                f"{usage.now_bytes} bytes under {tag!r}"
                for budget in budgets
                for tag, usage in budget.by_tag.items()
                if usage.now_bytes
            ]
            pytest.fail("leaked reservation: " + ", ".join(held), pytrace=False)
        time.sleep(0.005)


@pytest.fixture
def runtime(make_runtime: Callable[..., Runtime]) -> Runtime:
    """One runtime without a memory limit (under torture: with a small one)."""
    return make_runtime()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the real graphs; the test is skipped where they are absent."""
    path = support.shared_data_path()
    if path is None:
        pytest.skip("no real graphs: set OUTCROP_SHARED_DATA or put them in ../shared/data")
    return path
