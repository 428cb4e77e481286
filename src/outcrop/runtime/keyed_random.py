"""Random numbers that follow from a key alone: the same whatever was drawn before, in whatever order."""

from __future__ import annotations

import numpy as np


def mix64(x: np.ndarray) -> np.ndarray:
    """Computes the splitmix64 finaliser on uint64, as core/base/random.h."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def key_of(*parts: int) -> np.ndarray:
    """Makes one word, uint64 [1], of a tuple of numbers, as ``hop_key`` of core/sampling/draw.h."""
    key = mix64(np.array([parts[0]], np.uint64))
    for part in parts[1:]:
        key = mix64(key ^ np.uint64(part))
    return key
