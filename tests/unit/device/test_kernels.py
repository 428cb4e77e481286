"""Kernels are compiled for every architecture that matters, without a GPU, and kept."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

import cubin
from artifact_support import child_environment
from outcrop.device import kernels
from outcrop.device import launch as compiling
from outcrop.errors import DeviceError

WORDS = (1, 2, 4, 8, 16)
SAMPLING = "count draw fetch_32 fetch_64 labor compact mark number relabel advance look_up list_missing"
ENTRIES = {
    "assemble": {f"assemble_{word}" for word in WORDS},
    "gather": {f"gather_{word}_{bits}" for word in WORDS for bits in (32, 64)},
    "sample": {f"sample_{entry}" for entry in SAMPLING.split()},
    "io_queue": {"io_submit", "io_complete"},
}

REGISTERS = 64  # with 65,536 of them, half of a processor's 2,048 threads run
SPILLING = """
extern "C" __global__ void spills(int* out, int at) {
  __shared__ int kept[25];
  int local[500];
  for (int i = 0; i < 500; ++i) local[i] = out[i * at];
  kept[threadIdx.x % 25] = local[at];
  __syncthreads();
  out[threadIdx.x] = kept[at] + local[out[0]];
}
"""


def test_nothing_touches_cuda_before_it_is_asked_to():
    code = (
        "import sys, torch, torch_geometric; before = set(sys.modules); "  # these may look for some themselves
        "import outcrop, outcrop.unified.gather; from outcrop import train, embed_train; "
        "new = set(sys.modules) - before; "
        "print([m for m in new if m.split('.')[0] in ('cuda', 'triton')], torch.cuda.is_initialized())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], env=child_environment(), capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[] False\n"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", kernels.NAMES)
def test_every_kernel_compiles(name, arch):
    """And keeps what it works with in registers: no shared memory, and no stack."""
    pytest.importorskip("cuda.core")
    found = cubin.resources(compiling.compile_kernels(name, arch))
    assert set(found) == ENTRIES[name]
    for entry, needs in found.items():
        assert needs.registers <= REGISTERS, (entry, needs)
        assert needs.stack_bytes == 0, (entry, needs)
        assert needs.shared_bytes == 0, (entry, needs)


def test_what_a_kernel_takes_is_read_from_its_cubin(monkeypatch):
    pytest.importorskip("cuda.core")
    monkeypatch.setattr(kernels, "source", lambda name: SPILLING)
    for arch, reserved in (("sm_80", 0), ("sm_100", 1024)):  # CUDA's own, of a block that has any
        (needs,) = cubin.resources(compiling.compile_kernels("gather", arch)).values()
        assert needs.shared_bytes == 25 * 4 + reserved
        assert needs.stack_bytes >= 500 * 4
        assert 0 < needs.registers < 256


def test_the_names_are_those_of_the_files():
    assert {path.stem for path in kernels.FOLDER.glob("*.cu")} == set(kernels.NAMES) == set(ENTRIES)


def test_a_kernel_is_compiled_once(tmp_path, monkeypatch):
    made = []
    monkeypatch.setenv("OUTCROP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiling, "nvrtc_version", lambda: "13.0")
    monkeypatch.setattr(compiling, "compile_kernels", lambda name, arch: made.append((name, arch)) or b"code")
    assert [compiling.compiled("gather", arch) for arch in ("sm_80", "sm_80", "sm_90")] == [b"code"] * 3
    assert made == [("gather", "sm_80"), ("gather", "sm_90")]
    monkeypatch.setattr(kernels, "digest", lambda name: "other sources")
    compiling.compiled("gather", "sm_80")
    monkeypatch.setattr(compiling, "nvrtc_version", lambda: "13.1")
    compiling.compiled("gather", "sm_80")
    assert len(made) == 4
    assert len(list((tmp_path / "cache" / "kernels").iterdir())) == 4
    (tmp_path / "file").touch()
    monkeypatch.setenv("OUTCROP_CACHE", str(tmp_path / "file"))  # no folder: nothing can be kept
    assert compiling.compiled("gather", "sm_80") == b"code"


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    with pytest.raises(DeviceError, match=r"kernels cannot be compiled: .*pip install 'outcrop\[gpu\]'"):
        compiling.compiled("gather", "sm_90")


def test_an_old_cuda_core_is_named(monkeypatch):
    """cuda-core 0.4 can be imported and has nothing but its version."""
    monkeypatch.setattr(compiling, "nvrtc_version", lambda: "13.0")
    old = ModuleType("cuda.core")
    old.__version__ = "0.4.2"
    monkeypatch.setitem(sys.modules, "cuda.core", old)
    with pytest.raises(DeviceError, match=r"cuda-core 0\.4\.2 has no cuda\.core\.Program; pip install"):
        compiling.compile_kernels("gather", "sm_90")


def test_a_compiler_error_is_shown(monkeypatch):
    pytest.importorskip("cuda.core")
    monkeypatch.setattr(kernels, "source", lambda name: "this is no C++")
    with pytest.raises(DeviceError, match=r"'gather' cannot be compiled for sm_90: .*\n"):
        compiling.compile_kernels("gather", "sm_90")


@pytest.mark.parametrize(
    ("warps", "options", "grid", "block"),
    [
        (1, {}, 1, 256),
        (17, {}, 3, 256),
        (10_000, {"most_blocks": 4}, 4, 256),
        (10_000, {}, 32, 256),  # 16 blocks on each of two processors
        (3, {"block_threads": 32}, 3, 32),
        (10, {"block_threads": 160}, 2, 160),
        (11, {"block_threads": 160}, 3, 160),
    ],
)
def test_a_launch_has_the_grid_that_is_asked_for(monkeypatch, warps, options, grid, block):
    import torch

    launched = []
    core = SimpleNamespace(
        Device=lambda number: SimpleNamespace(set_current=lambda: None, create_stream=lambda stream: stream),
        LaunchConfig=lambda grid, block: (grid, block),
        launch=lambda stream, config, kernel, *arguments: launched.append((config, kernel, arguments)),
    )
    monkeypatch.setattr(compiling, "cuda_module", {"core": core}.__getitem__)
    monkeypatch.setattr(
        compiling, "_module", lambda name, number: SimpleNamespace(get_kernel=f"{name} {{}}".format)
    )
    monkeypatch.setattr(compiling, "_processors", lambda number: 2)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    compiling.launch("io_queue", "io_submit", torch.device("cuda"), warps, [7, 8], **options)
    assert launched == [((grid, block), "io_queue io_submit", (7, 8))]
