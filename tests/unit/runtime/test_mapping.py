"""Files that cannot be mapped are named; others are what NumPy maps."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from artifact_support import memory_folder
from outcrop.errors import IoError
from outcrop.runtime.mapping import map_file, mapping
from outcrop.store import tensors
from outcrop.store.tensors import open_tensors


def test_a_map_is_that_of_numpy(tmp_path: Path) -> None:
    path = tmp_path / "x"
    np.arange(12, dtype=np.int32).tofile(path)
    np.testing.assert_array_equal(map_file(path, "<i4"), np.arange(12))
    found = map_file(path, "<i4", shape=(2, 5), offset=8, order="F")
    np.testing.assert_array_equal(found, np.arange(2, 12).reshape(2, 5, order="F"))
    with pytest.raises(FileNotFoundError, match="absent"):
        map_file(tmp_path / "absent", "<i4")


def test_what_has_no_room_in_the_address_space_is_named() -> None:
    with memory_folder() as folder:
        path = folder / "huge"
        with path.open("wb") as file:
            file.truncate(1 << 47)  # as much as a process can address
        with pytest.raises(IoError, match=rf"{path} cannot be mapped into memory: .*; free some") as raised:
            map_file(path, np.uint8)
        assert raised.value.errno == errno.ENOMEM


def test_errors_that_name_a_file_stay_as_they_are(tmp_path: Path) -> None:
    error = PermissionError(errno.EACCES, "denied", "there")
    with pytest.raises(PermissionError) as raised, mapping(tmp_path):
        raise error
    assert raised.value is error


@pytest.mark.parametrize(
    "error", [MemoryError("Cannot allocate memory (os error 12)"), RuntimeError("unable to mmap")]
)
def test_tensors_that_cannot_be_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Said by Rust and by torch in these ways."""
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(3)}, path)
    with open_tensors(path) as file:
        assert file.get_tensor("a").tolist() == [1.0] * 3

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(tensors, "safe_open", refuse)
    with (
        pytest.raises(IoError, match=rf"{path} cannot be mapped into memory: {str(error)[:6]}"),
        open_tensors(path),
    ):
        pass
