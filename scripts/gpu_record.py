"""Writes down on what a run of the GPU tests ran and how each test ended: ``gpu_record.py REPORT.xml OUT.json``."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from sum_results import count, outcome


def machine() -> dict[str, Any]:
    """Device, driver and versions, as far as they can be asked."""
    import torch

    found: dict[str, Any] = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition(
            "\n"
        )[0],
        "revision": _output("git", "rev-parse", "HEAD"),
        "devices": [],
    }
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


def tests(report: Path) -> dict[str, Any]:
    """Counts, and outcome and seconds of each test; empty if pytest died before its report."""
    if not report.exists():
        return {"counts": None, "tests": []}
    counts = count(report)
    cases = [
        {
            "name": f"{case.get('classname')}::{case.get('name')}",
            "outcome": outcome(case),
            "seconds": float(case.get("time", 0)),
        }
        for case in ET.parse(report).getroot().iter("testcase")
    ]
    return {
        "counts": {"passed": counts.passed, "failed": counts.failed, "skipped": counts.skipped},
        "tests": cases,
    }


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--status", type=int, required=True, help="exit status of pytest")
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    record = {
        "status": options.status,
        "seconds": options.seconds,
        "machine": machine(),
        **tests(options.report),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=2) + "\n")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
