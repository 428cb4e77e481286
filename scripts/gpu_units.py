"""Parts of the phases of gpu-check.sh: which there are, and the command of each. Standard library only."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

PHASES = ("build", "tests", "sanitizer", "bench")
ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "src" / "outcrop" / "device" / "kernels"
_DEVICE = "tests/device"
# Tests that launch the kernels of a family, small enough for a sanitizer.
FAMILIES: dict[str, tuple[tuple[str, ...], str]] = {
    "gather": (
        (f"{_DEVICE}/test_tensor.py",),
        "index_of_the_gpu or gather_of_nothing or (gather_equals and dtype1)",
    ),
    "assemble": ((f"{_DEVICE}/test_training.py",), "every_level or more_than_passes_through"),
    "sample": (
        (f"{_DEVICE}/test_sampling.py",),
        "host_waits_once or lists_on_the_device or damage_is_found",
    ),
    "io_queue": (
        (f"{_DEVICE}/test_training.py", f"{_DEVICE}/test_rings.py", f"{_DEVICE}/test_embedding.py"),
        "read_rows_through_rings or rows_land or slabs_go_through_rings",
    ),
    "fused": (("tests/unit/embed/test_fused.py",), "on_a_gpu"),
}
_TOOLS = ("memcheck", "initcheck", "racecheck", "synccheck")
_SANITIZER_FOLDERS = ("/usr/local/cuda/bin", "/opt/cuda/bin", "build/gpu/site/bin")


@dataclass(frozen=True)
class Unit:
    """One part of a phase, with a process of its own.

    Attributes:
        command: ``{python}``, ``{report}`` (of pytest) and ``{jsons}`` (the folder of results) are filled in.
        least_seconds: Time without which it is not worth beginning.
        unavailable: Why it cannot run here; empty: it can.
    """

    phase: str
    name: str
    command: tuple[str, ...]
    limit_seconds: float = 450
    least_seconds: float = 30
    environment: dict[str, str] = field(default_factory=dict)
    needs_gpu: bool = True
    unavailable: str = ""


def pytest(*arguments: str) -> tuple[str, ...]:
    """Warnings are those of whatever torch is there, and no errors; pytest-timeout may be absent."""
    return (
        "{python}", "-m", "pytest", "-v", "-o", "addopts=--strict-markers --import-mode=importlib -ra",
        "-o", "filterwarnings=default", "-o", "timeout=240", "-p", "no:cacheprovider", "-p", "no:xdist",
        "--junitxml", "{report}", *arguments,
    )  # fmt: skip


def units(phase: str, names: list[str], device: str) -> list[Unit]:
    """The parts of ``phase`` that ``names`` name; all of them where there are none.

    Args:
        device: OUTCROP_GPU_TESTS: ``cuda`` or ``fake``.

    Raises:
        ValueError: No such phase, or no such part.
    """
    makers = {"build": _build, "tests": _tests, "sanitizer": _sanitizer, "bench": _bench}
    if phase not in makers:
        raise ValueError(f"phase {phase!r} is unknown; known: {', '.join(PHASES)}")
    every = makers[phase](device)
    if phase == "tests":
        every += [_test(name, device) for name in names if "::" in name]
    names = [Path(name).name.removesuffix(".py") if "::" not in name else _flat(name) for name in names]
    chosen = [u for u in every if not names or u.name in names or u.name.partition(".")[0] in names]
    wrong = [n for n in names if not any(n in (u.name, u.name.partition(".")[0]) for u in every)]
    if wrong:
        known = dict.fromkeys(u.name.partition(".")[0] for u in every)
        raise ValueError(f"{phase} has no {', '.join(wrong)}; it has: {', '.join(known)}")
    return chosen


def _build(device: str) -> list[Unit]:
    compiled = (
        "tests/unit/device/test_kernels.py",
        "tests/unit/embed/test_fused.py",
        "-m",
        "not gpu and not slow",
    )
    return [
        Unit("build", "core", ("bash", "scripts/gpu-build.sh"), needs_gpu=False),
        Unit("build", "kernels", pytest(*compiled), needs_gpu=False),
    ]


def _tests(device: str) -> list[Unit]:
    modules = [path.relative_to(ROOT) for path in sorted((ROOT / _DEVICE).glob("test_*.py"))]
    if (
        device == "cuda"
    ):  # those that a fake GPU cannot run; test_fake_gpu.py runs tests/device, test_guards.py none
        modules += [Path("tests/unit/embed/test_fused.py"), Path("tests/docs/test_unified.py")]
    return [_test(str(module), device) for module in modules]


def _test(path: str, device: str) -> Unit:
    if path.startswith("test_"):
        path = f"{_DEVICE}/{path}"
    inside = path.startswith(_DEVICE)
    marked = () if inside else ("-m", "gpu", "--require=gpu")
    name = _flat(path) if "::" in path else Path(path).stem
    return Unit("tests", name, pytest(path, *marked), environment=_environment(device) if inside else {})


def _environment(device: str) -> dict[str, str]:
    return {"OUTCROP_GPU_TESTS": device, "PYTHONPATH": f"{_DEVICE}:tests"}


def _flat(name: str) -> str:
    """A name for a file."""
    return re.sub(r"[^\w.-]+", "_", name.removeprefix(f"{_DEVICE}/"))


def tools_of(family: str) -> list[str]:
    """Sanitizers that can say something of the kernels of ``family``.

    racecheck looks at shared memory, synccheck at barriers. Triton's kernels have both.
    """
    if family == "fused":
        return ["memcheck", "racecheck", "synccheck"]
    source = "".join((KERNELS / f"{family}{suffix}").read_text() for suffix in (".cu", ".h"))
    says = {
        "memcheck": True,
        "initcheck": True,
        "racecheck": "__shared__" in source,
        "synccheck": bool(re.search(r"__syncthreads|__syncwarp|_sync\(", source)),
    }
    return [tool for tool in _TOOLS if says[tool]]


def _sanitizer(device: str) -> list[Unit]:
    program = find_sanitizer()
    why = "" if program else "compute-sanitizer is not installed (it comes with the CUDA toolkit)"
    made = []
    for family, (paths, chosen) in FAMILIES.items():
        for tool in tools_of(family):
            # Blocks of their own: in PyTorch's pools an access past the end of a tensor is still one of the pool.
            environment = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
            if paths[0].startswith(_DEVICE):
                environment |= _environment("cuda")
            checked = (program or "compute-sanitizer", "--tool", tool, "--error-exitcode", "9")
            # Loading cuda.core tries calls that a driver lacks; calls that fail for us raise.
            checked += ("--report-api-errors", "no") if tool == "memcheck" else ()
            # Backtraces of the host keep Python's frames, and with them the batches that these let go of.
            checked += ("--show-backtrace", "device")
            command = (*checked, "--target-processes", "all", *pytest("-x", *paths, "-k", chosen))
            made.append(
                Unit("sanitizer", f"{family}.{tool}", command, environment=environment, unavailable=why)
            )
    return made


def find_sanitizer() -> str | None:
    found = shutil.which("compute-sanitizer")
    beside = (ROOT / folder / "compute-sanitizer" for folder in _SANITIZER_FOLDERS)
    return found or next((str(path) for path in beside if path.is_file()), None)


def bench_names() -> list[str]:
    """Names of the GPU benchmarks, read as text: nothing may be installed yet."""
    table = ROOT / "src" / "outcrop" / "bench" / "gpu_figures" / "names.py"
    return re.findall(r'^    "([a-z0-9-]+)": ', table.read_text(), re.MULTILINE)


def _bench(device: str) -> list[Unit]:
    command = (
        "{python}",
        "-m",
        "outcrop",
        "bench",
        "gpu",
        "--folder",
        "build/gpu/bench",
        "--rounds",
        "5",
        "--name",
    )
    return [
        Unit("bench", name, (*command, name, "--json", f"{{jsons}}/gpu-{name}.json"))
        for name in bench_names()
    ]
