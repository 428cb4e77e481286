"""Arrays of what callers hand over: nodes, masks and batches may be tensors, which torch need not be imported for."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class TensorLike(Protocol):
    """Describes a tensor by what it can do: leave its gradient, and its device, behind."""

    def detach(self) -> Any: ...


def is_tensor(value: object) -> bool:
    """Tells whether ``value`` is a tensor, without torch."""
    return isinstance(value, TensorLike)


def host_array(values: object) -> np.ndarray:
    """Returns ``np.asarray(values)``, of a tensor too, wherever it lies and whether or not it has a gradient."""
    return np.asarray(values.detach().cpu() if isinstance(values, TensorLike) else values)
