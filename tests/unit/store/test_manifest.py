"""A manifest is read by those who know its version."""

from __future__ import annotations

from pathlib import Path

import pytest

from outcrop.errors import FormatError
from outcrop.store import manifest as manifests
from outcrop.store.manifest import Manifest


def test_a_reader_names_the_versions_that_it_knows(tmp_path: Path) -> None:
    manifests.write(tmp_path, Manifest("outcrop.some", 2, {}, {}, {"of": 1}, {}))
    assert manifests.read(tmp_path, "outcrop.some", 2).version == 2
    assert manifests.read(tmp_path, "outcrop.some", (1, 2)).version == 2
    assert manifests.is_current(tmp_path, "outcrop.some", (1, 2), {"of": 1}, {})
    assert not manifests.is_current(tmp_path, "outcrop.some", (1, 3), {"of": 1}, {})
    with (
        pytest.raises(FormatError, match="has version 2, this Outcrop reads version 1 and 3: make it again"),
        manifests.opening(tmp_path, "outcrop.some", (1, 3)),
    ):
        pass


@pytest.mark.parametrize("version", ["2", None, [2], 2.5])
def test_a_version_that_is_no_number_is_refused(tmp_path: Path, version: object) -> None:
    manifests.write(tmp_path, Manifest("outcrop.some", version, {}, {}, {}, {}))  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="this Outcrop reads version 2"):
        manifests.read(tmp_path, "outcrop.some", (2,))
