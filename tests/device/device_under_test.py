"""The GPU that the tests of this folder run on, watched: fake_gpu.py, or CUDA where OUTCROP_GPU_TESTS says ``cuda``."""

from __future__ import annotations

import os
from typing import Any

import torch

NAME = "cuda" if os.environ.get("OUTCROP_GPU_TESTS") == "cuda" else "fakecuda"
FAKE = NAME == "fakecuda"


class Watched:
    """Put before a kind of GPU: notes what is asked of it, and is ``busy``, small or unwilling when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.registered: dict[int, int] = {}
        self.advices: list[tuple[str, str]] = []
        self.launched: list[str] = []  # kernels
        self.launches = 0  # of them, in all
        self.busy = self.refuse = False
        self.total_bytes = 0  # 0: as it is

    def register(self, address: int, num_bytes: int) -> None:
        if self.refuse:
            raise RuntimeError("no memory can be pinned")
        super().register(address, num_bytes)  # type: ignore[misc]
        self.registered[address] = num_bytes

    def unregister(self, address: int) -> None:
        assert not self.busy, "unregistered while the GPU reads it"
        super().unregister(address)  # type: ignore[misc]
        del self.registered[address]

    def advise(self, address: int, num_bytes: int, advice: str, device: torch.device) -> int:
        self.advices.append((advice, device.type))
        return super().advise(address, num_bytes, advice, device)  # type: ignore[misc]

    def launch(self, name: str, entry: str, *how: Any, **options: Any) -> None:
        super().launch(name, entry, *how, **options)  # type: ignore[misc]
        self.launched.append(entry)
        self.launches += 1

    def memory(self, device: int) -> tuple[int, int]:
        if self.total_bytes:
            return self.total_bytes, self.total_bytes
        return super().memory(device)  # type: ignore[misc]

    def wait(self, stream: Any, fence: Fence) -> None:
        super().wait(stream, fence._fence)  # type: ignore[misc]

    def fence(self, stream: Any) -> Fence:
        return Fence(self, super().fence(stream))  # type: ignore[misc]


def schedules() -> list[str]:
    """What OUTCROP_GPU_SCHEDULE names: ``seed:0-99`` is a hundred."""
    name = os.environ.get("OUTCROP_GPU_SCHEDULE", "latest")
    if not name.startswith("seed:"):
        return [name]
    first, _, last = name.removeprefix("seed:").partition("-")
    return [f"seed:{seed}" for seed in range(int(first), int(last or first) + 1)]


def schedule(name: str, salt: str = "") -> Any:
    """When the work of the fake GPU runs: see tests/device/fake/streams.py."""
    from fake import streams

    return streams.schedule(name, salt)


class Fence:
    def __init__(self, gpu: Watched, fence: Any):
        self._gpu, self._fence = gpu, fence

    def query(self) -> bool:
        return not self._gpu.busy and self._fence.query()

    def synchronize(self) -> None:
        self._gpu.busy = False
        self._fence.synchronize()


def begin() -> Watched:
    """The device, known to Outcrop by ``NAME``."""
    from outcrop.device import gpu as kinds

    if FAKE:
        import fake_gpu

        class Fake(Watched, fake_gpu.FakeGpu):
            pass

        made: Any = Fake()
        made.streams.schedule = schedule(schedules()[0])
        made.operators.install()
    else:

        class Real(Watched, kinds.Cuda):
            ran = None

            def settle(self) -> str | None:
                torch.cuda.synchronize()

        made = Real()
    usual = kinds.KINDS.get(NAME, lambda: made)
    kinds.KINDS.clear()
    kinds.KINDS[NAME] = lambda: made if usual() is not None else None  # none in a forked child
    return made
