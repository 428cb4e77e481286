"""The script of docs/unified.md runs, and so it does with the two lines changed, with the same losses."""

from __future__ import annotations

import os
import re

import pytest

from support import REPOSITORY

pytestmark = pytest.mark.leaks(
    "env", reason="torch sets TORCHINDUCTOR_CACHE_DIR when a custom op is first called"
)

PAGE = (REPOSITORY / "docs" / "unified.md").read_text()


def scripts() -> tuple[str, str]:
    """Before and after."""
    (before,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (diff,) = re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL)
    changes = diff.splitlines()
    after = "import outcrop.unified\n" + before
    assert len(changes) == 4
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert (old[0], new[0]) == ("-", "+")
        assert after.count(old[1:] + "\n") == 1
        after = after.replace(old[1:] + "\n", new[1:] + "\n")
    return before, after


def losses(script: str, device: str) -> list[float]:
    chosen = 'device = "cuda" if torch.cuda.is_available() else "cpu"'
    assert chosen in script
    names: dict = {}
    exec(script.replace(chosen, f"device = {device!r}"), names)
    assert all(p.device.type == device for p in names["model"].parameters())
    return names["losses"]


@pytest.mark.skipif(bool(os.environ.get("OUTCROP_GPU_TESTS")), reason="of the CPU")
def test_two_lines_on_the_cpu():
    before, after = (losses(script, "cpu") for script in scripts())
    assert before == after
    assert before[-1] < before[0]


@pytest.mark.gpu
def test_two_lines_on_the_gpu():
    before, after = (losses(script, "cuda") for script in scripts())
    assert before[-1] < before[0]
    assert before == pytest.approx(after, rel=1e-4)
