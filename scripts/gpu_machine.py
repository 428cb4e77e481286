"""Describes the machine as this interpreter sees it, and says what is missing: one JSON object on standard output.

Run by gpu-check.sh in a process of its own, so that the one which starts everything holds no CUDA context.
"""

from __future__ import annotations

import importlib
import inspect
import json
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from gpu_record import output_of, revision

# Modules, and what is asked for where they are missing; names that old releases lack.
MODULES = {
    "numpy": "numpy",
    "pytest": "pytest",
    "hypothesis": "hypothesis",
    "typer": "typer",
    "rich": "rich",
    "pyarrow": "pyarrow",
    "safetensors": "safetensors",
    "torch_geometric": "torch-geometric",
    "cuda.bindings.nvrtc": "cuda-bindings>=13",
    "cuda.core": "cuda-core>=0.7",
    "triton": "triton>=3.5",
}
NAMES = {"cuda.core": ("Program", "ProgramOptions", "ObjectCode", "Device", "LaunchConfig", "launch")}
FUSED = Path(__file__).parent.parent / "src" / "outcrop" / "embed" / "fused_kernels.py"


def missing() -> list[str]:
    """What pip would be asked for: modules that cannot be imported, and those that lack what Outcrop uses."""
    found = []
    for module, requirement in MODULES.items():
        try:
            made = importlib.import_module(module)
        except ImportError as error:
            absent = error.name or module  # perhaps what the module imports itself
            found.append(requirement if module.startswith(absent) else absent)
            continue
        except (RuntimeError, OSError):
            found.append(requirement)
            continue
        lacks = [name for name in NAMES.get(module, ()) if not hasattr(made, name)]
        if lacks or (module == "triton" and _absent_of_triton()):
            found.append(requirement)
    return found


def _absent_of_triton() -> list[str]:
    """Names of triton.language that the fused kernels use and this release lacks."""
    language: Any = importlib.import_module("triton.language")
    used = sorted(set(re.findall(r"\btl\.(\w+)", FUSED.read_text())))
    absent = [name for name in used if not hasattr(language, name)]
    dot = inspect.signature(language.dot).parameters
    return absent + [name for name in ("input_precision",) if name not in dot]


def problem() -> str:
    """What will not work although everything is there; empty: nothing known."""
    try:
        bindings: Any = importlib.import_module("cuda.bindings.driver")
        error, version = bindings.cuDriverGetVersion()
        nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")
        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError):
        return ""
    if int(error) == 0 and major > version // 1000:
        knows = f"{version // 1000}.{version % 1000 // 10}"
        return (
            f"the driver is one of CUDA {knows} and cannot load what NVRTC {major}.{minor} compiles: install "
            f"cuda-bindings=={version // 1000}.* and its NVRTC, or a newer driver"
        )
    return ""


def core_is_built() -> bool:
    try:
        importlib.import_module("outcrop._core")
    except ImportError:
        return False
    return True


def machine() -> dict[str, Any]:
    """Devices, driver and versions, as far as they can be asked."""
    import torch

    found: dict[str, Any] = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": _version("triton"),
        "cuda_core": _version("cuda-core"),
        "nvrtc": _version("nvidia-cuda-nvrtc"),
        "driver": output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[
            0
        ],
        **revision(),
        "devices": [],
    }
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(index)
            found["devices"].append(
                {
                    "name": device.name,
                    "memory_bytes": device.total_memory,
                    "compute_capability": f"{device.major}.{device.minor}",
                    "multiprocessors": device.multi_processor_count,
                }
            )
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    said = {
        "machine": machine(),
        "missing": missing(),
        "problem": problem(),
        "core": core_is_built(),
        "python_suits": sys.version_info >= (3, 11),  # pyproject.toml: requires-python
    }
    print(json.dumps(said))
