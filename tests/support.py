"""Helpers that several tests share: where real data is, and runtimes under torture (scripts/torture.sh)."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HANGS_SECONDS = 300.0
"""What a child may take before it counts as hanging; with other work beside the tests all takes ten times as long."""

REPOSITORY = Path(__file__).resolve().parent.parent
TORTURES = ("", "tiny", "faults", "pread")
TINY_MEMORY = "64MiB"


def shared_data_path() -> Path | None:
    """Folder with the real graphs (OUTCROP_SHARED_DATA, else ../shared/data), None where it is absent."""
    path = Path(os.environ.get("OUTCROP_SHARED_DATA") or REPOSITORY.parent / "shared" / "data")
    return path if path.is_dir() else None


def shared_path(*parts: str) -> Path:
    """A file or folder of the real graphs; skips the test where it is absent."""
    base = shared_data_path()
    if base is None or not base.joinpath(*parts).exists():
        pytest.skip(f"real data {Path(*parts)} is absent")
    return base.joinpath(*parts)


BESIDE_OGB = Path(sys.prefix) / "beside-ogb"  # where scripts/setup.sh installs the package


def import_ogb(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Module ``ogb.NAME`` of the Open Graph Benchmark's package; skips the test where that is absent.

    As it is, it looks for its updates in the network and loads PyTorch Geometric, and showing progress leaves a thread.
    """
    monkeypatch.setenv("OUTDATED_IGNORE", "1")  # as it does itself
    for absent in ("outdated", "ogb.lsc.pcqm4m_pyg", "ogb.lsc.pcqm4mv2_pyg"):
        monkeypatch.setitem(sys.modules, absent, None)
    monkeypatch.syspath_prepend(BESIDE_OGB)
    if not os.environ.get("OUTCROP_STRICT"):
        pytest.importorskip("ogb", reason="no ogb: scripts/setup.sh test")
    monkeypatch.setattr(importlib.import_module("tqdm").tqdm, "monitor_interval", 0)
    return importlib.import_module(f"ogb.{name}")


def script(name: str) -> ModuleType:
    """``scripts/<name>.py`` as a module."""
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made  # where its dataclasses look for their annotations
    spec.loader.exec_module(made)
    return made


def torture() -> str:
    """The torture this run is under: "tiny", "faults", "pread" (changes nothing by itself) or "" for none."""
    mode = os.environ.get("OUTCROP_TORTURE", "")
    if mode not in TORTURES:
        raise ValueError(f"OUTCROP_TORTURE={mode!r} is unknown; known: tiny, faults, pread")
    return mode


def runtime_options(test_name: str, memory: int | str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Arguments of ``Runtime`` for a test that asks for ``memory`` and ``options``, changed by the torture.

    What a test asks for explicitly stays; only defaults are replaced.
    """
    from outcrop import _core
    from outcrop.config import IoConfig

    options = {"memory": memory, **options}
    mode = torture()
    if mode == "tiny":
        if memory is None:
            options["memory"] = TINY_MEMORY
        asked, default = options.get("io") or IoConfig(), IoConfig()
        tiny = {"max_request_bytes": 4096, "depth": 2, "threads": 2}
        changes = {
            name: value for name, value in tiny.items() if getattr(asked, name) == getattr(default, name)
        }
        options["io"] = dataclasses.replace(asked, **changes)
    elif mode == "faults" and options.get("faults") is None:
        faults = _core.FaultPlan()
        faults.short_probability = 0.3
        faults.eagain_probability = 0.1
        faults.seed = zlib.crc32(test_name.encode())
        options["faults"] = faults
    return options


def new_runtime(memory: int | str | None = None, **options: Any) -> Any:
    """``Runtime(memory, **options)``, changed by the torture. For modules that say ``TORTURED = True``."""
    from outcrop.runtime.runtime import Runtime

    return Runtime(**runtime_options("module", memory, options))


def held_bytes(runtime: Any) -> int:
    """What is reserved besides the buffers that the I/O engine keeps for itself."""
    tags = runtime.budget.by_tag
    return runtime.budget.now_bytes - (tags["io-buffers"].now_bytes if "io-buffers" in tags else 0)


def read_names(graph: Any, runtime: Any, start: int = 0, stop: int | None = None) -> list[str]:
    """Names of nodes ``start:stop``, as they are stored. Raises FormatError where the graph has none."""
    from outcrop.store.names import NAME_ARRAYS, read_text

    return read_text(runtime, graph.path, graph.manifest, NAME_ARRAYS, start, stop)
