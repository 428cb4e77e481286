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
from fused_reference import SHAPES, autograd, inputs_of
from outcrop.embed import fused

for columns in (2048, 16):
    fused.MOST_COLUMNS = columns
    for n, chunk, k, dim in SHAPES:
        for scale in (1.0, 100.0)[: 2 if n == 40 else 1]:
            inputs = inputs_of(n, chunk, k, dim)
            inputs = (inputs[0] * scale, inputs[1] * scale, *inputs[2:])
            expected = autograd(inputs, chunk)
            for most in (0, 1, 7, chunk, 2 * chunk + 3):
                found = fused.softmax(*inputs, chunk=chunk, most=most)
                for ours, theirs in zip(found, expected, strict=True):
                    assert ours.shape == theirs.shape, (n, chunk, k, dim, most)
                    torch.testing.assert_close(ours.double(), theirs, rtol=2e-4, atol=6e-5 * scale)
print("the same")
"""
COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from cubin import resources
from outcrop.embed import fused, fused_kernels

fn = fused_kernels.weigh
arrays = "scores positive wanted ids log_sums".split()
for k in (7, 1000, 2048, 5000):
    sizes = fused.tile_of(k) | {"K": k, "STRIDE": fused.Plan(1, k, 1, 1, 1).stride}
    signature = {a: "constexpr" if a in sizes else "i32" for a in fn.arg_names}
    signature |= {a: "*i64" if a in ("wanted", "ids") else "*fp32" for a in fn.arg_names if a in arrays}
    divisible = {(at,): [["tt.divisibility", 16]] for at, a in enumerate(fn.arg_names) if a == "scores"}
    for arch in ARCHS:
        source = ASTSource(fn=fn, signature=signature, constexprs=sizes, attrs=divisible)
        made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=fused.LAUNCH)
        (needs,) = resources(made.asm["cubin"]).values()
        wide = "ld.global.v4" in made.asm["ptx"]
        print(arch, k, made.metadata.shared, needs.registers, needs.stack_bytes, wide)
"""
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


@pytest.mark.parametrize("most", [1, 7, 20, 33, 47, 1000])
@pytest.mark.parametrize(("n", "chunk"), [(1, 5), (5, 5), (47, 20), (60, 20), (100, 7)])
def test_blocks_have_each_query_once_and_no_more_than_have_room(n, chunk, most):
    seen, scores = [], 0
    for block in fused.Plan(n, 3, 2, chunk, most).blocks():
        queries = np.arange(n)[block.queries]
        assert 0 < len(queries) == block.chunks * block.rows <= most
        owners = queries.reshape(block.chunks, block.rows) // chunk
        assert (owners == block.first + np.arange(block.chunks)[:, None]).all()
        assert block.more == (int(queries[0]) % chunk > 0)
        seen.extend(queries)
        scores = max(scores, len(queries))
    assert seen == list(range(n))
    assert scores * 4 * 4 <= fused.Plan(n, 3, 2, chunk, most).score_bytes


def test_scratch_of_a_plan():
    """Counted by hand: scores of 3,000 queries of 10,000, gradients of the candidates of 5 chunks, of each query three
    floats, one of them of 64 bits and all twice."""
    plan = fused.Plan(10_000, 999, 100, 2_000, 3_000)
    assert plan.stride == 1_000
    assert plan.scratch_bytes == 4 * 3_000 * 1_000 + 4 * 5 * 999 * 100 + 24 * 10_000


@needs_triton
@pytest.mark.parametrize("arch", [90, *(pytest.param(arch, marks=pytest.mark.slow) for arch in (80, 100))])
def test_kernels_compile_without_a_gpu(arch, tmp_path):
    """Nothing spilled, 16 bytes a load, and registers for 1,024 threads of a processor at least."""
    lines = child(COMPILE.replace("ARCHS", f"[{arch}]"), TRITON_CACHE_DIR=str(tmp_path)).splitlines()
    assert len(lines) == 4
    for line in lines:
        *numbers, wide = line.split()
        _, k, shared, registers, stack = map(int, numbers)
        assert shared <= 48 << 10, line  # what every block may have
        assert stack == 0, line
        assert 1024 * registers <= REGISTERS, line
        assert wide == str(k > 16), line


TOLERANCES = {
    "high": {"rtol": 1e-2, "atol": 1e-2},
    "highest": {"rtol": 1e-4, "atol": 1e-4},
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
    compare(autograd(rounded, chunk), inputs, chunk, "high")
    for number in range(4):
        for wrong in (-right[number], right[number] * 1.2, torch.zeros_like(right[number])):
            if right[number].abs().max() > 0.2:
                with pytest.raises(AssertionError):
                    compare((*right[:number], wrong, *right[number + 1 :]), inputs, chunk, "high")


@pytest.fixture
def usual_precision() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [2048, 16])
@pytest.mark.parametrize("precision", ["high", "highest"])
def test_on_a_gpu(precision, columns, usual_precision, monkeypatch):
    monkeypatch.setattr(fused, "MOST_COLUMNS", columns)
    torch.set_float32_matmul_precision(precision)
    for shape in SHAPES:
        inputs, chunk = inputs_of(*shape), shape[1]
        for most in (0, 7, 2 * chunk + 3):
            found = fused.softmax(*(x.cuda() for x in inputs), chunk=chunk, most=most)
            compare(found, inputs, chunk, precision)
