#!/usr/bin/env python3
"""Adds to a software bill of materials (CycloneDX, JSON) what wheels have compiled in; from stdin to stdout.

    python -m cyclonedx_py requirements requirements/run.lock --pyproject pyproject.toml -o - |
      scripts/sbom.py liburing=2.3 libc++=0.17.1

What a wheel asks for at run time cyclonedx_py lists from the lock. Compiled in are nanobind, whose version is that of
requirements/build.lock, and what is given as NAME=VERSION; THIRD-PARTY.txt has the licences.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LICENSES = {
    "liburing": ("MIT", "pkg:github/axboe/liburing"),
    "nanobind": ("BSD-3-Clause", "pkg:pypi/nanobind"),
    "libc++": ("Apache-2.0 WITH LLVM-exception", "pkg:github/llvm/llvm-project"),
}


def with_compiled(bill: dict[str, Any], versions: dict[str, str]) -> dict[str, Any]:
    """Returns the bill with a component for each of ``versions``, by name, which the root component holds.

    Raises:
        ValueError: Nothing is known of a name.
    """
    if unknown := versions.keys() - LICENSES.keys():
        raise ValueError(f"no licence is known of {', '.join(sorted(unknown))}: add it to scripts/sbom.py")
    inside = [
        {
            "type": "library",
            "bom-ref": f"compiled-in:{name}",
            "name": name,
            "version": version,
            "licenses": [{"expression": LICENSES[name][0]}],
            "purl": f"{LICENSES[name][1]}@{version}",
        }
        for name, version in sorted(versions.items())
    ]
    root = {**bill["metadata"]["component"], "components": inside}
    return {**bill, "metadata": {**bill["metadata"], "component": root}}


def main() -> int:
    versions = dict(one.split("=", 1) for one in sys.argv[1:])
    locked = re.search(r"^nanobind==(\S+)", (ROOT / "requirements" / "build.lock").read_text(), re.MULTILINE)
    assert locked is not None
    bill = with_compiled(json.load(sys.stdin), {"nanobind": locked[1], **versions})
    json.dump(bill, sys.stdout, indent=1, sort_keys=True)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
