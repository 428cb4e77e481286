"""A manifest is read by those who know its version."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from pathlib import Path

import pytest

from outcrop.errors import ChecksumError, FormatError, IoError
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


GIVEN = Manifest(
    "outcrop.some",
    1,
    {},
    {"num_classes": 7, "text": "\u00e4"},
    {"lr": 0.1, "by": {"2": 1, "10": 2}},
    {"of": "ab"},
)


def test_every_character_of_a_manifest_counts(tmp_path: Path) -> None:
    """But for white space."""
    manifests.write(tmp_path, GIVEN)
    path, whole = tmp_path / "manifest.json", (tmp_path / "manifest.json").read_bytes()
    assert manifests.read(tmp_path, "outcrop.some", 1) == GIVEN
    for at in range(len(whole)):
        if chr(whole[at]).isspace():
            continue
        damaged = bytearray(whole)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match="manifest"):
            manifests.read(tmp_path, "outcrop.some", 1)
        with pytest.raises(FormatError, match="there"):
            manifests.parse("there", bytes(damaged))


def test_the_checksum_is_that_of_the_rest_and_no_part_of_the_digest(tmp_path: Path) -> None:
    manifests.write(tmp_path, GIVEN)
    told = json.loads((tmp_path / "manifest.json").read_text())
    checksum = told.pop("sha256")
    text = json.dumps(told, indent=1, sort_keys=True) + "\n"
    assert checksum == hashlib.sha256(text.encode()).hexdigest() == GIVEN.digest()
    (tmp_path / "manifest.json").write_text(text)  # as earlier versions wrote it
    assert manifests.read(tmp_path, "outcrop.some", 1) == GIVEN
    told["attributes"]["num_classes"] = 8
    (tmp_path / "manifest.json").write_text(json.dumps({**told, "sha256": checksum}))
    with pytest.raises(ChecksumError, match=r"manifest\.json says other than was written"):
        manifests.read_any(tmp_path)


@pytest.mark.parametrize("checksum", [None, "", 1, [], {}])
def test_a_checksum_of_another_kind_is_none(tmp_path: Path, checksum: object) -> None:
    told = json.loads(GIVEN.to_json())
    with pytest.raises(ChecksumError, match="there says other than was written"):
        manifests.parse("there", json.dumps({**told, "sha256": checksum}).encode())


def test_files_and_folders_are_removed_and_links_alone(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    (tmp_path / "folder" / "below").mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(kept)
    for name in ("folder", "file", "link"):
        manifests.remove(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept"]
    assert (kept / "file").read_text() == "x"


def test_what_cannot_be_removed_is_named_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system names what is below a folder by its own name alone."""

    def refused(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "plan")

    monkeypatch.setattr(shutil, "rmtree", refused)
    with pytest.raises(IoError, match=rf"{tmp_path} cannot be removed: Read-only file system"):
        manifests.remove(tmp_path)
