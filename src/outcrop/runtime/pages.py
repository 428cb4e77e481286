"""The page: the least that is read of a disk, the unit of checksums, and what parts of files are aligned to."""

from __future__ import annotations

PAGE_BYTES = 4096
