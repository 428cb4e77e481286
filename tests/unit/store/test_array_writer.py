"""ArrayWriter: what is written while the next rows are gathered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import outcrop._core as _core
from outcrop.errors import IoError
from outcrop.runtime.pages import PAGE_BYTES
from outcrop.runtime.runtime import Runtime
from outcrop.store.arrays import ArrayWriter

Make = Callable[..., Runtime]
ROWS = np.random.default_rng(7).random((9_000, 5), np.float32)


@pytest.mark.parametrize("pages", [1, 2, 3, 16, 400])
@pytest.mark.parametrize("step", [1, 700, 9_000])
def test_the_file_is_the_rows_whatever_the_buffer(tmp_path: Path, make_runtime: Make, pages: int, step: int):
    """A buffer of one page has no halves; with more, one is filled while the other is written."""
    rows = ROWS[:1200] if step == 1 else ROWS
    runtime = make_runtime()
    writer = ArrayWriter(
        runtime, tmp_path, "x", "float32", (5,), page_sums=True, buffer_bytes=pages * PAGE_BYTES
    )
    assert runtime.budget.by_tag["write-buffer"].peak_bytes == (pages + 1) * PAGE_BYTES
    for start in range(0, len(rows), step):
        writer.append(rows[start : start + step])
    specs: dict = {}
    writer.finish_into(specs)
    content = (tmp_path / "x.bin").read_bytes()
    assert content[: rows.nbytes] == rows.tobytes()
    assert not any(content[rows.nbytes :])
    assert specs["x"].crc32c == _core.crc32c(rows.view(np.uint8).reshape(-1))
    sums = np.frombuffer((tmp_path / "x_page_crc.bin").read_bytes(), np.uint32)
    for page, found in enumerate(sums[: len(content) // PAGE_BYTES]):
        part = np.frombuffer(content, np.uint8)[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]
        assert found == _core.crc32c(part)


@pytest.mark.exact_io
def test_a_write_that_fails_is_told_of_at_the_latest_when_the_file_is_finished(
    tmp_path: Path, make_runtime: Make
):
    for room in (0, 3, 9):  # pages
        faults = _core.FaultPlan()
        faults.disk_full_after_bytes = room * PAGE_BYTES
        runtime = make_runtime(faults=faults)
        writer = ArrayWriter(runtime, tmp_path, f"x{room}", "float32", (5,), buffer_bytes=8 * PAGE_BYTES)
        written = 0

        def write(writer: ArrayWriter = writer) -> None:
            nonlocal written
            for start in range(0, len(ROWS), 100):
                writer.append(ROWS[start : start + 100])
                written += 100
            writer.finish()

        with pytest.raises(IoError, match=rf"x{room}\.bin"):
            write()
        # At most the half that failed, and the one that was filled meanwhile.
        assert written * 20 <= (room + 8 + 1) * PAGE_BYTES
        with pytest.raises(IoError, match=rf"x{room}\.bin"):
            writer.finish()
