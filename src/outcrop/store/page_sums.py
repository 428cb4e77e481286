"""Checksums of the pages of an array file, compared with what is read: damage is seen where bytes are used.

A page is 4096 bytes, the unit in which rows are read at random; larger reads compare each of their pages. The table is
an array of its own beside the file (``features_page_crc`` for ``features``), 0.1 % of its size.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import outcrop._core as _core
from outcrop.errors import FormatError
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.store.manifest import ArraySpec


class PageSums:
    """Holds the checksums of the pages of the file ``path``, which may be in an object store.

    Args:
        crcs: uint32 [pages], CRC-32C of each page of the file, the zeros behind its data included.
        spec: Spec of the array in the file.
        remedy: What an error tells the user to do; None: what there is to do about a file that is here.

    Attributes:
        remedy: What an error tells the user to do.

    Raises:
        FormatError: There are more or fewer of them than pages.
    """

    def __init__(self, crcs: np.ndarray, path: Path | str, spec: ArraySpec, remedy: str | None = None):
        self.crcs, self._path = crcs, path
        self.remedy = remedy or (
            f"outcrop verify {Path(path).parent} says what else is; copy the file anew or make the folder again"
        )
        pages = -(-spec.data_bytes // PAGE_BYTES)
        if crcs.dtype != np.uint32 or crcs.shape != (pages,) or spec.file_bytes < pages * PAGE_BYTES:
            raise FormatError(
                f"{path} has {len(crcs)} checksums for its {pages} pages: its manifest was changed by hand"
            )

    def check(self, first: int, pages: np.ndarray) -> None:
        """Compares ``pages``, uint8 of whole pages, with those of the file from page ``first`` on.

        Raises:
            ChecksumError: One differs; names the file and the byte.
        """
        _core.check_pages(pages, first, self.crcs, str(self._path), self.remedy)

    def guard(self, reader: _core.RowReader | _core.RowStream) -> None:
        """Has ``reader``, of the same file, compare every page that it reads from now on."""
        reader.check_pages(self.crcs, self.remedy)
