"""GPU-initiated disk I/O: kernels ask for rows through queue pairs in memory, and put them where they belong.

Source: Hyperion, section III-A. The rings are those of NVM Express (kernels/queue_pair.h). A thread of the host serves
them from any file by the I/O engine (core/rings). Without a GPU the same code submits and completes on the CPU.
"""

from __future__ import annotations

from outcrop.rows.rings.files import RingFile, RowFiles
from outcrop.rows.rings.rows import GpuDiskRows, RowReads
from outcrop.rows.rings.slabs import SlabRings

__all__ = ["GpuDiskRows", "RingFile", "RowFiles", "RowReads", "SlabRings"]
