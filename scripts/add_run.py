"""Adds up searches that take longer than anyone waits for at once: each run is added to those that a file lists."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Run = dict[str, Any]


def add_run(
    path: Path, experiment: str, run: Run, rows_of: Callable[[Sequence[Run]], Run], *, again: bool = False
) -> None:
    """Adds ``run`` to ``runs`` in the JSON of ``path``, which is made where it is not there.

    Args:
        again: The last run of the file is this one, which has done more since.
        run: What was done; the revision that did it and the processor are added.
        rows_of: Gives ``columns`` and ``rows`` of all runs together, and whatever else the file is to hold.
    """
    from outcrop.bench.origin import origin

    here = origin(experiment)
    runs = json.loads(path.read_text())["runs"] if path.exists() else []
    runs = runs[:-1] if again else runs
    runs.append({"revision": here["revision"], "cpu": here["machine"]["cpu"], **run})
    path.write_text(json.dumps({**here, "runs": runs, **rows_of(runs)}, indent=1))
