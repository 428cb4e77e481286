"""torch's operators on the fake device: what comes out is allocated at the call, and computed by the CPU, late.

Shapes are those of torch's meta device. Where they depend on data, and where numbers are handed to the host, the host
waits for the current stream, as with CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

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
        return cls(x.data_ptr(), _meta(x.shape, x.stride(), x.dtype))

    @property
    def span(self) -> Span:
        return Span(self.address, _extent(self.like))

    def tensor(self) -> torch.Tensor:
        """On the CPU."""
        if not self.like.numel():
            return torch.empty_strided(self.like.shape, self.like.stride(), dtype=self.like.dtype)
        return tensor_over(self.address, self.like, _DLPACK_CPU, 0, ())


class Same(NamedTuple):
    """A result that is operand ``index``."""

    index: int


class View(NamedTuple):
    """A result in the memory of operand ``index``: ``like`` has its shape and strides."""

    index: int
    like: torch.Tensor
    offset: int


class New(NamedTuple):
    """A result in memory of its own; replaces operand ``index`` where that is one of ``out=`` and of another size."""

    like: torch.Tensor
    index: int = -1


_NOW = object()  # of results whose shapes depend on data
_OF_SHAPES = ("view", "as_strided_", "_reshape_alias", "unfold", "set_.source_Storage_storage_offset")
_SHAPED_BY_DEVICE = (
    "aten::_embedding_bag",
    "aten::_embedding_bag_forward_only",
)  # shapes of the meta device are those of CUDA


def is_fake(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type == NAME


@lru_cache(1 << 12)
def _meta(shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    """Never written to."""
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


def _mapped(f: Callable[[Any], Any], x: Any) -> Any:
    """``x`` with ``f`` of each leaf: torch's tree_map for lists, tuples and dicts, in a tenth of its time."""
    kind = type(x)
    if kind is list:
        return [_mapped(f, y) for y in x]
    if kind is tuple or (isinstance(x, tuple) and kind not in (Operand, Same, View, New)):
        return tuple([_mapped(f, y) for y in x])
    if kind is dict:
        return {key: _mapped(f, y) for key, y in x.items()}
    return f(x)


def _leaves(x: Any) -> list[Any]:
    found: list[Any] = []
    _mapped(found.append, x)
    return found


def _kind_of(x: Any) -> Any:
    """What the shapes of results depend on, hashable.

    Raises:
        TypeError: They may depend on more.
    """
    if isinstance(x, list | tuple):
        return (type(x).__name__, *map(_kind_of, x))
    if isinstance(x, dict):
        return ("dict", *((key, _kind_of(y)) for key, y in x.items()))
    if is_fake(x):
        return x.shape, x.stride(), x.dtype
    if isinstance(x, torch.Tensor) and x.dim() == 0:
        return "scalar", x.dtype
    if x is None or isinstance(x, _PLAIN):
        return type(x), x
    raise TypeError(f"results of {type(x)} are not remembered")


_PLAIN = (bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


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
        self._known: dict[Any, Any] = {}  # results, by operator and kinds of its arguments

    def new(self, shape: Any, dtype: torch.dtype | None, strides: Any = None) -> torch.Tensor:
        dtype = dtype or torch.get_default_dtype()
        like = torch.empty(tuple(shape), dtype=dtype, device="meta")
        if strides is not None:
            like = torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype, device="meta")
        return self._over(like)

    def _over(self, like: torch.Tensor) -> torch.Tensor:
        """A tensor in a new block, of the shape, strides and dtype of ``like``."""
        block, owner = self._gpu.allocator.allocate(_extent(like))
        made = tensor_over(block.address, like, DLPACK_EXTENSION, 0, owner)
        block.storage = made.untyped_storage()._cdata
        return made

    def run(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """``op``: what comes out is in new memory of the device, or in that of an operand."""
        self._gpu.called(str(op))
        try:
            key = op, torch.get_default_dtype(), _kind_of(args), _kind_of(kwargs)
            made = self._known.get(key)
        except TypeError:
            key = made = None
        if made is None:
            made = self._results(op, args, kwargs)
            resized = made is not _NOW and any(isinstance(x, New) and x.index >= 0 for x in _leaves(made))
            if key is not None and not resized:
                self._known[key] = made
        if made is _NOW:
            return self._run_now(op, args, kwargs)
        operands = [x for x in _leaves((args, kwargs)) if is_fake(x)]
        fresh: list[torch.Tensor] = []
        out = _mapped(lambda x: self._returned(x, operands, fresh), made)
        self._give(op, args, kwargs, out, fresh)
        return out

    def _results(self, op: Any, args: Any, kwargs: Any) -> Any:
        """What ``op`` returns, a Same, View or New for each tensor; _NOW: who wants to know computes it."""
        given: list[torch.Tensor] = []  # operands, of the meta device

        device = "cpu" if op._schema.name in _SHAPED_BY_DEVICE else "meta"

        def there(x: Any) -> Any:
            if is_fake(x):
                like = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
                given.append(like if device == "meta" else like.zero_())
                return like
            if isinstance(x, torch.Tensor) and x.dim() > 0:
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but found {NAME} and {x.device} in {op}"
                )
            return torch.device(device) if isinstance(x, torch.device) else x

        if any(not isinstance(x.type, (torch.TensorType, torch.ListType)) for x in op._schema.returns):
            return _NOW
        try:
            with _apart():
                before = _mapped(there, (list(args), kwargs))
                sizes = [x.shape for x in given]
                made = op(*before[0], **before[1])
        except (NotImplementedError, RuntimeError) as problem:
            if isinstance(problem, NotImplementedError) or torch.Tag.dynamic_output_shape in op.tags:
                return _NOW
            raise
        return _mapped(lambda x: _result(x, given, sizes), made)

    def _give(self, op: Any, args: Any, kwargs: Any, out: Any, fresh: list[torch.Tensor]) -> None:
        new = {id(x) for x in fresh}
        targets = [Operand.of(x) if id(x) in new else None for x in _leaves(out)]
        given = _mapped(_described, (list(args), kwargs))
        operands = [x for x in _leaves(given) if _is_operand(x)]
        drawn = _random_state(op, given)

        def compute() -> None:
            with _apart(), drawn():
                args, kwargs = _mapped(_on_cpu, given)
                made = _leaves(op(*args, **kwargs))
                for target, x in zip(targets, made, strict=True):
                    if target is not None:
                        assert x.shape == target.like.shape, "torch's meta device gives another shape"
                        target.tensor().copy_(x)

        spans = tuple(x.span for x in [*operands, *filter(None, targets)])
        self._gpu.give(Work(str(op), compute, spans))

    def _returned(self, x: Any, operands: list[torch.Tensor], fresh: list[torch.Tensor]) -> Any:
        """What is described: an operand, a view of one, or new."""
        if isinstance(x, Same):
            return operands[x.index]
        if isinstance(x, View):
            offset = operands[x.index].storage_offset() + x.offset
            return _as_strided(operands[x.index], x.like.shape, x.like.stride(), offset)
        if not isinstance(x, New):
            return x
        made = self._over(x.like)
        if x.index >= 0:
            original = operands[x.index]
            original.set_(made.untyped_storage(), 0, x.like.shape, x.like.stride())
            return original
        fresh.append(made)
        return made

    def _run_now(self, op: Any, args: Any, kwargs: Any) -> Any:
        """The host waits."""
        self._gpu.wait_for_current(str(op))
        given = _mapped(_described, (list(args), kwargs))
        for x in _leaves(given):
            if _is_operand(x):
                self._gpu.check(x.span)
        with _apart():
            args, kwargs = _mapped(_on_cpu, given)
            return _mapped(self._sent, op(*args, **kwargs))

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
        host = target if is_fake(source) else source
        if not late and host.is_contiguous() and self._gpu.ranges.crossed(Operand.of(host).span):
            raise RuntimeError("CUDA error: invalid argument")
        if not late and non_blocking:
            plain = host.is_contiguous() and source.dtype == target.dtype and source.shape == target.shape
            late = plain and self._gpu.ranges.holds(Operand.of(host).span)
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
        return x.is_cpu and x.numel() > 0 and self._gpu.ranges.holds(Span(x.data_ptr(), _extent(x)))

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


def _result(x: Any, given: list[torch.Tensor], sizes: list[torch.Size]) -> Any:
    """A result of the meta device, where operands are ``given``, which had ``sizes``."""
    if not isinstance(x, torch.Tensor):
        return x
    for index, ours in enumerate(given):
        if x is ours:
            return Same(index) if x.shape == sizes[index] else New(_like(x), index)
    for index, ours in enumerate(given):
        if x.untyped_storage()._cdata == ours.untyped_storage()._cdata:
            return View(index, _like(x), x.storage_offset())
    return New(_like(x))


def _like(x: torch.Tensor) -> torch.Tensor:
    return _meta(x.shape, x.stride(), x.dtype)


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
        args, kwargs = _mapped(_zeros, given)
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
