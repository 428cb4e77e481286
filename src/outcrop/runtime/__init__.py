"""What all work shares: ``runtime`` (memory budget, I/O engine, workers, trace, progress), and what it is made of.

``system`` asks what memory the machine and its control groups have left; ``machine`` says what is there and how fast
the disk reads, ``hardware`` is that in numbers; ``pipeline`` has all threads of Python; ``trace`` keeps spans,
``recorder`` watches a run for its report; ``progress`` and ``bars`` show long work; ``keyed_random`` makes numbers of
keys; ``parsing`` reads JSON and TOML of others; ``smallest_budget`` is searched for where a memory budget is refused.
Where several processes work together, ``group`` is where they meet, and ``ordered`` adds up what they have.
"""

from __future__ import annotations

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    """Finds ``Runtime``, which was here; this goes with the next release."""
    if name != "Runtime":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from outcrop.runtime.runtime import Runtime

    warnings.warn("outcrop.runtime.Runtime has moved: use outcrop.Runtime", DeprecationWarning, stacklevel=2)
    return Runtime
