"""UnifiedTensor: a tensor in host memory that CPU and GPU code use in place. PyTorch-Direct, sections 4.2 to 4.4.

Operations are placed above autograd: an operand is replaced by the same memory as the GPU sees it, or left as it is, by
the rules of placement.py, and what comes out is put where these say. Gradients come back to where the operand lies.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Iterator
from typing import Any, TypeGuard

import torch
from torch.utils._pytree import tree_leaves, tree_map

from outcrop.device.gpu import Gpu
from outcrop.unified.gather import gather
from outcrop.unified.memory import host_memory
from outcrop.unified.names import HANDS_OUT, METADATA, READS, VIEWS, may_write, name_of, writes
from outcrop.unified.placement import Side, side_of

UNIFIED = "unified"


class UnifiedDevice(str):
    """Stands for the paper's ``torch.device("unified", ...)``: a name, with what a tensor is to be created with.

    Attributes:
        propagatedToCUDA: See :meth:`UnifiedTensor.set_propagatedToCUDA`.
        managed: Memory that the driver may move, so that ``memAdvise`` works; implied by ``advise``.
        advise, adviseDevice: Given to ``memAdvise`` as soon as the tensor is there.
    """

    propagatedToCUDA: bool
    managed: bool
    advise: str | None
    adviseDevice: str | torch.device
    type = UNIFIED

    def __new__(
        cls,
        propagatedToCUDA: bool = False,
        *,
        managed: bool = False,
        advise: str | None = None,
        adviseDevice: str | torch.device = "cpu",
    ) -> UnifiedDevice:
        self = super().__new__(cls, UNIFIED)
        self.propagatedToCUDA = propagatedToCUDA
        self.managed = managed or advise is not None
        self.advise, self.adviseDevice = advise, adviseDevice
        return self

    def __repr__(self) -> str:
        return f"device(type='unified', propagatedToCUDA={self.propagatedToCUDA})"

    def empty(self, size: Any, dtype: torch.dtype | None = None, strides: Any = None) -> UnifiedTensor:
        """Makes a tensor of unset values: see :meth:`outcrop.unified.memory.Memory.empty`."""
        plain = self.memory(tuple(size), dtype or torch.get_default_dtype(), strides)
        return in_unified_memory(plain, self.propagatedToCUDA)

    def memory(self, size: tuple[int, ...], dtype: torch.dtype, strides: Any = None) -> torch.Tensor:
        """Returns the same, as the plain CPU tensor that it is."""
        plain = host_memory().empty(size, dtype, strides=strides, managed=self.managed)
        if self.advise is not None:
            host_memory().advise(plain, self.advise, torch.device(self.adviseDevice))
        return plain


def as_device(name: Any) -> UnifiedDevice | None:
    """Returns the unified device that ``name`` is; None for every other."""
    if isinstance(name, UnifiedDevice):
        return name
    return UnifiedDevice() if isinstance(name, str) and name == UNIFIED else None


class UnifiedTensor(torch.Tensor):
    """Wraps a strided tensor in host memory that the GPU reads in place.

    Made by :func:`outcrop.unified.to_unified`, :func:`outcrop.unified.empty` and :func:`outcrop.unified.in_place`;
    ``device`` is ``cpu``, where the memory is. Views, slices and results of operations in place share memory.
    An integer tensor of the GPU as index gathers rows into a tensor of the GPU, in either state of the flag: the
    paper's listing 2 needs it so, although its table 3 has a unified tensor for non-propagation.
    """

    _propagated: bool = False
    _is_param: bool = False  # what torch.nn.Parameter sets, and goes by
    _adds_safely: bool = False

    @property
    def is_unified(self) -> bool:
        return True

    @property
    def propagatedToCUDA(self) -> bool:
        """Tells whether operations on this tensor prefer the GPU, for their results too."""
        return self._propagated

    def set_propagatedToCUDA(self, flag: bool) -> UnifiedTensor:
        """Switches the hint of placement; nothing is moved or copied."""
        self._propagated = bool(flag)
        return self

    def memAdvise(self, advise: str, adviseDevice: str | torch.device = "cpu") -> int:
        """Calls cudaMemAdvise on the whole memory that the tensor lies in.

        Args:
            advise: ``SetReadMostly``, ``SetPreferredLocation``, ``SetAccessedBy``, or ``Unset`` of these.

        Returns:
            CUDA's error code, 0 where all went well.

        Raises:
            RuntimeError: The memory is not managed by CUDA.
        """
        return host_memory().advise(_plain(self), advise, torch.device(adviseDevice))

    def as_subclass(self, cls: Any) -> Any:
        """Gives the memory away, as ``numpy()`` does: torch asks nobody."""
        host_memory().wait(self, to_write=True)
        return super().as_subclass(cls)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        host_memory().wait(self)
        shown = torch.Tensor.__repr__(_plain(self), tensor_contents=tensor_contents)
        return f"{shown[:-1]}, device='unified', propagatedToCUDA={self._propagated})"

    def __format__(self, spec: str) -> str:
        """Formats a number as numbers are formatted: torch does so for its own type only."""
        return format(self.item(), spec) if spec and self.dim() == 0 else super().__format__(spec)

    def __reduce_ex__(self, protocol: Any) -> Any:
        host_memory().wait(self)
        return rebuild, (_plain(self).detach().clone(), self._propagated, self.requires_grad, self._is_param)

    def __deepcopy__(self, memo: dict[int, Any]) -> UnifiedTensor:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("only leaves of the graph, or what is detached from it, can be copied deeply")
        out = rebuild(_plain(self).detach(), self._propagated, self.requires_grad, self._is_param)
        out.grad = copy.deepcopy(self.grad, memo)
        memo[id(self)] = out
        return out

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatched(func, args, kwargs or {})


@torch._disable_dynamo  # pyright: ignore[reportPrivateImportUsage]
def _dispatched(func: Any, args: Any, kwargs: Any) -> Any:
    """Runs the operation as it is; not traced in compiled code, where addresses are nothing."""
    special = _SPECIAL.get(func)
    if special is not None:
        found = special(*args, **kwargs)
        if found is not NotImplemented:
            return found
    name = name_of(func)
    if name in HANDS_OUT or name in READS:
        _wait((args, kwargs), to_write=name in HANDS_OUT)
    if name in METADATA:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)
    if name in VIEWS:
        return _as_views(func, args, kwargs)
    return _placed(func, name, args, kwargs)


def _wait(operands: Any, *, to_write: bool = False) -> None:
    """Waits until the CPU may read the memory of unified operands, or write it too."""
    for x in tree_leaves(operands):
        if _is_unified(x):
            host_memory().wait(x, to_write=to_write)


def rebuild(
    plain: torch.Tensor, propagated: bool, requires_grad: bool, parameter: bool = False
) -> UnifiedTensor:
    """Makes what a pickle of a unified tensor holds: a copy of ``plain`` in unified memory."""
    out = in_unified_memory(_copied(plain, UnifiedDevice(propagated)), propagated)
    out.requires_grad_(requires_grad)
    if parameter:
        out._is_param = True
    return out


torch.serialization.add_safe_globals([rebuild])


def _is_unified(x: Any) -> TypeGuard[UnifiedTensor]:
    return isinstance(x, UnifiedTensor)


def _plain(x: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return torch.Tensor.as_subclass(x, torch.Tensor)


def in_unified_memory(plain: torch.Tensor, propagated: bool) -> UnifiedTensor:
    """Returns the same tensor, whose memory is unified, as one that says so; part of the graph where ``plain`` is."""
    out = torch.Tensor.as_subclass(plain, UnifiedTensor)
    out._propagated = propagated
    return out


def _copied(x: torch.Tensor, device: UnifiedDevice) -> torch.Tensor:
    """Returns a plain CPU tensor, and no view of one, in unified memory."""
    host_memory().wait(x)
    strides = torch.empty_like(x, device="meta").stride()  # those of x where it has no gaps
    return device.memory(x.shape, x.dtype, strides).copy_(x.detach())


class _ToUnified(torch.autograd.Function):
    """Copies to unified memory."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, device: UnifiedDevice) -> torch.Tensor:
        ctx.device = x.device
        return _copied(_plain(x), device)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return _plain(gradients[0]).to(ctx.device), None


class _OnGpu(torch.autograd.Function):
    """Returns the same memory as the GPU sees it; its gradient comes back to unified memory."""

    @staticmethod
    def forward(ctx: Any, x: UnifiedTensor, device: int) -> torch.Tensor:
        ctx.propagated = x._propagated
        return host_memory().on_gpu(_plain(x), device)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return _as_gradient(gradients[0], ctx.propagated), None


class _InHost(torch.autograd.Function):
    """Returns the same tensor; its gradient comes back to unified memory."""

    @staticmethod
    def forward(ctx: Any, x: UnifiedTensor) -> torch.Tensor:
        ctx.propagated = x._propagated
        return _plain(x).detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return _as_gradient(gradients[0], ctx.propagated)


def _as_gradient(gradient: torch.Tensor, propagated: bool) -> UnifiedTensor:
    plain = _plain(gradient)
    if not host_memory().owns(plain):
        plain = _copied(plain, UnifiedDevice(propagated))
    return in_unified_memory(plain, propagated)


@contextlib.contextmanager
def replacing_parameters() -> Iterator[None]:
    """Has Module.to() and the like replace parameters instead of their data, whose type would else stay what it is."""
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)


def copy_to_unified(x: torch.Tensor, device: UnifiedDevice) -> UnifiedTensor:
    """Returns a copy of ``x`` in unified memory, for autograd too."""
    if torch.is_grad_enabled() and x.requires_grad:
        return in_unified_memory(_ToUnified.apply(x, device), device.propagatedToCUDA)
    return in_unified_memory(_copied(_plain(x), device), device.propagatedToCUDA)


def on_gpu(x: UnifiedTensor, device: int, *, writes: bool = False) -> torch.Tensor:
    """Returns the memory of ``x`` as a tensor of the GPU, without a copy, for autograd too.

    Args:
        writes: See :meth:`outcrop.unified.memory.Memory.on_gpu`.
    """
    if torch.is_grad_enabled() and x.requires_grad:
        return _OnGpu.apply(x, device)
    return host_memory().on_gpu(_plain(x), device, writes=writes)


def _placed(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Runs ``func`` where table 3 has it computed, and puts its results where that has them.

    What is written stays where it is: that decides over the table where it is no unified tensor, and a unified one is
    written by the CPU where autograd has to see it.
    """
    operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    written = writes(name, args, kwargs)
    where = _where(operands, written, host_memory().gpu)
    unified = [x for x in operands if _is_unified(x)]
    changed = unified if may_write(name) else [x for x in unified if _is_among(x, written)]
    if where.compute == "cpu":
        _wait(unified)
        _wait(changed, to_write=True)
    there = _gpu_of(operands) if where.compute == "cuda" else torch.device("cpu")
    same = {id(x): x for x in operands}  # what comes out because it went in
    aliases: list[tuple[UnifiedTensor, torch.Tensor]] = []

    def moved(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.device == there:
            return x
        if not _is_unified(x):
            return x if x.is_cpu and x.dim() == 0 else x.to(there)
        alias = on_gpu(x, there.index or 0, writes=_is_among(x, changed))
        same[id(alias)] = x
        aliases.append((x, alias))
        return alias

    args, kwargs = tree_map(moved, (args, kwargs))
    try:
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
    finally:  # of what fails, a part may have been given to the GPU
        for x, alias in aliases:
            if _is_among(x, changed) or _has_been_written(alias):
                host_memory().wrote(x, there.index or 0)
    if where.compute == "cuda":
        for x in written:  # through another tensor, so that autograd does not know
            torch.autograd.graph.increment_version(x)
    if kwargs.get("device") is not None:  # the caller has said where
        return result
    seen = [*unified, *(alias for _, alias in aliases)]
    return tree_map(lambda x: same[id(x)] if id(x) in same else _delivered(x, where, unified, seen), result)


def _is_among(x: torch.Tensor, others: list[Any]) -> bool:
    return any(x is other for other in others)


def _has_been_written(alias: torch.Tensor) -> bool:
    """Perhaps: a tensor of inference does not tell."""
    return alias.is_inference() or alias._version > 0


def _delivered(x: Any, where: Side, unified: list[UnifiedTensor], seen: list[torch.Tensor]) -> Any:
    """Puts a result where it is to be: none of the GPU in the memory of ``seen``."""
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
        return x
    if where.compute == "cpu":
        return _host_result(x, unified, where.propagated)
    if where.output == UNIFIED:
        return copy_to_unified(x, UnifiedDevice(where.propagated))
    return x.clone() if any(_address(x) == _address(u) for u in seen) else x


def _gpu_of(operands: list[torch.Tensor]) -> torch.device:
    """Returns the GPU of the first operand that is on one."""
    gpu = host_memory().gpu
    assert gpu is not None
    found = next((x.device for x in operands if x.device.type == gpu.type), None)
    return torch.device(gpu.type, gpu.current()) if found is None else found


def _where(operands: list[torch.Tensor], written: list[torch.Tensor], gpu: Gpu | None) -> Side:
    hints = [x._propagated for x in operands if isinstance(x, UnifiedTensor)]
    if gpu is None:
        return Side("cpu", UNIFIED, bool(hints) and all(hints))
    if any(x.is_cpu and not _is_unified(x) for x in written):
        return Side("cpu", UNIFIED)
    if any(x.device.type == gpu.type for x in written):
        return Side("cuda", "cuda")
    if written and torch.is_grad_enabled() and any(x.requires_grad for x in operands):
        return Side("cpu", UNIFIED)
    others = [x for x in operands if not _is_unified(x)]
    return side_of(
        hints,
        cpu=any(x.is_cpu and x.dim() > 0 for x in others),
        cuda=any(x.device.type == gpu.type for x in others),
    )


def _host_result(x: torch.Tensor, unified: list[UnifiedTensor], propagated: bool) -> torch.Tensor:
    """Returns what the CPU computed, as a unified tensor: the memory of an operand, or a copy that the GPU can read."""
    for operand in unified:
        if _address(x) == _address(operand):
            return in_unified_memory(x, operand._propagated)
    if host_memory().gpu is None:
        return in_unified_memory(x, propagated)
    return copy_to_unified(x, UnifiedDevice(propagated))


def _address(x: torch.Tensor) -> int:
    with torch._C.DisableTorchFunctionSubclass():
        return x.untyped_storage().data_ptr()


def _as_views(func: Any, args: Any, kwargs: Any) -> Any:
    """Runs ``func`` on the host memory; a view is unified, with the hint of what it is one of."""
    unified = [x for x in tree_leaves((args, kwargs)) if _is_unified(x)]
    with torch._C.DisableTorchFunctionSubclass():
        result = func(*args, **kwargs)
    tensors = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
    if any(_address(x) != _address(unified[0]) for x in tensors) and host_memory().wait(unified[0]):
        # No view but a copy, of what a GPU had not written yet: made again.
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)

    def delivered(x: Any) -> Any:
        if type(x) is torch.Tensor and x.layout is torch.strided and x.is_cpu:
            return _host_result(x, unified, unified[0]._propagated)
        return x

    return tree_map(delivered, result)


def _is_of_gpu(x: Any) -> TypeGuard[torch.Tensor]:
    gpu = host_memory().gpu
    return gpu is not None and isinstance(x, torch.Tensor) and x.device.type == gpu.type


def _is_gpu_index(index: Any) -> bool:
    return _is_of_gpu(index) and index.dtype in (torch.int64, torch.int32)


def _rows(x: UnifiedTensor, index: torch.Tensor) -> torch.Tensor:
    return gather(_InHost.apply(x) if torch.is_grad_enabled() and x.requires_grad else _plain(x), index)


def _getitem(x: Any, key: Any) -> Any:
    if not _is_unified(x):
        return NotImplemented
    if _is_gpu_index(key):
        return _rows(x, torch.where(key < 0, key + len(x), key))
    parts = key if isinstance(key, tuple) else (key,)
    if all(part is None or part is Ellipsis or type(part) in (int, slice) for part in parts):
        return _as_views(torch.Tensor.__getitem__, (x, key), {})
    there = next((part.device for part in parts if _is_of_gpu(part)), None)
    if there is None:
        return NotImplemented
    key = tree_map(lambda part: part.to(there) if isinstance(part, torch.Tensor) else part, key)
    return on_gpu(x, there.index or 0)[key]


def _index_select(x: Any, dim: int, index: Any) -> Any:
    if _is_unified(x) and dim in (0, -x.dim()) and _is_gpu_index(index):
        return _rows(x, index)
    return NotImplemented


def _embedding(
    index: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    learned = torch.is_grad_enabled() and isinstance(weight, torch.Tensor) and weight.requires_grad
    of_gradients = padding_idx is not None or scale_grad_by_freq or sparse
    if max_norm is None and not (learned and of_gradients):
        return _index_select(weight, 0, index)
    return NotImplemented


def _gather(table: Any, index: Any) -> Any:
    index = _plain(index) if _is_unified(index) else index
    return _rows(table, index) if _is_unified(table) else gather(table, index)


def _to(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    target = args[0] if args else kwargs.get("device", kwargs.get("other"))
    if isinstance(target, UnifiedTensor):
        target = UnifiedDevice(target._propagated)
    elif isinstance(target, torch.Tensor):
        target = target.device
    unified = as_device(target)
    if unified is not None:
        dtype = next((a for a in (*args[1:], kwargs.get("dtype")) if isinstance(a, torch.dtype)), x.dtype)
        same = (
            isinstance(x, UnifiedTensor) and x._propagated == unified.propagatedToCUDA and not unified.managed
        )
        if same and dtype == x.dtype and not kwargs.get("copy"):
            return x
        return copy_to_unified(x.to(dtype), unified)
    if not isinstance(x, UnifiedTensor) or isinstance(target, torch.dtype) or target is None:
        return NotImplemented
    return _moved(x, *args, **kwargs)


def _grad(x: torch.Tensor) -> torch.Tensor | None:
    """Returns a gradient in unified memory, as one that says so: autograd keeps it as a plain tensor of the CPU."""
    with torch._C.DisableTorchFunctionSubclass():
        gradient = x.grad
        if not isinstance(x, UnifiedTensor) or gradient is None or gradient.layout is not torch.strided:
            return gradient
        if host_memory().gpu is not None and not host_memory().owns(gradient):
            x.grad = gradient = _copied(gradient, UnifiedDevice())
        _wait_before_adding(x)
    return in_unified_memory(gradient, x._propagated)


def _set_grad(x: torch.Tensor, gradient: torch.Tensor | None) -> None:
    with torch._C.DisableTorchFunctionSubclass():
        x.grad = gradient
        if isinstance(x, UnifiedTensor) and gradient is not None:
            _wait_before_adding(x)


def _wait_before_adding(x: UnifiedTensor) -> None:
    """Has autograd, which adds to a gradient by the CPU and unseen, wait for GPUs that were given work on it."""
    if host_memory().gpu is None or x._adds_safely or not (x.is_leaf and x.requires_grad):
        return
    leaf = weakref.ref(x)

    def wait(_: torch.Tensor) -> None:
        here = leaf()
        with torch._C.DisableTorchFunctionSubclass():
            gradient = None if here is None else here.grad
        if gradient is not None and gradient.is_cpu and gradient.layout is torch.strided:
            host_memory().wait(gradient, to_write=True)

    x.register_hook(wait)
    x._adds_safely = True


def _moved(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Moves to another device; the CPU is one too, whose tensor is a copy."""
    plain = _plain(x)
    host_memory().wait(plain)
    out = plain.to(*args, **kwargs)
    if _is_of_gpu(out) and host_memory().owns(plain):  # with non_blocking it is read later
        host_memory().on_gpu(plain.detach(), out.get_device())
    return out.clone() if out is plain or _address(out) == _address(plain) else out


def _cpu(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return _moved(x, "cpu")


def _cuda(x: torch.Tensor, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> torch.Tensor:
    gpu = host_memory().gpu
    there = device if device is not None else "cuda" if gpu is None else gpu.type
    return _moved(x, there, non_blocking=non_blocking, **kwargs)


def _same_kind(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Tells whether ``x.data = y`` may be: Module.to() and the like else make a new parameter, of the type of ``y``."""
    if _is_unified(x) != _is_unified(y):
        return False
    return _SAME_KIND(_plain(x), _plain(y))


_SAME_KIND: Any = torch._has_compatible_shallow_copy_type  # pyright: ignore[reportPrivateImportUsage]
# torch's own: torch_geometric puts a wrapper in the place of torch.index_select.
_INDEX_SELECT: Any = torch._C._VariableFunctions.index_select  # pyright: ignore[reportAttributeAccessIssue]

_SPECIAL: dict[Any, Any] = {
    torch.Tensor.__getitem__: _getitem,
    torch.Tensor.index_select: _index_select,
    _INDEX_SELECT: _index_select,
    torch.nn.functional.embedding: _embedding,
    torch.ops.outcrop.gather.default: _gather,
    torch.ops.outcrop.gather: _gather,
    torch.Tensor.to: _to,
    _SAME_KIND: _same_kind,
    torch.Tensor.grad.__get__: _grad,  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    torch.Tensor.grad.__set__: _set_grad,  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    torch.Tensor.cpu: _cpu,
    torch.Tensor.cuda: _cuda,
}
