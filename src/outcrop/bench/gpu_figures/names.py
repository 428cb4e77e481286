"""Names of the GPU benchmarks, and the module of each. No imports: scripts/gpu_units.py reads it as text."""

from __future__ import annotations

NAMES = {
    "pytorch-direct-figure-3": "breakdown",
    "pytorch-direct-figure-6": "gathers",
    "pytorch-direct-figure-7": "gathers",
    "pytorch-direct-figure-8": "breakdown",
    "legend-table-4": "embeddings",
    "legend-table-7": "embeddings",
    "legend-table-9": "rings",
    "legend-table-10": "gradients",
    "legend-figure-8": "embeddings",
    "legend-figure-9": "rings",
    "hyperion-figure-7": "epochs",
    "hyperion-figure-8": "epochs",
    "hyperion-figure-10": "epochs",
    "hyperion-figure-12": "rings",
    "diskgnn-figure-8": "epochs",
    "diskgnn-figure-10": "epochs",
    "sampling": "sampling",
}
"""In a call each fits 8 minutes on an H200 beside 16 cores."""
