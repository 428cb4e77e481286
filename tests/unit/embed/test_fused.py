"""The fused softmax against autograd in float64, in Triton's interpreter, which runs on the CPU; and compiled."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch

from artifact_support import child_environment
from fused_reference import SHAPES, Inputs, autograd, inputs_of
from outcrop.embed import fused

BESIDE = Path(sys.prefix) / "beside"  # where scripts/setup.sh installs Triton
needs_triton = pytest.mark.skipif(
    not (BESIDE / "triton").is_dir()
    and importlib.util.find_spec("triton") is None
    and not os.environ.get("OUTCROP_STRICT"),
    reason="no Triton",
)
CHECK = """
import torch
from triton.runtime.interpreter import InterpreterBuilder
from fused_reference import SHAPES, autograd, inputs_of
from outcrop.embed import fused

made, product = [], InterpreterBuilder.create_dot
InterpreterBuilder.create_dot = lambda *arguments: made.append(1) or product(*arguments)

for n, chunk, k, dim in SHAPES:
    for scale in (1.0, 100.0)[: 2 if n == 40 else 1]:
        inputs = inputs_of(n, chunk, k, dim)
        inputs = (inputs[0] * scale, inputs[1] * scale, *inputs[2:])
        expected = autograd(inputs, chunk)
        for keep in (True, False):
            made.clear()
            found = fused.softmax(*inputs, chunk=chunk, keep=keep, precision="ieee")
            for ours, theirs in zip(found, expected, strict=True):
                assert ours.shape == theirs.shape, (n, chunk, k, dim, keep)
                torch.testing.assert_close(ours.double(), theirs, rtol=2e-4, atol=6e-5 * scale)
            plan = fused.Plan(n, k, dim, chunk, keep)
            sizes = [min(chunk, n - begin) for begin in range(0, n, chunk)]
            tiles = sum(-(-size // fused.ROWS) for size in sizes) * plan.column_blocks
            most = plan.chunks * plan.row_blocks * plan.column_blocks if n else 0
            assert tiles * plan.products <= len(made) <= most * plan.products, (plan, tiles, len(made))
            assert len(sizes) > 1 or len(made) == tiles * plan.products
print("the same")
"""
COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from cubin import resources
from outcrop.embed import fused, fused_kernels

arrays = "queries positive candidates wanted ids log_sums to_queries scores out".split()
divisible = (*arrays, "stride", "share")
for dim, keep in CASES:
    plan = fused.Plan(10_000, 1_000, dim, 2_000, keep)
    sizes = dict(DIM=dim, ROWS=fused.ROWS, COLUMNS=fused.COLUMNS, STEP=plan.step, PRECISION="tf32", KEEP=keep)
    names = ["forward", "candidate_gradients"] + ["query_gradients"] * (plan.parts > 1)
    for name in names:
        fn = getattr(fused_kernels, name)
        these = sizes | (dict(WHOLE=plan.parts == 1) if name == "forward" else {})
        signature = {a: "constexpr" if a in these else "i32" for a in fn.arg_names}
        signature |= {a: "*i64" if a in ("wanted", "ids") else "*fp32" for a in fn.arg_names if a in arrays}
        aligned = {(at,): [["tt.divisibility", 16]] for at, a in enumerate(fn.arg_names) if a in divisible}
        for arch in ARCHS:
            source = ASTSource(fn=fn, signature=signature, constexprs=these, attrs=aligned)
            made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=fused.LAUNCH)
            (needs,) = resources(made.asm["cubin"]).values()
            ptx = made.asm["ptx"]
            wide = dim % 4 == 0 and "cp.async.cg.shared.global" in ptx  # 16 bytes at a time, while it computes
            print(arch, dim, keep, name, made.metadata.shared, needs.registers, needs.stack_bytes, "mma" in ptx, wide)
"""
SHARED_BYTES = {
    80: 163 << 10,
    90: 227 << 10,
    100: 227 << 10,
}  # that a block may have; a processor has 1 KiB more
RESERVED_BYTES = 1 << 10  # of a block, CUDA's own
REGISTERS = 65_536  # of a processor


def child(code: str, **environment: str) -> str:
    paths = os.pathsep.join((child_environment()["PYTHONPATH"], str(BESIDE)))
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=child_environment() | {"PYTHONPATH": paths, "TRITON_DEFAULT_FP_FUSION": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")[:2]))


@needs_triton
def test_fused_softmax_equals_autograd():
    """Of every shape, with scores kept and made again; and with as many products of tiles as the plan says."""
    installed = not (BESIDE / "triton").is_dir()
    if installed and _version(metadata.version("triton")) < (3, 7) and _version(np.__version__) >= (2, 4):
        pytest.skip("the interpreter of Triton 3.6 fails with NumPy 2.4 and later")
    assert child(CHECK, TRITON_INTERPRET="1") == "the same\n"


@pytest.mark.parametrize(("dim", "again"), [(1, 4), (100, 4), (128, 4), (129, 14), (400, 44)])
def test_products_that_a_batch_takes(dim, again):
    """Scores, gradients of queries and of candidates, each once for every 128 dimensions, where scores are kept."""
    parts = -(-dim // 128)
    assert fused.Plan(10_000, 1_000, dim, 2_000, keep=True).products == 3 * parts
    assert fused.Plan(10_000, 1_000, dim, 2_000, keep=False).products == again


@pytest.mark.parametrize("keep", [True, False])
def test_scratch_of_a_plan(keep):
    """Counted by hand: 5 chunks of 2,000 queries, 32 columns of blocks, 6 shares of at most 11 blocks of queries."""
    plan = fused.Plan(10_000, 1_000, 100, 2_000, keep)
    assert (plan.chunks, plan.row_blocks, plan.column_blocks, plan.share, plan.shares) == (5, 63, 32, 352, 6)
    sums, sizes = 4 * 6 * 5 * 1_000 * 100, 4 * 6 * 10_000
    assert plan.scratch_bytes == sums + sizes + (4 * 10_000 * 1_024 if keep else 0)


KEPT = ((100, True), (400, True))
ALL = (*KEPT, (100, False), (400, False), (7, True))


@needs_triton
@pytest.mark.parametrize(
    ("arch", "cases"),
    [(90, KEPT), *(pytest.param(arch, ALL, marks=pytest.mark.slow) for arch in SHARED_BYTES)],
)
def test_kernels_compile_without_a_gpu(arch, cases, tmp_path):
    """For tensor cores, nothing spilled; two blocks fit a processor, and of kernels that make no score again also by
    their registers."""
    code = COMPILE.replace("ARCHS", f"[{arch}]").replace("CASES", repr(cases))
    lines = child(code, TRITON_CACHE_DIR=str(tmp_path)).splitlines()
    assert len(lines) == (5 if cases == KEPT else 12)
    for line in lines:
        _, dim, keep, _, *numbers, on_tensor_cores, wide = line.split()
        shared, registers, stack = map(int, numbers)
        assert (on_tensor_cores, wide) == ("True", str(int(dim) % 4 == 0)), line
        assert 2 * (shared + RESERVED_BYTES) <= SHARED_BYTES[arch] + RESERVED_BYTES, line
        assert stack == 0, line
        assert (2 if keep == "True" else 1) * 32 * fused.LAUNCH["num_warps"] * registers <= REGISTERS, line


TOLERANCES = {
    "tf32": {"rtol": 1e-2, "atol": 1e-2},
    "tf32x3": {"rtol": 1e-4, "atol": 1e-4},
    "ieee": {"rtol": 1e-4, "atol": 1e-4},
}


def compare(found: Inputs, inputs: Inputs, chunk: int, precision: str) -> None:
    for name, ours, theirs in zip(
        ("loss", "by queries", "by positive", "by candidates"), found, autograd(inputs, chunk), strict=True
    ):
        close = TOLERANCES[precision]
        torch.testing.assert_close(
            ours.cpu().double(), theirs, **close, msg=lambda text, name=name: f"{name}: {text}"
        )


def with_tf32(x: torch.Tensor) -> torch.Tensor:
    """Rounded to the ten bits of mantissa that tensor cores read."""
    return ((x.contiguous().view(torch.int32) + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)


@pytest.mark.parametrize("shape", SHAPES[:-2])
def test_what_a_gpu_gives_is_compared_as_a_whole(shape: tuple[int, int, int, int]):
    """Rounding as tensor cores do is let pass, each result that is wrong is seen, and so is one that is nothing."""
    inputs, chunk = inputs_of(*shape), shape[1]
    right = autograd(inputs, chunk)
    rounded = (with_tf32(inputs[0]), inputs[1], with_tf32(inputs[2]), *inputs[3:])
    compare(autograd(rounded, chunk), inputs, chunk, "tf32")
    for number in range(4):
        for wrong in (-right[number], right[number] * 1.2, torch.zeros_like(right[number])):
            if right[number].abs().max() > 0.2:
                with pytest.raises(AssertionError):
                    compare((*right[:number], wrong, *right[number + 1 :]), inputs, chunk, "tf32")


@pytest.fixture
def usual_precision() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")


def test_products_are_as_exact_as_torch_is_told(usual_precision: None):
    assert fused.precision_of_torch() == "tf32x3"
    for told, ours in (("high", "tf32"), ("medium", "tf32"), ("highest", "tf32x3")):
        torch.set_float32_matmul_precision(told)
        assert fused.precision_of_torch() == ours
    for told, ours in (("tf32", "tf32"), ("ieee", "tf32x3")):
        torch.backends.cuda.matmul.fp32_precision = told
        assert fused.precision_of_torch() == ours


@pytest.mark.gpu
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("precision", ["tf32", "tf32x3", "ieee"])
def test_on_a_gpu(precision, keep):
    for shape in SHAPES:
        inputs, chunk = inputs_of(*shape), shape[1]
        there = (x.cuda() for x in inputs)
        found = fused.softmax(*there, chunk=chunk, keep=keep, precision=precision)
        compare(found, inputs, chunk, precision)
