"""The modes of loading: a class for each place where the rows of mini-batches come from.

Users choose among ``packed``, ``online`` and ``memory``; the others are baselines to compare with. This is the only
list: help texts, messages and benchmarks read it. :func:`mode_named` makes modes of what users write; what a mode has
or can is an attribute (``base``), never a comparison with its name.
"""

from __future__ import annotations

from outcrop.errors import ArgumentError
from outcrop.loading.modes.base import Mode, SessionRequest
from outcrop.loading.modes.belady import Belady
from outcrop.loading.modes.dynamic import Dynamic
from outcrop.loading.modes.memmap import Memmap
from outcrop.loading.modes.memory import InMemory
from outcrop.loading.modes.ondisk import OnDisk
from outcrop.loading.modes.online import Online
from outcrop.loading.modes.packed import Packed
from outcrop.loading.modes.partition import Partition

__all__ = [
    "BASELINES",
    "CHOICES",
    "MODES",
    "Belady",
    "Dynamic",
    "InMemory",
    "Memmap",
    "Mode",
    "OnDisk",
    "Online",
    "Packed",
    "Partition",
    "SessionRequest",
    "mode_named",
    "names_of",
]

CHOICES: tuple[Mode, ...] = (Packed(), Online(), InMemory())
BASELINES: tuple[Mode, ...] = (Memmap(), OnDisk(), Dynamic(), Belady(), Partition())
MODES = (*CHOICES, *BASELINES)


def mode_named(mode: str | Mode) -> Mode:
    """The mode that is called so.

    Raises:
        ArgumentError: None is.
    """
    if isinstance(mode, Mode):
        return mode
    for known in MODES:
        if known.name == mode:
            return known
    raise ArgumentError(f"mode {mode!r} is unknown; known: {names_of(MODES)}")


def names_of(modes: tuple[Mode, ...], *, notes: bool = False) -> str:
    """The names, for messages; with ``notes`` what help texts say of each."""
    return ", ".join(f"{mode} ({mode.note})" if notes and mode.note else mode.name for mode in modes)


def taking(option: str) -> str:
    """The names of the modes that an option of training is for."""
    return names_of(tuple(mode for mode in MODES if option in mode.options))
