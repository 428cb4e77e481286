"""What the GPU benchmarks make of their measurements: bars, schema, ways in turns. tests/device runs them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from outcrop.bench import gpu_figures
from outcrop.bench.gpu_figures import measure as measuring
from outcrop.bench.gpu_figures.gathers import bars
from outcrop.bench.gpu_figures.gradients import plain
from outcrop.bench.gpu_figures.measure import Case, Setup, Sizes, Watch, in_turns
from outcrop.bench.gpu_figures.result import Bar, Benchmark, run_cases, validate
from outcrop.errors import ArgumentError, DeviceError, FormatError


class Still:
    """A GPU that has nothing to do."""

    def __init__(self) -> None:
        self.waits = 0

    def memory(self, device: int) -> tuple[int, int]:
        return 1 << 30, 1 << 30

    def stream(self, device: int) -> int:
        return device

    def fence(self, stream: int) -> Any:
        return self

    def synchronize(self) -> None:
        self.waits += 1


pytestmark = pytest.mark.leaks(
    "env", reason="torch sets TORCHINDUCTOR_CACHE_DIR when a custom op is first called"
)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    gpu: Any = Still()
    return Setup(gpu, torch.device("cpu"), tmp_path, 3, lambda text: None, Sizes(call_seconds=1.0))


def test_ways_take_turns_between_two_waits(setup: Setup, monkeypatch: pytest.MonkeyPatch):
    clock = itertools.count()  # a second a look: a way of one call takes one
    watch = SimpleNamespace(perf_counter=lambda: float(next(clock)), process_time=lambda: 0.0)
    monkeypatch.setattr(measuring, "time", watch)
    ran: list[str] = []
    timed = in_turns(setup, {"a": lambda: ran.append("a"), "b": lambda: ran.append("b")})
    assert "".join(ran) == "aabb" + "ab" + "ba" + "ab"  # warm up, how many fit, three rounds
    assert timed.seconds == {"a": 1.0, "b": 1.0}
    assert timed.samples == {"a": [1.0] * 3, "b": [1.0] * 3}
    assert setup.gpu.waits == 2 * len(ran)  # type: ignore[attr-defined]


def test_short_calls_are_timed_many_at_a_time(setup: Setup, monkeypatch: pytest.MonkeyPatch):
    now = 0.0

    def call() -> None:
        nonlocal now
        now += 0.25

    monkeypatch.setattr(
        measuring, "time", SimpleNamespace(perf_counter=lambda: now, process_time=lambda: 2 * now)
    )
    timed = in_turns(setup, {"a": call})
    assert now == 0.25 * (2 + 3 * 4)  # call_seconds is 1
    assert (timed.seconds, timed.cores) == ({"a": 0.25}, {"a": 2.0})


def gathered(of_ceiling: float, against_copy: float, rows: int = 100, row_bytes: int = 512) -> Case:
    figures: dict[str, float | None] = {"of_ceiling": of_ceiling, "against_copy": against_copy}
    return Case({"rows": rows, "row_bytes": row_bytes}, {}, figures=figures)


def test_bars_of_gathering():
    """Narrow rows and few of them do not count; the ceiling is for each, the copy for their mean."""
    cases = {"a": gathered(0.96, 1.0), "b": gathered(0.97, 4.0)}
    aside = {"narrow": gathered(0.1, 0.1, row_bytes=256), "few": gathered(0.1, 0.1, rows=10)}
    ceiling, copy = bars(cases | aside)
    assert (ceiling.value, ceiling.passed) == (0.96, True)
    assert (copy.value, copy.passed) == (pytest.approx(2.0), True)
    ceiling, copy = bars(cases | {"c": gathered(0.94, 0.4)})
    assert (ceiling.passed, copy.passed) == (False, False)


def test_one_case_that_fails_does_not_take_the_others_along(setup: Setup, tmp_path: Path):
    path, fails = tmp_path / "result.json", [True]

    def broken() -> Case:
        if fails:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return Case({}, {"way": 2.0})

    cases = {"a": lambda: Case({}, {"way": 1.0}), "b": broken, "c": lambda: Case({}, {"way": 3.0})}
    benchmark = Benchmark("A paper", lambda setup: iter(cases.items()))
    with pytest.raises(DeviceError, match="1 cases of name failed, first b: RuntimeError: CUDA error"):
        run_cases("name", benchmark, setup, path)
    result = json.loads(path.read_text())
    validate(result)
    assert (result["complete"], list(result["cases"]), list(result["failures"])) == (False, ["a", "c"], ["b"])
    fails.clear()
    result = run_cases("name", benchmark, setup, path)
    assert (result["complete"], sorted(result["cases"]), result["failures"]) == (True, ["a", "b", "c"], {})


@pytest.mark.parametrize(
    ("bar", "passed"),
    [
        (Bar("", 3.0, least=3), True),
        (Bar("", 2.9, least=3), False),
        (Bar("", 1.2, most=1.15), False),
        (Bar("", 1.1, most=1.15), True),
        (Bar("", None, least=3), None),
    ],
)
def test_bars(bar: Bar, passed: bool | None):
    assert bar.passed is passed


def test_results_of_another_schema_are_refused(setup: Setup):
    case = Case({}, {"way": 1.0})
    bar = Bar("b", None, most=2)
    benchmark = Benchmark("A paper", lambda setup: iter([("case", lambda: case)]), lambda cases: [bar])
    result = run_cases("name", benchmark, setup)
    validate(result)
    assert result["rows"] == [["case", "1 s"]]
    assert result["says"] == "b: -, wanted <= 2: not measured"
    wrong: list[dict[str, Any]] = [
        {"schema": 2},
        {"complete": None},
        {"cases": {"case": {"seconds": {}}}},
        {"cases": {"case": result["cases"]["case"] | {"figures": {"speed": "fast"}}}},
        {"bars": [{"what": "b"}]},
    ]
    for change in wrong:
        with pytest.raises(FormatError, match="GPU benchmark"):
            validate(result | change)


def test_every_name_has_a_benchmark():
    """Whose source ends in the number of its name."""
    for name in gpu_figures.NAMES:
        source = gpu_figures.benchmark(name).source
        assert name == "sampling" or source.endswith(f" {name.rpartition('-')[2]}"), name


def test_what_is_unknown_is_refused(tmp_path: Path):
    for name, said in (
        (None, "needs --name; known: pytorch-direct-figure-3"),
        ("figure-6", "'figure-6' is unknown"),
    ):
        with pytest.raises(ArgumentError, match=said):
            gpu_figures.run(name, tmp_path, 1, print)
    with pytest.raises(DeviceError, match="bench gpu measures a GPU"):
        gpu_figures.run("sampling", tmp_path, 1, print, device_name="cpu")


def test_plain_gradients_are_those_of_cross_entropy():
    torch.manual_seed(0)
    queries, candidates, positive = torch.randn(5, 3), torch.randn(7, 3), torch.randn(5)
    wanted, ids = torch.tensor([1, 2, 9, 9, 4]), torch.arange(7)
    leaves = [x.double().requires_grad_() for x in (queries, positive, candidates)]
    scores = (leaves[0] @ leaves[2].T).masked_fill(wanted[:, None] == ids, -torch.inf)
    logits = torch.cat([leaves[1][:, None], scores], 1)
    loss = torch.nn.functional.cross_entropy(logits, torch.zeros(5, dtype=torch.int64), reduction="sum")
    expected = (loss.detach(), *torch.autograd.grad(loss, leaves))
    for ours, theirs in zip(plain(queries, positive, candidates, wanted, ids), expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


def test_samples_of_a_gpu_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """As nvidia-smi prints them, with what it cannot tell."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '97, 312.50'\necho '[N/A], 10.0'\necho '0, 80.1'\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with Watch(torch.device("cuda", 0)) as watch:
        assert watch._process is not None
        assert watch._process.stdout is not None
        first = watch._process.stdout.readline()
        second, third = watch._process.stdout.readline(), watch._process.stdout.readline()
    watch._lines = [first, second, third]
    assert watch.samples() == ([97.0, 0.0], [312.5, 80.1])
    with Watch(torch.device("cpu")) as none:
        pass
    assert none.samples() == ([], [])
