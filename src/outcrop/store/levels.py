"""The levels that rows of features come from, by the names that reports and plans on disk have for them."""

from __future__ import annotations

from enum import StrEnum


class Level(StrEnum):
    """Names where a row was found; each is also the string that is written to disk."""

    DEVICE = "device"
    """The cache in the memory of a GPU."""
    HOST = "host"
    """The cache in host memory, or all rows there."""
    DISK_CACHE = "disk_cache"
    """The cache on disk that the packed records of a run share."""
    PACKED = "packed"
    """The record of the batch."""
    DISK = "disk"
    """The features of the graph on disk, read row by row."""
    MAP = "map"
    """The features of the graph on disk, through the page cache."""


LevelCounts = dict[Level, int]
"""How many rows came from each level."""
