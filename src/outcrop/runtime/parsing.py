"""JSON and TOML of files that others wrote: whatever is wrong with them is a ValueError."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Parses a JSON text as ``json.loads(text)`` does.

    Raises:
        ValueError: It is no JSON, or nested more deeply than Python can follow.
    """
    return _shallow(json.loads, text)


def parse_toml(text: str) -> dict[str, Any]:
    """Parses a TOML text as ``tomllib.loads(text)`` does; raises ValueError as :func:`parse_json` does."""
    return _shallow(tomllib.loads, text)


def _shallow(parse: Callable[[Any], Any], text: str | bytes) -> Any:
    try:
        return parse(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
