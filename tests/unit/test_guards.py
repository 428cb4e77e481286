"""The guards of conftest.py can fail: each kind of leak is made on purpose in a pytest run of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import tiers
from support import REPOSITORY, TINY_MEMORY

LEAKY = """
import os, threading, warnings
import pytest
kept = []

def test_clean(make_runtime, tmp_path):
    with make_runtime("1MiB", threads=2) as runtime:
        data = runtime.budget.empty("test", 4096)
        assert data.size == 4096
    (tmp_path / "file").write_text("text")

def test_python_thread():
    stop = threading.Event()
    kept.append(stop)
    threading.Thread(target=stop.wait, name="forgotten", daemon=True).start()

def test_native_thread():
    from outcrop import _core
    kept.append(_core.WorkerPool(3))

def test_descriptor():
    kept.append(os.open(os.devnull, os.O_RDONLY))

def test_variable():
    os.environ["OUTCROP_LEFT_BEHIND"] = "1"

def test_variable_was_put_back():
    assert "OUTCROP_LEFT_BEHIND" not in os.environ

def test_variable_through_monkeypatch(monkeypatch):
    monkeypatch.setenv("OUTCROP_LEFT_BEHIND", "1")

def test_reservation(make_runtime):
    kept.append(make_runtime("1MiB").budget.reserve("forgotten rows", 1000))

def test_released_by_garbage_collection(make_runtime):
    cycle = [make_runtime("1MiB").budget.reserve("rows", 1000)]
    cycle.append(cycle)

@pytest.fixture
def rows(runtime):
    return runtime.budget.empty("rows", 4096)

def test_fixture_values_are_let_go(rows):
    assert rows.size == 4096

@pytest.mark.leaks("fd", reason="to see that it is excused")
def test_excused():
    kept.append(os.open(os.devnull, os.O_RDONLY))

def test_excuse_was_not_for_everyone():
    kept.append(os.open(os.devnull, os.O_RDONLY))

def test_warning():
    warnings.warn("something is deprecated")

def test_own_failure_is_not_covered_by_a_leak(make_runtime):
    kept.append(make_runtime().budget.reserve("rows", 1))
    assert False, "its own"
"""


def run_pytest(folder: Path, source: str, *arguments: str, **variables: str) -> dict[str, str]:
    """Runs ``source`` as a test module under this project's conftest and settings. Test name -> how it ended:
    "passed", or the kind of report and its message."""
    (folder / "test_inner.py").write_text(source)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OUTCROP_", "PYTEST_"))}
    search = os.pathsep.join([str(REPOSITORY / "tests"), *(p for p in sys.path if p)])
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider"),
        *("-c", str(REPOSITORY / "pyproject.toml"), f"--rootdir={folder}", "--junitxml=result.xml"),
        *(*arguments, "test_inner.py"),
    ]
    run = subprocess.run(
        command, cwd=folder, env={**env, "PYTHONPATH": search, **variables}, capture_output=True, text=True
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    outcomes: dict[str, str] = {}
    for case in ET.parse(folder / "result.xml").getroot().iter("testcase"):
        ends = [
            f"{end.tag} {end.get('message')} {end.text}"
            for end in case
            if end.tag in ("failure", "error", "skipped")
        ]
        name = case.get("name", "")
        outcomes[name] = " | ".join([outcomes.get(name, ""), *ends]).strip(" |")
    return {name: outcome or "passed" for name, outcome in outcomes.items()}


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run_pytest(tmp_path_factory.mktemp("leaky"), LEAKY, OUTCROP_LEAK_GRACE_SECONDS="0.2")


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("test_python_thread", "leaked thread: Python thread 'forgotten'"),
        ("test_native_thread", "leaked thread: native thread"),
        ("test_descriptor", "leaked fd: descriptor"),
        ("test_variable", "leaked env: OUTCROP_LEFT_BEHIND"),
        ("test_reservation", "leaked reservation: 1000 bytes under 'forgotten rows'"),
        ("test_excuse_was_not_for_everyone", "leaked fd"),
        ("test_warning", "something is deprecated"),
        ("test_own_failure_is_not_covered_by_a_leak", "its own"),
    ],
)
def test_leaks_fail(leaky: dict[str, str], test: str, message: str):
    assert message in leaky[test]
    assert not leaky[test].startswith("skipped")


@pytest.mark.parametrize(
    "test",
    [
        "test_clean",
        "test_variable_was_put_back",
        "test_variable_through_monkeypatch",
        "test_released_by_garbage_collection",
        "test_fixture_values_are_let_go",
        "test_excused",
    ],
)
def test_clean_tests_pass(leaky: dict[str, str], test: str):
    assert leaky[test] == "passed"


FORKS = """
import os
import numpy as np

def test_forks():
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)

def test_multiplies():
    np.ones((600, 600)) @ np.ones((600, 600))
"""


def test_threads_that_blas_starts_again_after_a_fork_are_no_leak(tmp_path: Path):
    outcomes = run_pytest(tmp_path, FORKS, OUTCROP_LEAK_GRACE_SECONDS="0.2")
    assert outcomes == {"test_forks": "passed", "test_multiplies": "passed"}


def test_a_failed_test_is_reported_once(leaky: dict[str, str]):
    assert "leaked" not in leaky["test_own_failure_is_not_covered_by_a_leak"]


GPU = """
import pytest

@pytest.mark.gpu
def test_needs_gpu():
    pytest.skip("no device, says the test")

def test_other():
    pytest.skip("of no concern")
"""


def test_required_marker_turns_skips_into_failures(tmp_path: Path):
    assert run_pytest(tmp_path, GPU)["test_needs_gpu"].startswith("skipped")
    outcomes = run_pytest(tmp_path, GPU, "--require=gpu")
    assert "skipped although --require=gpu" in outcomes["test_needs_gpu"]
    assert outcomes["test_needs_gpu"].startswith(("failure", "error"))
    assert outcomes["test_other"].startswith("skipped")


TORTURED = f"""
import pytest
from support import runtime_options

def test_defaults_change(make_runtime, request):
    options = runtime_options("name", None, {{}})
    assert options["memory"] == "{TINY_MEMORY}"
    assert (options["io"].max_request_bytes, options["io"].depth) == (4096, 2)
    assert make_runtime().budget.limit_bytes == 64 << 20

def test_what_is_asked_for_stays(make_runtime):
    from outcrop.config import IoConfig
    options = runtime_options("name", "1MiB", {{"io": IoConfig(depth=7)}})
    assert options["memory"] == "1MiB"
    assert (options["io"].max_request_bytes, options["io"].depth) == (4096, 7)

@pytest.mark.exact_io
def test_counts(make_runtime): ...

def test_without_runtime(): ...

@pytest.mark.torture
def test_torture_only(): ...
"""

FAULTY = """
def test_faults(make_runtime):
    from support import runtime_options
    first, again, other = (runtime_options(name, None, {})["faults"] for name in ("a", "a", "b"))
    assert first.short_probability > 0 and first.eagain_probability > 0
    assert first.seed == again.seed != other.seed
    own = object()
    assert runtime_options("a", None, {"faults": own})["faults"] is own
    make_runtime()
"""


def test_torture_changes_runtimes_and_selects_their_tests(tmp_path: Path):
    outcomes = run_pytest(tmp_path, TORTURED, OUTCROP_TORTURE="tiny")
    assert outcomes == {
        "test_defaults_change": "passed",
        "test_what_is_asked_for_stays": "passed",
        "test_torture_only": "passed",
    }
    assert run_pytest(tmp_path, FAULTY, OUTCROP_TORTURE="faults") == {"test_faults": "passed"}


CASES = """
import pytest

@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("case", [0, 1, 2, pytest.param(3, marks=pytest.mark.slow), 4, 5])
def test_cases(case): ...

def test_other(): ...
"""


def test_few_cases_of_a_test_are_quick(tmp_path: Path):
    """Of the five that are not slow already the first and the third."""
    quick = run_pytest(tmp_path, CASES, "-m", "not slow")
    assert quick.keys() == {"test_cases[0]", "test_cases[2]", "test_other"}
    assert run_pytest(tmp_path, CASES, "-m", "slow").keys() == {
        f"test_cases[{case}]" for case in (1, 3, 4, 5)
    }


def test_shares_add_up(tmp_path: Path):
    shares = [run_pytest(tmp_path, CASES, "--share", f"{first}/3").keys() for first in (1, 2, 3)]
    assert [len(share) for share in shares] == [3, 2, 2]
    assert set[str]().union(*shares) == run_pytest(tmp_path, CASES).keys()
    assert run_pytest(tmp_path, CASES, "-m", "slow", "--share", "2/2").keys() == {
        "test_cases[3]",
        "test_cases[5]",
    }


@pytest.mark.parametrize("share", ["0/3", "4/3", "1", "1/0", "-1/3"])
def test_a_share_that_is_none(share: str):
    with pytest.raises(pytest.UsageError, match=f"--share is '{share}': it is K/N"):
        tiers.share_of(share)
