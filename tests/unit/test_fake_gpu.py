"""The tests of tests/device, in one process of their own: a fake GPU that is made of torch's spare device type stays.

Its work runs as late as it can, and in the orders of seeds; ``make soak`` runs many more seeds. On a machine that has
one they run on a real GPU, too.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from device_runs import FOLDER, MODULES, pytest_of
from support import REPOSITORY, script

# A second or a few for each seed; the others take ten and more.
RACING = [
    FOLDER / f"test_{name}.py"
    for name in ("asynchrony", "everyday", "gather", "orders", "programs", "rings", "sampling", "transfer")
]
SLOWER = [
    FOLDER / f"test_{name}.py"
    for name in (
        "embedding",
        "few_bits",
        "interrupted",
        "memory",
        "sparse_rows",
        "tensor",
        "training",
        "types",
    )
]


def run(device: str, *modules: Path, schedule: str = "latest") -> None:
    ended = pytest_of(device, *modules, schedule=schedule)
    replay = f"replay with OUTCROP_GPU_SCHEDULE={schedule}\n"
    assert ended.returncode == 0, replay + ended.stdout[-6000:] + ended.stderr[-2000:]
    assert " passed" in ended.stdout


@pytest.mark.timeout(900)
def test_on_a_fake_gpu():
    run("fake", *MODULES)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("module", "seeds"),
    [
        *((module, "1-2") for module in RACING),
        *(pytest.param(module, "1", marks=pytest.mark.soak) for module in SLOWER),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else value,
)
def test_on_a_fake_gpu_in_the_orders_of_seeds(module, seeds):
    run("fake", module, schedule=f"seed:{seeds}")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_work_of_one_stream_is_done_at_once():
    """The other end of what such work can be (tests/device/conftest.py): ``latest`` is that of every test."""
    modules = [path for path in MODULES if "pytestmark = pytest.mark.one_stream" in path.read_text()]
    assert len(modules) >= 4
    run("fake", *modules, schedule="eager")


FAILING = """
import gc
import pytest, torch
from device_under_test import NAME as GPU
from outcrop.device.gpu import seen_by


class Reading:
    \"\"\"Waits for the GPU when it goes, as leases of memory that a GPU reads do.\"\"\"

    def __init__(self, gpu):
        self.gpu, self.itself = gpu, self

    def __del__(self):
        self.gpu.fence(self.gpu.stream(0)).synchronize()


@pytest.mark.parametrize("turn", range(3))
def test_that_fails_with_garbage(gpu, turn):
    gc.disable()
    Reading(gpu)
    x = torch.full((3000,), 1.0, device=GPU)
    alias = seen_by(gpu, x, 0, keeping=())
    del x
    alias.sum()
    gpu.fence(gpu.stream(0)).synchronize()


def test_that_keeps_memory_and_fails(gpu):
    global before
    gc.collect()
    before = gpu.memory(0)[0]
    x = torch.ones(5000, device=GPU)
    assert x is None


def test_that_passes(gpu):
    assert gpu.memory(0)[0] == before
    assert torch.ones(3, device=GPU).sum().item() == 3
"""
DEVICE_CONFTEST = """
import gc, importlib.util
import pytest

spec = importlib.util.spec_from_file_location("device_conftest", {path!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
globals().update({{name: x for name, x in vars(module).items() if not name.startswith("__")}})
"""
COLLECTING = """
class Collects:
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self):
        usual = gc.get_threshold()
        gc.enable()
        gc.set_threshold(1)
        try:
            return (yield)
        finally:
            gc.set_threshold(*usual)


def pytest_collection(session):
    session.config.pluginmanager.register(Collects())
"""


def ended_in(folder: Path, *arguments: str, conftest: str = "") -> subprocess.CompletedProcess[str]:
    """What pytest says of the tests in ``folder``, which have the fixtures of tests/device."""
    device_conftest = DEVICE_CONFTEST.format(path=str(FOLDER / "conftest.py"))
    (folder / "conftest.py").write_text(device_conftest + conftest)
    return pytest_of("fake", "-c", REPOSITORY / "pyproject.toml", "--rootdir", folder, *arguments, folder)


def test_a_fault_that_garbage_meets_fails_one_test(tmp_path):
    """Garbage is collected while the failure is put into words: the fault is over by then, for the next test too."""
    (tmp_path / "test_failing.py").write_text(FAILING)
    ended = ended_in(tmp_path, conftest=COLLECTING)
    assert ended.stdout.splitlines()[-1].startswith("4 failed, 1 passed in "), ended.stdout[-6000:]


IDLE = """
import pytest, torch
from device_under_test import NAME as GPU
from outcrop.unified import to_unified

A = torch.zeros(5, 3)
IDS = torch.tensor([1, 4])


@pytest.fixture(scope="module")
def of_several_tests():
    return to_unified(A)[IDS.to(GPU)]


@pytest.fixture
def rows(gpu):
    return to_unified(A)[IDS.to(GPU)]


def test_that_compares_values(gpu):
    assert torch.equal(to_unified(A)[IDS.to(GPU)].cpu(), A[IDS])


def test_that_compares_values_of_its_fixture(rows):
    assert torch.equal(rows.cpu(), A[IDS])


def test_that_compares_values_of_a_shared_fixture(of_several_tests):
    assert torch.equal(of_several_tests.cpu(), A[IDS])


def test_that_looks_at_shapes(gpu):
    assert to_unified(A)[IDS.to(GPU)].cpu().shape == (2, 3)


def test_that_compares_the_gpu_with_itself(gpu):
    u = to_unified(A)
    assert torch.equal(u[IDS.to(GPU)].cpu(), u[IDS.to(GPU)].cpu())


def test_that_launches_nothing(gpu):
    assert torch.equal(A.to(GPU).cpu(), A)


def test_that_fails_before_it_launches(gpu):
    assert gpu is None


def test_with_an_excuse(gpu):
    to_unified(A)[IDS.to(GPU)]


def test_that_needs_no_excuse(gpu):
    assert torch.equal(to_unified(A)[IDS.to(GPU)].cpu(), A[IDS])
"""
EXCUSING = """
import idle_kernels
idle_kernels.EXCUSED.update({"test_idle.py::test_with_an_excuse": "", "test_idle.py::test_that_needs_no_excuse": ""})
"""


def test_kernels_that_do_nothing_show_what_compares_too_little(tmp_path):
    (tmp_path / "test_idle.py").write_text(IDLE)
    ended = ended_in(tmp_path, "-p", "idle_kernels", conftest=EXCUSING)
    said = ended.stdout
    found = re.findall(r"^ +(\d) launches, (passed|failed): .*::test_(\w+)", said, re.MULTILINE)
    too_little = {"that_looks_at_shapes", "that_compares_the_gpu_with_itself"}
    without = {"that_compares_values_of_a_shared_fixture", "that_launches_nothing"}
    named = re.findall(r"test_(\w+) launched \d kernels, which did nothing, and passed", said)
    assert set(named) == too_little, said
    passed = {name for _, outcome, name in found if outcome == "passed"}
    assert passed == {*without, *too_little, "with_an_excuse"}
    assert {name for launches, _, name in found if launches == "0"} == {
        *without,
        "that_fails_before_it_launches",
    }
    assert "test_idle.py::test_that_needs_no_excuse needs no excuse any more" in said
    assert said.splitlines()[-1].startswith("1 failed, 5 passed, 3 xfailed, 2 errors in "), said
    assert ended.returncode == 1


def test_a_soak_takes_a_number_of_seeds_or_names_them():
    soak = script("soak")
    assert soak.parts_of("60") == ["0-24", "25-49", "50-59"]
    assert soak.parts_of("25-99") == ["25-49", "50-74", "75-99"]
    assert soak.parts_of("7-7") == ["7-7"]


def test_no_module_is_left_out():
    # Of two only the latest order is tried.
    there = {
        *RACING,
        *SLOWER,
        FOLDER / "test_bench.py",
        FOLDER / "test_script.py",
    }
    assert there == set(MODULES)


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "module", MODULES, ids=lambda path: path.stem
)  # each by name in what gpu-check.sh records
def test_on_cuda(module):
    run("cuda", module)
