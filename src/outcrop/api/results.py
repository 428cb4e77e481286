"""What the front doors return."""

from __future__ import annotations

from outcrop.inference.run import InferReport
from outcrop.preparation.prepare import PrepareReport
from outcrop.training.report import TrainReport

__all__ = ["InferReport", "PrepareReport", "TrainReport"]
