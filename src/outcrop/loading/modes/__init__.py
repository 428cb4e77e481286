"""The modes of loading: a class for each place where the rows of mini-batches come from.

Users choose among ``packed``, ``online`` and ``memory``; the others are baselines to compare with. This is the only
list: help texts, messages and benchmarks read it. :func:`mode_named` makes modes of what users write; what a mode has
or can is an attribute (``base``), never a comparison with its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

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
    "mode_with",
    "names_of",
]

CHOICES: tuple[Mode, ...] = (Packed(), Online(), InMemory())
BASELINES: tuple[Mode, ...] = (Memmap(), OnDisk(), Dynamic(), Belady(), Partition())
MODES = (*CHOICES, *BASELINES)


def mode_named(mode: str | Mode) -> Mode:
    """Returns the mode that is called so, with the defaults of its fields.

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
    """Returns the names, for messages; with ``notes`` what help texts say of each."""
    return ", ".join(f"{mode} ({mode.note})" if notes and mode.note else mode.name for mode in modes)


def taking(option: str) -> str:
    """Returns the names of the modes that have a field of this name."""
    return names_of(tuple(mode for mode in MODES if mode.takes(option)))


def mode_with(mode: str | Mode | None, options: Mapping[str, Any]) -> Mode:
    """Makes a mode of its name (None: packed) and the fields that users gave.

    Raises:
        ArgumentError: There is no such mode, it has no such field, or not with this value.
    """
    named = Packed() if mode is None else mode_named(mode)
    for option in options:
        if not named.takes(option):
            flag = _FLAGS.get(option, option.replace("_", "-"))
            raise ArgumentError(f"--{flag} is for --mode {taking(option)}, not {named}: leave it out")
    return replace(named, **options)


_FLAGS = {"row_reads": "io", "stripes": "stripe"}  # fields of modes that the command calls otherwise
