"""torch's operators on the fake device: what comes out is allocated at the call, and computed by the CPU, late.

Shapes are those of torch's meta device. Where they depend on data, and where numbers are handed to the host, the host
waits for the current stream, as with CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

from fake.streams import Span, Work
from outcrop.device.gpu import tensor_over

if TYPE_CHECKING:
    from fake_gpu import FakeGpu

NAME = "fakecuda"
DLPACK_EXTENSION, _DLPACK_CPU = 12, 1
_DISPATCH_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


class Operand(NamedTuple):
    """A tensor that nothing keeps alive."""

    address: int
    like: torch.Tensor  # of the meta device

    @classmethod
    def of(cls, x: torch.Tensor) -> Operand:
        return cls(x.data_ptr(), _meta(x))

    @property
    def span(self) -> Span:
        return Span(self.address, _extent(self.like))

    def tensor(self) -> torch.Tensor:
        """On the CPU."""
        if not self.like.numel():
            return torch.empty_strided(self.like.shape, self.like.stride(), dtype=self.like.dtype)
        return tensor_over(self.address, self.like, _DLPACK_CPU, 0, ())


_OF_SHAPES = ("view", "as_strided_", "_reshape_alias", "unfold", "set_.source_Storage_storage_offset")
_SHAPED_BY_DEVICE = (
    "aten::_embedding_bag",
    "aten::_embedding_bag_forward_only",
)  # shapes of the meta device are those of CUDA


def is_fake(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type == NAME


def _meta(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _extent(x: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    if not x.numel():
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))) * x.element_size()


class Operators:
    """What torch calls."""

    def __init__(self, gpu: FakeGpu):
        self._gpu = gpu
        self._libraries: list[torch.library.Library] = []

    def new(self, shape: Any, dtype: torch.dtype | None, strides: Any = None) -> torch.Tensor:
        dtype = dtype or torch.get_default_dtype()
        like = torch.empty(tuple(shape), dtype=dtype, device="meta")
        if strides is not None:
            like = torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype, device="meta")
        block, owner = self._gpu.allocator.allocate(_extent(like))
        made = tensor_over(block.address, like, DLPACK_EXTENSION, 0, owner)
        block.storage = made.untyped_storage()._cdata
        return made

    def run(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """``op``: what comes out is in new memory of the device, or in that of an operand."""
        self._gpu.called(str(op))
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []  # of the meta device, and the original

        device = "cpu" if op._schema.name in _SHAPED_BY_DEVICE else "meta"

        def there(x: Any) -> Any:
            if is_fake(x):
                like = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
                pairs.append((like if device == "meta" else like.zero_(), x))
                return like
            if isinstance(x, torch.Tensor) and x.dim() > 0:
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but found {NAME} and {x.device} in {op}"
                )
            return torch.device(device) if isinstance(x, torch.device) else x

        if any(not isinstance(x.type, (torch.TensorType, torch.ListType)) for x in op._schema.returns):
            return self._run_now(op, args, kwargs)
        try:
            with _apart():
                made = op(*tree_map(there, list(args)), **tree_map(there, kwargs))
        except (NotImplementedError, RuntimeError) as problem:
            if isinstance(problem, NotImplementedError) or torch.Tag.dynamic_output_shape in op.tags:
                return self._run_now(op, args, kwargs)
            raise
        fresh: list[torch.Tensor] = []
        out = tree_map(lambda x: self._returned(x, pairs, fresh), made)
        self._give(op, args, kwargs, out, fresh)
        return out

    def _give(self, op: Any, args: Any, kwargs: Any, out: Any, fresh: list[torch.Tensor]) -> None:
        new = {id(x) for x in fresh}
        targets = [Operand.of(x) if id(x) in new else None for x in tree_leaves(out)]
        given = tree_map(_described, (list(args), kwargs))
        operands = [x for x in tree_leaves(given, is_leaf=_is_operand) if _is_operand(x)]
        drawn = _random_state(op, given)

        def compute() -> None:
            with _apart(), drawn():
                args, kwargs = tree_map(_on_cpu, given, is_leaf=_is_operand)
                made = tree_leaves(op(*args, **kwargs))
                for target, x in zip(targets, made, strict=True):
                    if target is not None:
                        assert x.shape == target.like.shape, "torch's meta device gives another shape"
                        target.tensor().copy_(x)

        spans = tuple(x.span for x in [*operands, *filter(None, targets)])
        self._gpu.give(Work(str(op), compute, spans))

    def _returned(
        self, x: Any, pairs: list[tuple[torch.Tensor, torch.Tensor]], fresh: list[torch.Tensor]
    ) -> Any:
        """A result of the meta device on ours: an operand, a view of one, or new."""
        if not isinstance(x, torch.Tensor):
            return x
        for ours, original in pairs:
            if x is ours:
                if x.shape != original.shape:  # out= of another size
                    made = self.new(x.shape, x.dtype, x.stride())
                    original.set_(made.untyped_storage(), 0, x.shape, x.stride())
                return original
        for ours, original in pairs:
            if x.untyped_storage()._cdata == ours.untyped_storage()._cdata:
                offset = original.storage_offset() + x.storage_offset()
                return _as_strided(original, x.shape, x.stride(), offset)
        fresh.append(self.new(x.shape, x.dtype, x.stride()))
        return fresh[-1]

    def _run_now(self, op: Any, args: Any, kwargs: Any) -> Any:
        """The host waits."""
        self._gpu.wait_for_current(str(op))
        given = tree_map(_described, (list(args), kwargs))
        for x in tree_leaves(given, is_leaf=_is_operand):
            if _is_operand(x):
                self._gpu.check(x.span)
        with _apart():
            args, kwargs = tree_map(_on_cpu, given, is_leaf=_is_operand)
            return tree_map(self._sent, op(*args, **kwargs))

    def _sent(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        out = self.new(x.shape, x.dtype, x.stride())
        self._queue_copy(x, Operand.of(out))
        return out

    def copy(self, source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """As cudaMemcpyAsync and torch: pageable memory is read at the call; blocking copies wait for the stream."""
        self._gpu.called("copy")
        if not target.numel():
            return target
        late = is_fake(source) and is_fake(target)
        if not late and non_blocking:
            host = target if is_fake(source) else source
            plain = host.is_contiguous() and source.dtype == target.dtype and source.shape == target.shape
            late = plain and self._gpu.pages.holds(Operand.of(host).span)
        if is_fake(target):
            read: Any = Operand.of(source) if late or is_fake(source) else source.clone()
            self._queue_copy(read, Operand.of(target))
            if not late and not non_blocking:
                self._gpu.wait_for_current("copy to the device")
        else:
            written: Any = Operand.of(target)
            self._queue_copy(Operand.of(source), written, pageable=not late)
            if not late:
                self._gpu.wait_for_current("copy to the host")
        return target

    def _queue_copy(self, source: Any, target: Operand, *, pageable: bool = False) -> None:
        def run() -> None:
            with _apart():
                target.tensor().copy_(source.tensor() if _is_operand(source) else source)

        spans = [] if pageable else [target.span]
        spans += [source.span] if _is_operand(source) else []
        self._gpu.give(Work("copy", run, tuple(spans)))

    def item(self, x: torch.Tensor) -> Any:
        self._gpu.called("item")
        self._gpu.wait_for_current("item")
        self._gpu.check(Operand.of(x).span)
        return Operand.of(x).tensor().item()

    def is_pinned(self, x: torch.Tensor) -> bool:
        return x.is_cpu and x.numel() > 0 and self._gpu.pages.holds(Span(x.data_ptr(), _extent(x)))

    def install(self) -> None:
        """Registers the device with torch, for as long as the process lives."""
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

        _setup_privateuseone_for_python_backend(NAME)
        aten = torch.library.Library("aten", "IMPL")
        rest = torch.library.Library("_", "IMPL")
        self._libraries.extend([aten, rest])
        key = "PrivateUse1"

        def empty(size: Any, *, dtype: Any = None, **_: Any) -> torch.Tensor:
            return self.new(size, dtype)

        def empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> torch.Tensor:
            return self.new(size, dtype, stride)

        aten.impl("empty.memory_format", empty, key)
        aten.impl("empty_strided", empty_strided, key)
        aten.impl("_copy_from", self.copy, key)
        aten.impl("_copy_from_and_resize", lambda source, target: self.copy(source, target), key)
        aten.impl("as_strided", _as_strided, key)
        aten.impl("_local_scalar_dense", self.item, key)
        for name in _OF_SHAPES:
            base, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, base), overload or "default")
            aten.impl(name, partial(op.redispatch, _DISPATCH_CPU), key)
        rest.fallback(self.run, key)
        torch.Tensor.is_pinned = lambda x, device=None: self.is_pinned(x)  # type: ignore[method-assign]
        # Structured operators have a kernel that a fallback does not replace.
        for full in torch._C._dispatch_get_registrations_for_dispatch_key(
            "CompositeExplicitAutogradNonFunctional"
        ):
            base, _, overload = full.removeprefix("aten::").partition(".")
            op = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
            if full.startswith("aten::") and op is not None and full != "aten::as_strided_":
                try:
                    aten.impl(full.removeprefix("aten::"), partial(self.run, op), key)
                except RuntimeError:  # one of ours above
                    continue


def _as_strided(x: torch.Tensor, size: Any, stride: Any, offset: int | None = None) -> torch.Tensor:
    return torch.ops.aten.as_strided.default.redispatch(_DISPATCH_CPU, x, size, stride, offset)


def _is_operand(x: Any) -> bool:
    return isinstance(x, Operand)


def _described(x: Any) -> Any:
    """What late work holds of an argument: numbers of the host are read now."""
    if is_fake(x):
        return Operand.of(x)
    if isinstance(x, torch.Tensor):
        return x.clone()
    return torch.device("cpu") if isinstance(x, torch.device) else x


def _on_cpu(x: Any) -> Any:
    return x.tensor() if _is_operand(x) else x


@contextmanager
def _apart() -> Iterator[None]:
    """Modes of whoever happens to call are not those of the work."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        yield


def _random_state(op: Any, given: Any) -> Any:
    """A context in which ``op`` draws what it would draw now; the generator goes on as if it had."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return _apart
    before = torch.random.get_rng_state()
    with _apart():
        args, kwargs = tree_map(_zeros, given, is_leaf=_is_operand)
        op(*args, **kwargs)

    @contextmanager
    def drawing() -> Iterator[None]:
        now = torch.random.get_rng_state()
        torch.random.set_rng_state(before)
        try:
            yield
        finally:
            torch.random.set_rng_state(now)

    return drawing


def _zeros(x: Any) -> Any:
    return torch.zeros(x.like.shape, dtype=x.like.dtype) if _is_operand(x) else x
