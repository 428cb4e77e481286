"""Places that are named by paths or by URIs."""

from __future__ import annotations

import re
from pathlib import Path

from outcrop.errors import ArgumentError

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_LOST_A_SLASH = re.compile(r"(s3|gs|gcs|abfs|abfss|hdfs|file):/(?!/)")


def is_uri(place: str | Path) -> bool:
    """Tells whether ``place`` is a URI, such as ``s3://bucket/folder``, and no path.

    Raises:
        ArgumentError: It is a URI in a ``Path``, which has only one of its slashes.
    """
    if isinstance(place, Path) and _LOST_A_SLASH.match(str(place)):
        raise ArgumentError(f"{place} is a URI in a Path, which drops a slash of it: give it as text")
    return isinstance(place, str) and _URI.match(place) is not None


def require_path(place: str | Path, instead: str) -> None:
    """Checks that ``place``, where something is to be made, is a path.

    Args:
        instead: What to do in place of that.

    Raises:
        ArgumentError: It is a URI.
    """
    if _URI.match(str(place)) or _LOST_A_SLASH.match(str(place)):
        raise ArgumentError(f"{place} is a URI, and here a folder is needed: {instead}")
