"""CUDA C++ of all kernels, as text: ``NAME.cu`` has the entry points of ``NAME.h``, which C++ compilers understand too.

The CPU kernels (core/cpu_kernels) are compiled from the same headers.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent  # holds what the sources include as "kernels/..."
NAMES = ("assemble", "gather", "io_queue", "sample")


def source(name: str) -> str:
    """Returns the text of ``NAME.cu``."""
    return (FOLDER / f"{name}.cu").read_text()


@cache
def digest(name: str) -> str:
    """Returns the SHA-256 of everything that the kernels of ``name`` are compiled from."""
    texts = [source(name), *(path.read_text() for path in sorted(FOLDER.glob("*.h")))]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()
