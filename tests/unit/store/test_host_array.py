"""Nodes and batches may be handed over as arrays, lists or tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outcrop.store.host_array import host_array


@pytest.mark.parametrize(
    "values", [[3, 1], np.array([3, 1]), torch.tensor([3, 1]), torch.tensor([3.0, 1.0], requires_grad=True)]
)
def test_values_are_those_of_numpy(values: object) -> None:
    np.testing.assert_array_equal(host_array(values), [3, 1])


def test_memory_is_not_copied() -> None:
    array, tensor = np.arange(5), torch.arange(5)
    assert host_array(array) is array
    assert host_array(tensor).ctypes.data == tensor.data_ptr()
