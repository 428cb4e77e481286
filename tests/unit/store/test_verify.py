"""``outcrop verify``: a bit that flips anywhere in the files of an artifact is found, also where nothing is stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import outcrop as oc
from artifact_support import manifest_at
from outcrop.errors import OutcropError
from outcrop.runtime.progress import SilentProgress
from outcrop.runtime.runtime import Runtime
from outcrop.store.remote_verify import verify_stored
from outcrop.store.verify import verify_artifact

QUIET = oc.Observer(progress=False)
pytestmark = pytest.mark.leaks(
    "thread", "fd", reason="libraries of object stores keep a thread and connections"
)


def artifacts(folder: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    parts = {
        "edges": rng.integers(0, 300, (2000, 2)),
        "features": rng.normal(size=(300, 21)).astype(np.float32),
        "labels": rng.integers(0, 3, 300),
    }
    graph = oc.import_graph(
        parts, folder / "g.oc", oc.ImportConfig(), splits={"train": np.arange(99)}, progress=False
    )
    sampling = oc.SampleConfig(fanouts=(3, 2), batch_size=40)
    run = oc.prepare(graph, folder / "g.run", sampling=sampling, epochs=1, memory="8MiB", observer=QUIET)
    return [graph.path, *(path.parent for path in run.path.rglob("manifest.json"))]


def test_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path) -> None:
    """At the first and last byte of each file, and at the last of its data and the first behind them."""
    for path in artifacts(tmp_path):
        arrays = manifest_at(path / "manifest.json")["arrays"].values()
        files = {one["file"]: one["shape"][0] * one["stride_bytes"] for one in arrays}
        verify_stored(f"file://{path}", SilentProgress())
        with Runtime() as runtime:
            verify_artifact(path, runtime)
            for name, data_bytes in files.items():
                held = (path / name).read_bytes()
                for at in {0, data_bytes - 1, data_bytes, len(held) - 1} & {*range(len(held))}:
                    changed = bytearray(held)
                    changed[at] ^= 4
                    (path / name).write_bytes(bytes(changed))
                    with pytest.raises(OutcropError, match="damaged"):
                        verify_artifact(path, runtime)
                    with pytest.raises(OutcropError, match="damaged"):
                        verify_stored(f"file://{path}", SilentProgress())
                (path / name).write_bytes(held)
            verify_artifact(path, runtime)
