"""Mini-batches drawn by a GPU: bit for bit those of the C++ sampler, from a topology that the GPU reads where it lies.

The kernels are kernels/sample.h; random numbers come from the header that the C++ sampler uses too, so that they agree
by construction. Which neighbours are new, and their numbers, is found by sorting: as in core/sampling/batch_builder.h,
seeds come first, then what each hop meets first, ascending. Without a GPU the CPU kernels draw: slowly, for tests.

The host launches all hops of a batch before the device has drawn the first: arrays have room for the most that fanouts
allow (room.py), kernels take counts from device memory, and sizes are read once, at the end.

Uniform draws (with and without replacement, whole lists), LABOR and ShaDow compare integers only. ``weighted`` is not
drawn here: it compares quotients of ``std::log`` in double precision, whose last bit is CUDA's own.
"""

from __future__ import annotations

from outcrop.sampling.gpu.checks import SAMPLERS
from outcrop.sampling.gpu.sampler import DeviceSampler, Drawn, sample_on

__all__ = ["SAMPLERS", "DeviceSampler", "Drawn", "sample_on"]
