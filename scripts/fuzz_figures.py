#!/usr/bin/env python3
"""Adds what scripts/fuzz.sh has just tried, which it left in its logs, to the searches that a JSON file lists.

scripts/fuzz_figures.py FILE LOGS TARGET...
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from add_run import RunList

_DONE = re.compile(
    r"^Done (\d+) runs in (\d+) second", re.MULTILINE
)  # libFuzzer's last line, where it found nothing


def tried(log: str) -> dict[str, int] | None:
    """Returns the inputs and seconds that a log tells of; None where an input failed."""
    found = None if "ERROR:" in log else _DONE.search(log)
    return None if found is None else {"inputs": int(found[1]), "seconds": int(found[2])}


def rows_of(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Adds up, target by target, how long was searched and how many inputs were tried."""
    seconds, inputs, failed = Counter[str](), Counter[str](), Counter[str]()
    for run in runs:
        for target, done in run["targets"].items():
            failed[target] += done is None
            seconds[target] += 0 if done is None else done["seconds"]
            inputs[target] += 0 if done is None else done["inputs"]
    return {
        "least_minutes": min(seconds.values()) / 60,
        "inputs": inputs.total(),
        "failed": failed.total(),
        "columns": ["what reads", "searched", "inputs", "failed"],
        "rows": [
            [target, f"{seconds[target] / 60:.0f} min", f"{inputs[target]:,}", str(failed[target])]
            for target in sorted(seconds)
        ],
    }


def main() -> None:
    file, logs, *targets = sys.argv[1:]
    found = {
        target: tried((Path(logs) / f"fuzz-{target}.log").read_text(errors="replace")) for target in targets
    }
    RunList(Path(file), "fuzz", rows_of).add({"targets": found})


if __name__ == "__main__":
    main()
