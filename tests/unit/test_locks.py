"""requirements/*.lock: what set-up installs is what pyproject.toml asks for, each file with its checksum."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from support import REPOSITORY, script


@pytest.fixture
def lock() -> ModuleType:
    return script("lock")


def test_locks_have_what_is_asked_for(lock: ModuleType) -> None:
    assert lock.problems() == []


def test_every_version_is_exact_and_every_file_has_a_checksum(lock: ModuleType) -> None:
    names = sorted(path.stem for path in (REPOSITORY / "requirements").glob("*.lock"))
    assert names == sorted(("build", *lock.EXTRAS, *lock.BESIDE))
    for name in names:
        for package, (version, sums) in lock.read(name).items():
            assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", package)
            assert re.fullmatch(r"[0-9][0-9a-z.]*", version), package
            assert sums, package
            assert all(re.fullmatch(r"[0-9a-f]{64}", one) for one in sums), package


def test_setup_installs_nothing_but_locks_and_torch() -> None:
    text = (REPOSITORY / "scripts" / "setup.sh").read_text()
    installs = [
        line.strip() for line in text.splitlines() if "pip install" in line and not line.startswith("#")
    ]
    assert len(installs) == 3
    assert (
        "pip install -c constraints.txt torch" in installs[0]
        or "pip install -c constraints.txt torch" in installs[1]
    )
    assert any("--no-deps --require-hashes" in line for line in installs)
    assert any("--no-build-isolation --editable" in line for line in installs)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (
            lambda text: re.sub(r"numpy==[^ ]*", "numpy==1.20.0", text),
            "run.lock has numpy 1.20.0, wanted: numpy<3,>=1.26",
        ),
        (
            lambda text: text.replace("pyarrow==", "pyarrows=="),
            "run.lock has pyarrow None, wanted: pyarrow<27,>=21",
        ),
    ],
)
def test_locks_that_do_not_fit_are_found(
    lock: ModuleType, tmp_path: Path, monkeypatch, spoil, problem: str
) -> None:
    for path in lock.LOCKS.glob("*.lock"):
        (tmp_path / path.name).write_text(spoil(path.read_text()) if path.stem == "run" else path.read_text())
    monkeypatch.setattr(lock, "LOCKS", tmp_path)
    assert f"requirements/{problem}" in lock.problems()


def test_files_of_other_systems_are_left_out(lock: ModuleType) -> None:
    files = {
        "numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl": True,
        "numpy-2.4.6-cp313-cp313-manylinux_2_27_aarch64.whl": True,
        "numpy-2.4.6.tar.gz": True,
        "numpy-2.4.6-py3-none-any.whl": True,
        "numpy-2.4.6-cp310-cp310-manylinux_2_27_x86_64.whl": False,
        "numpy-2.4.6-cp311-cp311-win_amd64.whl": False,
        "numpy-2.4.6-cp311-cp311-musllinux_1_2_x86_64.whl": False,
        "numpy-2.4.5-py3-none-any.whl": False,
        "numpy-nonsense": False,
    }
    assert {name: lock.is_of(name, "2.4.6") for name in files} == files


def test_the_bill_of_materials_names_what_is_compiled_in() -> None:
    bill = script("sbom")
    made = bill.with_compiled(
        {"metadata": {"component": {"name": "outcrop"}}}, {"liburing": "2.3", "nanobind": "2.9"}
    )
    inside = made["metadata"]["component"]["components"]
    assert [(one["name"], one["version"], one["purl"]) for one in inside] == [
        ("liburing", "2.3", "pkg:github/axboe/liburing@2.3"),
        ("nanobind", "2.9", "pkg:pypi/nanobind@2.9"),
    ]
    third = (REPOSITORY / "THIRD-PARTY.txt").read_text()
    assert all(name in third for name in bill.LICENSES if name != "libc++")
    with pytest.raises(ValueError, match="no licence is known of zlib"):
        bill.with_compiled({"metadata": {"component": {}}}, {"zlib": "1"})
