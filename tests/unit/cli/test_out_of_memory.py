"""Where the machine has no more memory, the command says so in one line, with what to do, and ends with status 1."""

from __future__ import annotations

import errno
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from outcrop import _core
from outcrop.cli import main, out_of_memory
from outcrop.errors import BudgetError, FormatError, IoError
from outcrop.importing.sources.frames import StreamTable
from outcrop.nn import sparse
from outcrop.runtime.runtime import Runtime

FAR_TOO_MUCH = 1 << 60  # bytes


def asked(what: Callable[[], Any], kind: type[Exception]) -> Exception:
    with pytest.raises(kind) as caught:
        what()
    return caught.value


def numpy_error() -> Exception:
    return asked(lambda: np.empty(FAR_TOO_MUCH, np.uint8), MemoryError)


def torch_error() -> Exception:
    return asked(lambda: torch.empty(FAR_TOO_MUCH, dtype=torch.uint8), RuntimeError)


def core_error() -> Exception:
    return asked(lambda: _core.Budget.create(2 * FAR_TOO_MUCH).empty("sorting", FAR_TOO_MUCH), IoError)


def arrow_error() -> Exception:
    return asked(lambda: pa.allocate_buffer(FAR_TOO_MUCH), pa.ArrowMemoryError)


def mapped_error() -> Exception:
    return asked(lambda: mmap.mmap(-1, FAR_TOO_MUCH), OSError)


def ended_with(error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Returns what a command says whose work ends with ``error``."""

    def app(**_: object) -> None:
        raise error

    monkeypatch.setattr(main, "app", app)
    monkeypatch.setattr(main.interruptions, "install", lambda: None)
    monkeypatch.setattr(main.interruptions, "end_at_once", lambda: None)
    monkeypatch.setattr(main.warnings, "showwarning", main.warnings.showwarning)
    monkeypatch.setenv("GOMP_SPINCOUNT", "1")
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == 1
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (numpy_error, "Unable to allocate"),
        (torch_error, "you tried to allocate"),
        (core_error, "'sorting'"),
        (arrow_error, "of size"),
        (mapped_error, "Cannot allocate memory"),
        (MemoryError, ""),
        (lambda: MemoryError("std::bad_alloc"), ""),
    ],
)
def test_whichever_library_gets_none(
    make: Callable[[], Exception],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = make()
    assert out_of_memory.ran_out(error)
    said = ended_with(error, monkeypatch, capsys)
    assert said.startswith("error: out of memory")
    assert named in said
    assert "bad_alloc" not in said
    assert said.endswith(
        "end other programs, give the command a smaller --memory, or raise what limits it (ulimit -v, or the memory of "
        "its container)"
    )


@pytest.mark.parametrize(
    "error",
    [
        BudgetError("a budget of 1 KiB is too small"),
        IoError(errno.ENOSPC, "the disk is full"),
        FormatError("g.oc is no graph"),
        FileNotFoundError(errno.ENOENT, "No such file", "g.oc"),
        IoError(errno.ENOMEM, "g.oc cannot be mapped into memory; raise the limit (ulimit -v)"),
    ],
)
def test_other_errors_say_what_they_said(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended_with(error, monkeypatch, capsys) == f"error: {error}"


def test_arrow_without_memory_is_no_torn_table(monkeypatch: pytest.MonkeyPatch) -> None:
    table = StreamTable("edges", pa.table({"src": [1], "dst": [2]}))

    def fail(*_: object) -> Any:
        raise pa.ArrowMemoryError("malloc of size 131072 failed")

    monkeypatch.setattr(table, "_batches", fail)
    with Runtime() as runtime, pytest.raises(pa.ArrowMemoryError):
        next(table.blocks(runtime, ["src"]))


def test_room_for_code_is_asked_for_before_torch_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch ends the process by a signal where it cannot map the code that it makes."""
    x, rowptr, col = (
        torch.eye(3),
        torch.tensor([0, 2], dtype=torch.int32),
        torch.tensor([0, 2], dtype=torch.int32),
    )

    def refuse(*_: object) -> Any:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    sparse._require_room_for_code.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(sparse.mmap, "mmap", refuse)
        with pytest.raises(IoError, match=r"code of sparse products cannot be mapped; .*ulimit -v") as raised:
            sparse.bag_sum(x, rowptr, col)
    assert raised.value.errno == errno.ENOMEM
    assert sparse.bag_sum(x, rowptr, col).tolist() == [[1, 0, 1]]
