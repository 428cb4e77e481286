"""Where the rows of a mini-batch lie that are not packed behind it: which row of which cache belongs to which node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np


def _no_rows() -> np.ndarray:
    return np.zeros(0, np.int32)


@dataclass(frozen=True)
class AddressTable:
    """Says where the rows of a batch lie that are not packed.

    Attributes:
        host_positions, device_positions: int32, local node positions, ascending.
        host_rows, device_rows: int32, row numbers in the cache file, one per position.
        disk_positions, disk_rows: int32, the same for the disk cache, ascending by row, as it is read.
    """

    host_positions: np.ndarray = field(default_factory=_no_rows)
    host_rows: np.ndarray = field(default_factory=_no_rows)
    device_positions: np.ndarray = field(default_factory=_no_rows)
    device_rows: np.ndarray = field(default_factory=_no_rows)
    disk_positions: np.ndarray = field(default_factory=_no_rows)
    disk_rows: np.ndarray = field(default_factory=_no_rows)

    def moved(self, by: int) -> AddressTable:
        """Returns the table with positions so many further on."""
        return AddressTable(
            self.host_positions + np.int32(by),
            self.host_rows,
            self.device_positions + np.int32(by),
            self.device_rows,
            self.disk_positions + np.int32(by),
            self.disk_rows,
        )

    @classmethod
    def joined(cls, tables: Sequence[AddressTable]) -> AddressTable:
        """Joins the tables of parts of a batch that follow each other."""
        columns = [[getattr(table, column.name) for table in tables] for column in fields(cls)]
        return cls(*(np.concatenate(column) if column else _no_rows() for column in columns))

    def columns(self) -> list[np.ndarray]:
        """Returns its arrays, in the order of the attributes."""
        return [getattr(self, column.name) for column in fields(self)]

    @property
    def num_cached(self) -> int:
        return len(self.host_positions) + len(self.device_positions) + len(self.disk_positions)

    def cached_positions(self) -> np.ndarray:
        """Returns int64 positions of all rows that are not packed, ascending."""
        every = np.concatenate([self.host_positions, self.device_positions, self.disk_positions])
        every.sort()
        return every.astype(np.int64)
