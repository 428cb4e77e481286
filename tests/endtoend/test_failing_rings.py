"""What goes through the io_uring of commands fails (scripts/fail_rings.py): a share here, all in ``make soak``."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from types import ModuleType

import pytest

from artifact_support import script_output
from support import script


@pytest.fixture
def fail_rings(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setitem(sys.modules, "fail_calls", script("fail_calls"))
    return script("fail_rings")


@pytest.mark.slow
def test_every_command_survives_or_names_what_failed() -> None:
    last = script_output("fail_rings", "--every", "211")[-1]
    if last.endswith("there is no io_uring here"):
        pytest.skip(last)
    faults, _, named, _, wrong, _ = last.split()
    assert int(wrong) == 0
    assert int(faults) > int(named) > 10  # of ten commands, each with two faults that last


def test_what_is_wrong_is_found(fail_rings: ModuleType) -> None:
    job = fail_rings.Job("import", lambda _: None, ["import", "arrays:source", "g.oc"], lambda _: {})

    def said(name: str, status: int | None, text: str, *, made: bool = False) -> str:
        ended = fail_rings.Ended(status, text, 0, 0, "")
        return fail_rings.wrong_of(ended, fail_rings.FAULTS[name], job, made=made)

    ring = "error: the kernel no longer serves the io_uring of this process (why): "
    for name in fail_rings.FAULTS:
        assert said(name, 0, "", made=True) == ""
        assert said(name, 0, "") == "status 0, and something else was made"
        assert said(name, -11, "") == "ended by signal 11"
        assert said(name, None, "").startswith("hung")
    assert said("EIO", 1, "error: cannot read g.oc/x.bin: Input/output error") == ""
    assert said("EIO", 1, "error: it failed") == "the error names no file"
    for name in ("EAGAIN", "EINTR", "short", "enter-EAGAIN", "enter-EBUSY", "enter-ENOMEM", "enter-EINTR"):
        assert said(name, 1, "error: cannot read g.oc/x.bin") == "it was noticed"
    assert (
        said("enter-EPERM", 1, ring + "run it again with OUTCROP_IO_BACKEND=pread in the environment") == ""
    )
    assert said("enter-EPERM", 1, ring) == "no remedy"
    assert said("enter-EPERM", 1, "Traceback" + ring + "OUTCROP_IO_BACKEND=pread") == "no remedy"


@pytest.mark.parametrize(
    ("name", "at", "fields"),
    [
        ("EIO", 4, {"fail_at_op": 4, "error_number": errno.EIO}),
        ("EAGAIN", 0, {"fail_at_op": 0, "error_number": errno.EAGAIN, "fail_attempts": 3}),
        ("enter-EBUSY", 2, {"fail_enter_at": 2, "error_number": errno.EBUSY, "fail_enters": 3}),
        ("enter-EPERM", 2, {"fail_enter_at": 2, "error_number": errno.EPERM}),
        ("short", 9, {"short_probability": 0.9, "seed": 9}),
    ],
)
def test_plans(fail_rings: ModuleType, name: str, at: int, fields: dict[str, float]) -> None:
    assert fail_rings.FAULTS[name].plan(at) == fields


def test_attempts_fail_as_often_as_planned(tmp_path: Path) -> None:
    """Of the engine that commands have; three retries are counted for the operation that is chosen, none for others."""
    from artifact_support import fault_plan
    from outcrop import _core

    (tmp_path / "x").write_bytes(bytes(range(256)) * 64)
    import numpy as np

    options = _core.IoOptions()
    options.faults = fault_plan(fail_at_op=1, fail_attempts=3, error_number=errno.EINTR)
    io = _core.BlockIo.create(options, _core.Budget.create(1 << 26))
    file = io.open(str(tmp_path / "x"), _core.OpenMode.read)
    for number in range(3):
        out = np.zeros(4096, np.uint8)
        io.read(file, 4096 * number, out)
        assert out.tobytes() == bytes(range(256)) * 16
        assert io.counters.retries == (3 if number else 0)
