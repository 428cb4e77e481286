"""Has all of outcrop instrumented for coverage that is imported after this."""

from __future__ import annotations

import contextlib
import importlib.util
import site
import sys
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parents[2]


def instrument() -> None:
    """Sees to it, for good: most modules are imported where they are needed.

    Modules that an editable install finds are not: they come from the sources, and the compiled one from where it lies.
    """
    sys.meta_path[:] = [one for one in sys.meta_path if "ScikitBuild" not in type(one).__name__]
    sys.path.insert(0, str(ROOT / "src"))
    (compiled,) = (
        Path(folder) / "outcrop" for folder in site.getsitepackages() if (Path(folder) / "outcrop").is_dir()
    )
    (file,) = compiled.glob("_core*.so")
    spec = importlib.util.spec_from_file_location("outcrop._core", file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["outcrop._core"] = made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    hooks.enter_context(atheris.instrument_imports(include=["outcrop", "json", "tomllib", "pickle"]))


hooks = contextlib.ExitStack()
sys.path.insert(0, str(ROOT / "tests"))
instrument()
