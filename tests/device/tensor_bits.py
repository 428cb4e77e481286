"""Sums over the bits of tensors, by which a test compares what a GPU has without waiting for it."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def bits(x: torch.Tensor) -> torch.Tensor:
    """Returns an integer, on the device, of all bits of a tensor of 4-byte or 8-byte items, each with its place."""
    numbers = x.reshape(-1).view(torch.int32).long()
    return (numbers * torch.arange(1, len(numbers) + 1, device=x.device)).sum()


def all_bits(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Returns :func:`bits` of each tensor: int64 [number of tensors], on their device."""
    return torch.stack([bits(x) for x in tensors])
