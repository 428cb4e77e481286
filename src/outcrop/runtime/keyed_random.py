"""Random numbers that follow from a key alone: the same whatever was drawn before, in whatever order."""

from __future__ import annotations

import numpy as np

_WORD = (1 << 64) - 1


def mix64(x: np.ndarray) -> np.ndarray:
    """Computes the splitmix64 finaliser on uint64, as core/base/random.h."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def key_of(*parts: int) -> np.ndarray:
    """Makes one word, uint64 [1], of a tuple of numbers, as ``hop_key`` of core/sampling/draw.h.

    Equals ``mix64`` of the first part, then, for each other part, ``mix64(key ^ part)``.

    Raises:
        OverflowError: A part is negative, or has more than 64 bits.
    """
    key = 0
    for part in map(int, parts):
        if not 0 <= part <= _WORD:
            raise OverflowError(f"{part} is no part of a key: 0 to {_WORD}")
        key = _mix(key ^ part)
    return np.array([key], np.uint64)


def _mix(x: int) -> int:
    """Computes :func:`mix64` of a number: a tenth of the time of an array with one."""
    x = (x + 0x9E3779B97F4A7C15) & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)
