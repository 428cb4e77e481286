"""scripts/gpu-check.sh: parts that end, fail, hang, are killed or cannot run leave a record, and are gone on with."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support import REPOSITORY

SCRIPTS = REPOSITORY / "scripts"
MACHINE = {
    "python": "3.12.1", "kernel": "6", "torch": "2.11", "cuda": "13.0", "triton": "3.9", "cuda_core": "1.2",
    "driver": "580", "revision": None, "dirty": None, "devices": [{"name": "a GPU"}],
}  # fmt: skip
KNOWN = {"machine": MACHINE, "missing": [], "problem": "", "core": True, "python_suits": True}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The module, with records in a folder of its own."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setenv("OUTCROP_GPU_RECORDS", str(tmp_path / "kept"))
    monkeypatch.delenv("OUTCROP_GPU_TESTS", raising=False)
    import gpu_check

    return gpu_check


class Call:
    """Calls of the script on a machine as ``known`` describes it, with parts that are made up."""

    def __init__(self, script: Any, monkeypatch: pytest.MonkeyPatch, out: Path):
        self.script, self.out, self.known = script, out, dict(KNOWN)
        self.parts: list[Any] = []
        monkeypatch.setattr(script, "units", self._units)

    def _units(self, phase: str, names: list[str], device: str) -> list[Any]:
        return [part for part in self.parts if part.phase == phase]

    def part(self, name: str, *command: str, phase: str = "tests", **options: Any) -> None:
        from gpu_units import Unit

        self.parts.append(Unit(phase, name, command, **{"least_seconds": 0, **options}))

    def __call__(self, phase: str = "tests", **options: Any) -> int:
        check = self.script.Check(self.out, **options)
        check._python, check._known = [sys.executable], self.known
        return self.script.run_phase(check, phase, [])

    def record(self, name: str) -> dict[str, Any]:
        record = json.loads((self.out / f"tests-{name}.json").read_text())
        self.script.gpu_record.validate(record)
        return record


@pytest.fixture
def call(script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    return Call(script, monkeypatch, tmp_path / "out")


def notes(path: Path) -> list[str]:
    """A command that adds a line to ``path``."""
    return ["bash", "-c", f"echo ran >> {path}"]


def test_what_ended_is_not_run_again(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ran = tmp_path / "ran"
    call.part("good", *notes(ran))
    call.part("bad", "bash", "-c", "echo why; exit 3")
    assert [call(), call()] == [1, 1]
    assert ran.read_text() == "ran\n"
    assert (call.record("good")["outcome"], call.record("good")["status"]) == ("passed", 0)
    bad = call.record("bad")
    assert (bad["outcome"], bad["status"], bad["output"]) == ("failed", 3, "why\n")
    assert call(again=True) == 1
    assert ran.read_text() == "ran\n" * 2
    (tmp_path / "kept" / "tests-good.json").unlink()  # another machine, to which the results came along
    call()
    assert ran.read_text() == "ran\n" * 2
    monkeypatch.setattr(call.script.gpu_record, "digest", lambda root: "other")
    call()
    assert ran.read_text() == "ran\n" * 3


def test_what_hangs_is_ended_with_all_it_started(call: Call, tmp_path: Path):
    pid = tmp_path / "pid"
    call.part("hangs", "bash", "-c", f"sleep 600 & echo $! > {pid}; echo begun; wait", limit_seconds=2.0)
    assert call() == 1
    record = call.record("hangs")
    assert (record["outcome"], record["reason"], record["output"]) == (
        "timed out",
        "ended after 2 s",
        "begun\n",
    )
    status = Path("/proc", pid.read_text().strip(), "status")
    until = time.monotonic() + 60
    # Gone, or waiting for whoever adopted it to look.
    while status.exists() and "State:\tZ" not in status.read_text():
        assert time.monotonic() < until
        time.sleep(0.01)
    assert call() == 1  # it ended: only --again runs it once more
    assert call.record("hangs")["begun"] == record["begun"]


def test_a_call_goes_on_where_time_was_up(call: Call, tmp_path: Path):
    first, second = tmp_path / "first", tmp_path / "second"
    call.part("first", *notes(first))
    call.part("slow", "bash", "-c", f"test -e {second} || sleep 600", limit_seconds=450, least_seconds=1.0)
    call.part("third", *notes(tmp_path / "third"))
    assert call(seconds=2) == 75
    assert call.record("slow")["outcome"] == "interrupted"
    assert not (tmp_path / "third").exists()
    second.touch()
    assert call() == 0
    assert (first.read_text(), (tmp_path / "third").read_text()) == ("ran\n", "ran\n")


def test_a_benchmark_goes_on_with_its_cases(call: Call, tmp_path: Path):
    """Also on another machine, to which the results came along."""
    made = tmp_path / "kept" / "gpu-figure.json"
    command = f"echo case >> {made}; test $(wc -l < {made}) = 2 || sleep 600"
    call.part("figure", "bash", "-c", command, phase="bench", limit_seconds=2.0)
    assert call("bench") == 1
    assert (call.out / "gpu-figure.json").read_text() == "case\n"
    for path in made.parent.iterdir():
        path.unlink()
    assert call("bench") == 0
    assert (call.out / "gpu-figure.json").read_text() == "case\n" * 2
    assert call("bench") == 0
    assert made.read_text() == "case\n" * 2


def test_a_machine_without_a_compiler_takes_the_core_that_came_along(tmp_path: Path):
    """It is one of this interpreter; where it is not, what is missing is said."""
    (tmp_path / "no-core").write_text(
        f'#!/bin/sh\ncase $2 in *_core*) exit 1 ;; esac\nexec {sys.executable} "$@"\n'
    )
    (tmp_path / "no-core").chmod(0o755)
    for python, status, said in (
        (sys.executable, 0, "the core that came along in src/outcrop is used"),
        (str(tmp_path / "no-core"), 1, "src/outcrop/_core*.so built elsewhere for Python 3"),
    ):
        made = os.environ | {"CXX": "/none/g++", "PYTHON": python, "OUTCROP_WHEELS": str(tmp_path / "none")}
        command = ["bash", str(SCRIPTS / "gpu-build.sh")]
        ended = subprocess.run(command, env=made, capture_output=True, text=True, check=False)
        assert ended.returncode == status, ended.stderr
        assert "missing here: a C++20 compiler" in ended.stdout + ended.stderr
        assert said in ended.stdout + ended.stderr


def test_a_core_built_on_another_machine_is_built_here(call: Call, tmp_path: Path):
    ran = tmp_path / "ran"
    call.part("core", *notes(ran), phase="build", needs_gpu=False)
    assert [call("build"), call("build")] == [0, 0]
    assert ran.read_text() == "ran\n"
    call.known |= {"core": False}
    assert call("build") == 0
    assert ran.read_text() == "ran\n" * 2


def test_what_is_missing_is_named(script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A module, one that it imports, a name that an old release lacks, and a word of a language."""
    import gpu_machine

    (tmp_path / "needs_other.py").write_text("import other_module")
    (tmp_path / "has_none.py").write_text("")
    (tmp_path / "fused.py").write_text("tl.load(tl.arange(0))\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(
        gpu_machine,
        "MODULES",
        {"no.core": "no-core>=2", "needs_other": "needs", "has_none": "has>=3", "json": "json"},
    )
    monkeypatch.setattr(gpu_machine, "NAMES", {"has_none": ("Program",), "json": ("loads",)})
    assert gpu_machine.missing() == ["no-core>=2", "other_module", "has>=3"]
    monkeypatch.setattr(gpu_machine, "FUSED", tmp_path / "fused.py")

    def dot(a: Any, b: Any, input_precision: str = "") -> None: ...

    language = SimpleNamespace(load=1, dot=dot)
    monkeypatch.setitem(sys.modules, "triton.language", language)
    assert gpu_machine._absent_of_triton() == ["arange"]
    language.arange, language.dot = 1, lambda a, b: None
    assert gpu_machine._absent_of_triton() == ["input_precision"]


def test_a_fake_gpu_is_neither_measured_nor_sanitized(call: Call, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OUTCROP_GPU_TESTS", "fake")
    call.part("figure", "true", phase="bench")
    assert call("bench") == 2
    assert "real GPU" in json.loads((call.out / "bench-figure.json").read_text())["reason"]


def test_what_was_killed_counts_as_interrupted(call: Call, tmp_path: Path):
    call.part("one", *notes(tmp_path / "ran"))
    call()
    record = call.record("one") | {"outcome": "running"}
    call.script.gpu_record.write(record, [tmp_path / "kept", call.out])
    check = call.script.Check(call.out)
    assert call.script._state(record, check).startswith("interrupted")
    assert call() == 0
    assert (tmp_path / "ran").read_text() == "ran\n" * 2


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (
            {"machine": MACHINE | {"devices": []}},
            "no CUDA device: torch 2.11, built for CUDA 13.0, sees none",
        ),
        (
            {"missing": ["cuda-core>=0.7"]},
            r"missing: 'cuda-core>=0\.7'; where there is a network: pip download",
        ),
        ({"core": False}, r"the C\+\+ core is not built .*gpu-check.sh build"),
        ({"problem": "the driver is one of CUDA 12.8"}, "driver is one of"),
        ({"python_suits": False}, "Python 3.12.1 is too old"),
    ],
)
def test_why_a_part_cannot_run_is_said(call: Call, known: dict[str, Any], said: str, tmp_path: Path):
    call.known |= known
    call.part("one", *notes(tmp_path / "ran"))
    assert call() == 2
    record = call.record("one")
    assert record["outcome"] == "unavailable"
    assert re.search(said, record["reason"])
    call.known = dict(KNOWN)  # once it is there
    assert call() == 0


def test_tests_are_counted_without_a_report(script: Any, tmp_path: Path):
    """As pytest -v leaves them when a kernel takes the process with it."""
    said = (
        "collected 4 items\n\ntests/device/test_a.py::test_one[a b] PASSED   [ 25%]\n"
        "tests/device/test_a.py::test_two FAILED  [ 50%]\ntests/device/test_a.py::test_three SKIPPED (why) [ 75%]\n"
        "tests/device/test_a.py::test_four Fatal Python error\n"
    )
    for end in (said, said.replace(" Fatal Python error", " ")):
        counts, tests = script.gpu_record.tests_of(tmp_path / "none.xml", end)
        assert counts == {"passed": 1, "failed": 2, "skipped": 1}
        assert [test["name"].partition("::")[2] for test in tests] == [
            "test_one[a b]",
            "test_two",
            "test_three",
            "test_four",
        ]
        assert [test["outcome"] for test in tests] == ["passed", "failed", "skipped", "failed"]
    assert script.gpu_record.tests_of(tmp_path / "none.xml", "nothing") == (None, [])


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "well"}, {"schema": 2}, {"seconds": None}, {"more": 1}, {"machine": {}}, {"counts": {"passed": 1}},
        {"tests": [{"name": "a"}]},
    ],
)  # fmt: skip
def test_records_of_another_schema_are_refused(call: Call, change: dict[str, Any]):
    call.part("one", "true")
    call()
    with pytest.raises(ValueError, match=next(iter(change)).rstrip("s")):
        call.script.gpu_record.validate(call.record("one") | change)


def test_parts_are_found_by_name(script: Any):
    def names(phase: str, *wanted: str) -> list[str]:
        return [unit.name for unit in script.units(phase, list(wanted), "cuda")]

    assert names("sanitizer", "fused") == ["fused.memcheck", "fused.racecheck", "fused.synccheck"]
    assert "gather.memcheck" in names("sanitizer")
    assert names("tests", "tests/device/test_script.py") == ["test_script"]
    (unit,) = script.units("tests", ["test_tensor.py::test_table_3"], "cuda")
    assert unit.command[-1] == "tests/device/test_tensor.py::test_table_3"
    for phase, wanted in (("tests", "test_nothing"), ("sanitizer", "gathers"), ("bench", "figure")):
        with pytest.raises(ValueError, match=wanted):
            names(phase, wanted)


def test_benchmarks_are_those_of_the_command(script: Any):
    from outcrop.bench.gpu_figures.names import NAMES

    assert [unit.name for unit in script.units("bench", [], "cuda")] == list(NAMES)
    page = (REPOSITORY / "docs" / "gpu-benchmarks.md").read_text()
    assert re.findall(r"^\| `([a-z0-9-]+)` \|", page, re.MULTILINE) == list(NAMES)


def test_without_a_phase_it_lists_what_remains(tmp_path: Path):
    said = shell(tmp_path)
    assert said.returncode == 0
    for part in ("build      kernels", "tests      test_tensor", "sanitizer  io_queue.memcheck", "bench "):
        assert part in said.stdout
    assert "next: scripts/gpu-check.sh build" in said.stdout


def shell(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    made = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    made |= {"OUTCROP_GPU_RECORDS": str(folder / "kept"), "PYTHON": sys.executable, **environment}
    command = ["bash", str(SCRIPTS / "gpu-check.sh"), "--out", str(folder / "out"), *arguments]
    return subprocess.run(command, env=made, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_phase_on_the_fake_gpu(tmp_path: Path):
    one = "test_everyday.py::test_numbers_are_formatted"
    said = shell(tmp_path, "tests", one, OUTCROP_GPU_TESTS="fake")
    assert said.returncode == 0, said.stdout + said.stderr
    (path,) = (tmp_path / "out").glob("tests-*.json")
    record = json.loads(path.read_text())
    assert record["outcome"] == "passed"
    assert record["counts"]["passed"] == len(record["tests"]) > 0
    assert record["machine"]["torch"]
    again = shell(tmp_path, "tests", one, OUTCROP_GPU_TESTS="fake")
    assert "passed already" in again.stdout


def test_every_sanitizer_has_tests(script: Any):
    """Filters name tests, which others rename."""
    from gpu_units import FAMILIES

    for paths, chosen in FAMILIES.values():
        there = [
            re.findall(r"^def (test_\w+)", (REPOSITORY / path).read_text(), re.MULTILINE) for path in paths
        ]
        firsts = [either.strip("()").split(" and ")[0] for either in chosen.split(" or ")]
        for tests in there:
            assert any(first in name for first in firsts for name in tests), paths
        for first in firsts:
            assert any(first in name for tests in there for name in tests), first


def test_a_sanitizer_that_saw_no_test_failed(call: Call, tmp_path: Path):
    """As where all tests skip themselves, which pytest is content with."""
    report = tmp_path / "kept" / "sanitizer-gather.memcheck.xml"
    for result, outcome in (("<skipped/>", "failed"), ("", "passed")):
        case = f"<testsuite><testcase classname='t' name='t' time='1'>{result}</testcase></testsuite>"
        call.parts.clear()
        call.part("gather.memcheck", "bash", "-c", f'echo "{case}" > {report}', phase="sanitizer")
        call("sanitizer", again=True)
        assert json.loads((call.out / "sanitizer-gather.memcheck.json").read_text())["outcome"] == outcome


def test_sanitizers_are_those_that_can_say_something(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    import gpu_units

    monkeypatch.setattr(gpu_units, "KERNELS", tmp_path)
    (tmp_path / "gather.h").write_text("")
    for source, more in (("", []), ("__shared__ int a;", ["racecheck"]), ("__syncwarp();", ["synccheck"])):
        (tmp_path / "gather.cu").write_text(source)
        assert gpu_units.tools_of("gather") == ["memcheck", "initcheck", *more]
