"""Where the real graphs lie that tests may read: OUTCROP_SHARED_DATA, else shared/data next to the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def shared_data(*parts: str) -> Path:
    """The path of a shared file or folder; skips the test where it is absent."""
    root = os.environ.get("OUTCROP_SHARED_DATA")
    base = Path(root) if root else Path(__file__).resolve().parents[2] / "shared" / "data"
    path = base.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is absent")
    return path
