"""Device memory that Outcrop may hold, by tag."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import outcrop._core as _core
from outcrop.config import exact_bytes, least_bytes
from outcrop.device.gpu import Gpu
from outcrop.errors import BudgetError

if TYPE_CHECKING:
    import torch


def give_back_cached() -> None:
    """Lets the driver have what torch keeps of device memory that nothing holds any more: a budget that is made next
    counts what the driver has free.
    """
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


class DeviceBudget:
    """Counts bytes of device memory that Outcrop may hold, by tag.

    Args:
        gpu, device: Driver of the device, and which one it is.
        limit_bytes: Bytes that may be held; 0: what is free there.

    Raises:
        BudgetError: The device has less free than that.
    """

    def __init__(self, gpu: Gpu, device: torch.device, limit_bytes: int):
        self.gpu, self.device, self._limited = gpu, device, limit_bytes > 0
        free, _ = gpu.memory(device.index or 0)
        if limit_bytes > free:
            raise BudgetError(
                f"{device} has {exact_bytes(free)} free, --gpu-memory asks for {exact_bytes(limit_bytes)}: "
                "lower it, or end what else runs there",
                limit="device",
            )
        self._budget = _core.Budget.create(limit_bytes or free)

    @property
    def free_bytes(self) -> int:
        return self._budget.free_bytes

    def reserve(self, tag: str, num_bytes: int) -> Any:
        """Counts what others allocate, until it is released or gone."""
        return self._granted(tag, num_bytes, lambda: None)[1]

    def empty(self, tag: str, num_bytes: int) -> tuple[torch.Tensor, Any]:
        """Takes uint8 [num_bytes] on the device; returns it and the reservation that it is held under."""
        import torch

        return self._granted(
            tag, num_bytes, lambda: torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
        )

    def _granted(self, tag: str, num_bytes: int, make: Callable[[], Any]) -> tuple[Any, Any]:
        import torch

        try:
            held = self._budget.reserve(tag, num_bytes)
            return make(), held
        except (BudgetError, torch.OutOfMemoryError) as error:
            least = self._budget.limit_bytes - self._budget.free_bytes + num_bytes
            limited = f"raise --gpu-memory to {least_bytes(least)} or more"
            what = limited if self._limited else "take a smaller batch"
            raise BudgetError(
                f"{exact_bytes(num_bytes)} for {tag} do not fit what {self.device} has left: {error}; {what}",
                limit="device",
            ) from None

    def by_tag(self) -> dict[str, int]:
        """Returns the peak of each tag."""
        return {tag: usage.peak_bytes for tag, usage in self._budget.by_tag.items()}
