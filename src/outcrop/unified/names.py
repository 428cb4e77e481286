"""Which of torch's functions compute nothing, give a view, or write to an operand: by name, as torch names them."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


METADATA = _names("""
    __set__ __delete__ __len__ __hash__ __bool__ __int__ __float__ __complex__ __index__ __format__ __repr__
    __array__ __dlpack__ __dlpack_device__ size dim ndimension stride storage_offset numel nelement
    element_size dim_order data_ptr is_contiguous untyped_storage storage typed_storage storage_type
    is_floating_point is_complex is_signed is_pinned is_shared is_set_to is_same_size is_inference get_device
    has_names numpy tolist item is_nonzero backward grad register_hook register_post_accumulate_grad_hook
    retain_grad requires_grad_ is_neg is_conj is_coalesced _is_view names result_type can_cast as_subclass
""")
"""Computed by neither, and none of them gives a view that is to be unified."""

READS = _names("""
    __bool__ __int__ __float__ __complex__ __index__ __format__ tolist item is_nonzero
""")
"""Of METADATA: what the CPU reads values for."""

HANDS_OUT = _names("""
    __array__ __dlpack__ numpy data_ptr untyped_storage storage typed_storage share_memory_
""")
"""What gives the memory to somebody who may read and write it unseen."""

_PROPERTIES_THAT_VIEW = frozenset(("data", "T", "mT", "H", "mH", "real", "imag"))

VIEWS = _names("""
    view view_as reshape reshape_as flatten unflatten ravel t t_ transpose transpose_ swapaxes swapdims permute movedim
    moveaxis squeeze squeeze_ unsqueeze unsqueeze_ narrow select diagonal expand expand_as broadcast_to unfold
    as_strided split split_with_sizes chunk tensor_split hsplit vsplit dsplit unbind detach detach_ view_as_real
    view_as_complex real adjoint alias unsafe_chunk unsafe_split pin_memory share_memory_
""")
"""Views where they can be (``reshape`` may copy); a view of a unified tensor is one."""

_IN_PLACE = frozenset(
    f"__i{name}__"
    for name in (
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "and",
        "or",
        "xor",
        "lshift",
        "rshift",
        "matmul",
    )
) | {"__setitem__"}


def name_of(func: Any) -> str:
    """Returns the name by which the sets of this module have a function; a property that is no view has that of
    metadata.
    """
    name = getattr(func, "__name__", "")
    if name != "__get__":
        return name
    return "view" if func.__self__.__name__ in _PROPERTIES_THAT_VIEW else "size"


def may_write(name: str) -> bool:
    """Tells whether the function ``name`` may write to operands that :func:`writes` does not tell."""
    return name.startswith("_fused_") or name.endswith(("batch_norm", "instance_norm"))


def writes(name: str, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Returns the tensors that the function ``name`` writes to when called so."""
    if kwargs.get("out") is not None:
        found = kwargs["out"]
    elif name in _IN_PLACE or kwargs.get("inplace") or (name.endswith("_") and not name.endswith("__")):
        found = args[0] if args else next(iter(kwargs.values()), None)
    else:
        return []
    return [x for x in tree_leaves(found) if isinstance(x, torch.Tensor)]
