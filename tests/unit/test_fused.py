"""The fused softmax against autograd in float64, in Triton's interpreter, which runs on the CPU; and compiled."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from artifact_support import child_environment

BESIDE = Path(sys.prefix) / "beside"  # where scripts/setup.sh installs Triton
needs_triton = pytest.mark.skipif(
    not (BESIDE / "triton").is_dir()
    and importlib.util.find_spec("triton") is None
    and not os.environ.get("OUTCROP_STRICT"),
    reason="no Triton",
)
SHAPES = [
    (1, 1, 1),
    (3, 5, 7),
    (64, 64, 16),
    (65, 130, 20),
    (130, 63, 100),
    (70, 40, 130),
    (200, 10, 300),
    (0, 4, 8),
    (4, 0, 8),
]
CHECK = """
import torch
from outcrop.embed import fused

def reference(queries, positive, candidates, wanted, ids):
    leaves = [x.double().requires_grad_() for x in (queries, positive, candidates)]
    scores = (leaves[0] @ leaves[2].T).masked_fill(wanted[:, None] == ids, -torch.inf)
    logits = torch.cat([leaves[1][:, None], scores], 1)
    loss = torch.nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64), reduction="sum")
    return loss, *torch.autograd.grad(loss, leaves)

for n, k, dim in {shapes}:
    for scale in (0.3, 30.0):
        torch.manual_seed(n + k)
        queries, candidates = torch.randn(n, dim) * scale, torch.randn(k, dim)
        positive, wanted, ids = torch.randn(n) * scale, torch.randint(0, 9, (n,)), torch.randint(0, 9, (k,))
        found = fused.softmax(queries, positive, candidates, wanted, ids, precision="ieee")
        for ours, theirs in zip(found, reference(queries, positive, candidates, wanted, ids), strict=True):
            assert ours.shape == theirs.shape, (n, k, dim)
            torch.testing.assert_close(ours, theirs.float(), rtol=2e-4, atol=2e-4 * scale)
print("the same")
"""
COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from outcrop.embed import fused, fused_kernels as kernels

common = dict(queries="*fp32", candidates="*fp32", wanted="*i64", ids="*i64", out="*fp32", n="i32", k="i32", dim="i32")
for name, more in (
    ("log_sum_exp", dict(positive="*fp32")),
    ("query_gradients", dict(log_sums="*fp32")),
    ("candidate_gradients", dict(log_sums="*fp32", share="i32")),
):
    fn = getattr(kernels, name)
    for arch in (80, 90):
        sizes = dict(ROWS=fused.ROWS, COLUMNS=fused.COLUMNS, STEP=fused.step_of(100), PRECISION="tf32")
        signature = {a: (common | more).get(a, "constexpr") for a in fn.arg_names}
        source = ASTSource(fn=fn, signature=signature, constexprs=sizes)
        made = triton.compile(source, target=GPUTarget("cuda", arch, 32))
        assert made.asm["cubin"][:4] == b"\\x7fELF"
        assert "mma" in made.asm["ptx"], (name, arch)
print("compiled")
"""


def child(code: str, **environment: str) -> str:
    paths = os.pathsep.join((child_environment()["PYTHONPATH"], str(BESIDE)))
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=child_environment() | {"PYTHONPATH": paths} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


@needs_triton
def test_fused_softmax_equals_autograd():
    assert child(CHECK.replace("{shapes}", repr(SHAPES)), TRITON_INTERPRET="1") == "the same\n"


@needs_triton
def test_kernels_compile_without_a_gpu(tmp_path):
    assert child(COMPILE, TRITON_CACHE_DIR=str(tmp_path)) == "compiled\n"


TOLERANCES = {"tf32": {"rtol": 1e-2, "atol": 1e-2}, "ieee": {"rtol": 1e-4, "atol": 1e-4}}
Inputs = tuple[torch.Tensor, ...]


def inputs_of(n: int, k: int, dim: int) -> Inputs:
    """Queries, positive, candidates, wanted and ids."""
    torch.manual_seed(n)
    queries, candidates, positive = torch.randn(n, dim) / 4, torch.randn(k, dim), torch.randn(n)
    return queries, positive, candidates, torch.randint(0, 9, (n,)), torch.randint(0, 9, (k,))


def autograd(inputs: Inputs) -> Inputs:
    """Loss and gradients by queries, positive and candidates, in float64."""
    queries, positive, candidates = (x.double().requires_grad_() for x in inputs[:3])
    scores = (queries @ candidates.T).masked_fill(inputs[3][:, None] == inputs[4], -torch.inf)
    logits = torch.cat([positive[:, None], scores], 1)
    loss = torch.nn.functional.cross_entropy(
        logits, torch.zeros(len(logits), dtype=torch.int64), reduction="sum"
    )
    return loss.detach(), *torch.autograd.grad(loss, (queries, positive, candidates))


def compare(found: Inputs, inputs: Inputs, precision: str) -> None:
    for name, ours, theirs in zip(
        ("loss", "by queries", "by positive", "by candidates"), found, autograd(inputs), strict=True
    ):
        close = TOLERANCES[precision]
        torch.testing.assert_close(
            ours.cpu().double(), theirs, **close, msg=lambda text, name=name: f"{name}: {text}"
        )


def with_tf32(x: torch.Tensor) -> torch.Tensor:
    """Rounded to the ten bits of mantissa that tensor cores read."""
    return ((x.contiguous().view(torch.int32) + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)


@pytest.mark.parametrize("shape", SHAPES[:-2])
def test_what_a_gpu_gives_is_compared_as_a_whole(shape: tuple[int, int, int]):
    """Rounding as tensor cores do is let pass, each gradient that is wrong is seen."""
    inputs = inputs_of(*shape)
    right = autograd(inputs)
    compare(autograd((with_tf32(inputs[0]), inputs[1], with_tf32(inputs[2]), *inputs[3:])), inputs, "tf32")
    for number in range(1, 4):
        for wrong in (-right[number], right[number] * 1.2):
            if right[number].abs().max() > 0.2:
                with pytest.raises(AssertionError):
                    compare((*right[:number], wrong, *right[number + 1 :]), inputs, "tf32")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_on_a_gpu(precision):
    from outcrop.embed import fused

    for shape in SHAPES:
        inputs = inputs_of(*shape)
        compare(fused.softmax(*(x.cuda() for x in inputs), precision=precision), inputs, precision)
