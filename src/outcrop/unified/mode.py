"""``"unified"`` as the name of a device in torch's own functions, for those who ask for it."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from outcrop.errors import DeviceError
from outcrop.unified.tensor import (
    UnifiedDevice,
    UnifiedTensor,
    as_device,
    copy_to_unified,
    in_unified_memory,
    replacing_parameters,
)

_PARSE_TO = torch._C._nn._parse_to  # pyright: ignore[reportAttributeAccessIssue]


class UnifiedMode(TorchFunctionMode):
    """Within ``with UnifiedMode():``, ``x.to("unified")``, ``model.to("unified")``, ``torch.device("unified")`` and
    ``torch.ones(128, device="unified")`` are understood, and so is an :class:`outcrop.unified.UnifiedDevice` where its
    name is."""

    def __enter__(self) -> Any:
        self._replacing = replacing_parameters()
        self._replacing.__enter__()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> Any:
        self._replacing.__exit__(None, None, None)
        return super().__exit__(*raised)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.device and args and as_device(args[0]) is not None:
            return UnifiedDevice()
        if func is torch.Tensor.to:
            device = as_device(args[1] if len(args) > 1 else kwargs.get("device"))
            if device is not None:
                return UnifiedTensor.__torch_function__(func, types, args, kwargs)
        if func is _PARSE_TO:  # of Module.to
            device = as_device(args[0] if args else kwargs.get("device"))
            if device is not None:
                dtype = args[1] if len(args) > 1 else kwargs.get("dtype")
                return device, dtype, False, None
        device = as_device(kwargs.get("device"))
        if device is None:
            return func(*args, **kwargs)
        return _created(func, device, args, {k: v for k, v in kwargs.items() if k != "device"})


def _created(func: Any, device: UnifiedDevice, args: Any, kwargs: Any) -> UnifiedTensor:
    """Returns what a factory makes, in unified memory; without a copy where it can write to a tensor that is there."""
    requires_grad = kwargs.pop("requires_grad", False)
    kwargs.pop("pin_memory", None)
    if func in _WITH_OUT:
        like = func(*args, device="meta", **{k: v for k, v in kwargs.items() if k != "generator"})
        plain = device.memory(tuple(like.shape), like.dtype)
        func(*args, out=plain, **{k: v for k, v in kwargs.items() if k not in ("dtype", "layout")})
        out = in_unified_memory(plain, device.propagatedToCUDA)
    else:
        out = copy_to_unified(func(*args, device="cpu", **kwargs).detach(), device)
    out.requires_grad_(requires_grad)
    return out


_WITH_OUT = frozenset(
    {
        torch.empty,
        torch.zeros,
        torch.ones,
        torch.full,
        torch.rand,
        torch.randn,
        torch.randint,
        torch.arange,
        torch.eye,
    }
)


def enable() -> None:
    """Switches on what :class:`UnifiedMode` gives, from here on in this thread; and ``is_unified``,
    ``set_propagatedToCUDA`` and ``memAdvise`` on every tensor, the latter two raising RuntimeError where it is not
    unified, as the paper has it.
    """
    for name in ("set_propagatedToCUDA", "memAdvise"):
        setattr(torch.Tensor, name, _refusing(name))
    torch.Tensor.is_unified = property(lambda self: False)  # pyright: ignore[reportAttributeAccessIssue]
    UnifiedMode().__enter__()


def _refusing(name: str) -> Any:
    def refuse(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        raise DeviceError(f"{name} is for unified tensors; this one is on {self.device}")

    return refuse
