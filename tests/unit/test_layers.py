"""The shape of the package: what importing it brings along, and that the import contracts hold and can break."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import REPOSITORY

HEAVY = {"torch", "torch_geometric", "pyarrow", "scipy", "matplotlib", "cuda", "cupy", "triton"}
LAYERS = ("errors", "config", "runtime.trace", "runtime.runtime", "store")  # those that need no torch
# What describes a training, and supplies its batches: torch is imported beside that.
DESCRIBING = (
    "training.request",
    "training.dry_run",
    "training.supply",
    "training.run",
    "api.train",
    "cli.train",
)


def imported_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after ``statement``."""
    code = f"{statement}\nimport json, sys; print(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout))


def test_importing_outcrop_loads_nothing_heavy():
    loaded = imported_by("import outcrop")
    assert "outcrop" in loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("layer", LAYERS)
def test_lower_layers_do_without_torch(layer: str):
    assert imported_by(f"import outcrop.{layer}").isdisjoint(HEAVY)


@pytest.mark.parametrize("module", DESCRIBING)
def test_what_describes_a_training_does_without_torch(module: str):
    assert imported_by(f"import outcrop.{module}").isdisjoint(HEAVY | {"safetensors"})


def test_importing_outcrop_has_no_effects():
    """No thread is started, no file kept open, no variable set, no warning given."""
    code = (
        "import os, sys\n"
        "def state(): return (len(os.listdir('/proc/self/task')), len(os.listdir('/proc/self/fd')), dict(os.environ))\n"
        "import numpy\n"  # starts its own BLAS threads
        "before = state()\n"
        "import outcrop, outcrop.runtime.runtime\n"
        "assert state() == before, (before, state())\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env=env)


def test_the_front_door_is_for_users_only():
    """Inside the package ``from outcrop import name`` takes modules of Python, never the lazily loaded names: those
    would lead past the import contracts."""
    root = REPOSITORY / "src" / "outcrop"
    modules = {
        *(path.stem for path in root.glob("*.py")),
        *(path.name for path in root.iterdir() if path.is_dir()),
    }
    taken = {
        (path.name, alias.name)
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "outcrop"
        for alias in node.names
    }
    assert taken
    assert {(file, name) for file, name in taken if name not in modules | {"__version__"}} == set()


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """import-linter with this project's contracts on the package in ``folder``/src."""
    # An editable install finds its own sources before those in ``folder``: its finder is taken out.
    code = (
        "import sys; sys.meta_path = [f for f in sys.meta_path if 'Redirecting' not in type(f).__name__]\n"
        "from importlinter.cli import lint_imports_command as run; run()"
    )
    command = [sys.executable, "-c", code]
    path = os.pathsep.join([str(folder / "src"), *(p for p in sys.path if p and "outcrop" not in p)])
    arguments = ["--config", str(REPOSITORY / "pyproject.toml"), "--no-cache"]
    env = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    return subprocess.run([*command, *arguments], cwd=folder, env=env, capture_output=True, text=True)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the Python sources that a test may spoil."""
    pytest.importorskip("importlinter")
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    return Path(shutil.copytree(REPOSITORY / "src" / "outcrop", tmp_path / "src" / "outcrop", ignore=ignored))


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("errors.py", "import outcrop.runtime.runtime", "Layers"),
        ("store/manifest.py", "import outcrop.api", "Layers"),
        ("nowhere.py", "", "Layers"),
        ("preparation/sample.py", "import outcrop.preparation.plan", "Steps"),
        ("config/io.py", "import cuda.bindings", "CUDA"),
    ],
)
def test_contracts_can_break(package: Path, module: str, line: str, contract: str):
    with (package / module).open("a") as file:
        file.write(f"\n{line}\n")
    run = lint_imports(package.parent.parent)
    broken = [text for text in run.stdout.splitlines() if "BROKEN" in text]
    assert run.returncode == 1, run.stdout + run.stderr
    assert [contract in text for text in broken] == [True]


def test_device_may_import_cuda(package: Path):
    (package / "device.py").write_text("import cuda.bindings\n")
    run = lint_imports(package.parent.parent)
    assert run.returncode == 0, run.stdout + run.stderr
