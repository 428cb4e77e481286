"""Rows of nodes whose type has none: they follow from the number of the node, and are stored nowhere."""

from __future__ import annotations

import math

import numpy as np
import torch

from outcrop.runtime.keyed_random import key_of, mix64

_PURPOSE = 0x524F5753  # keeps these numbers apart from others drawn with the same seed
_BITS = 24  # of a number that float32 holds exactly


def random_rows(seed: int, node_type: int, ids: np.ndarray, width: int) -> torch.Tensor:
    """Draws rows evenly from [-sqrt(3), sqrt(3)): mean 0 and variance 1. A node has the same row in every batch.

    Args:
        seed: From 0 to below 2^64.
        node_type: Number of the type.
        ids: int64 [num_nodes], counted within the type.
        width: Values of a row.

    Returns:
        float32 [num_nodes, width].
    """
    key = key_of(_PURPOSE, seed, node_type)
    of_node = mix64(key ^ ids.astype(np.uint64))[:, None]
    words = mix64(of_node ^ np.arange(-(-width // 2), dtype=np.uint64))  # two values each
    values = np.empty((len(ids), 2 * words.shape[1]), np.float32)
    values[:, 0::2] = words >> np.uint64(64 - _BITS)
    values[:, 1::2] = words & np.uint64((1 << _BITS) - 1)
    values -= np.float32(1 << (_BITS - 1))
    values *= np.float32(math.sqrt(3) / (1 << (_BITS - 1)))
    return torch.from_numpy(values[:, :width].copy() if width % 2 else values)
