"""Modules imported in a thread beside what can be done without them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from outcrop.runtime.import_ahead import ImportAhead
from support import HANGS_SECONDS

GATED = "import gate\ngate.begun.set()\nassert gate.opened.wait({seconds})\ngate.imported.append(__name__)\n"


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """What modules of a test say, and wait for; the modules ``first_gated`` and ``then_gated``."""
    made = SimpleNamespace(begun=threading.Event(), opened=threading.Event(), imported=[])
    monkeypatch.setitem(sys.modules, "gate", made)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("first_gated", "then_gated"):
        (tmp_path / f"{name}.py").write_text(GATED.format(seconds=HANGS_SECONDS))
    yield made
    for name in ("first_gated", "then_gated"):
        sys.modules.pop(name, None)


def test_the_caller_goes_on_while_modules_are_imported(gate: SimpleNamespace) -> None:
    ahead = ImportAhead("first_gated", "then_gated")
    assert gate.begun.wait(HANGS_SECONDS)
    assert ahead.running
    assert gate.imported == []
    gate.opened.set()
    ahead.join()
    assert not ahead.running
    assert gate.imported == ["first_gated", "then_gated"]
    assert {"first_gated", "then_gated"} <= set(sys.modules)


@pytest.mark.parametrize("error", [ImportError("no such library"), MemoryError(), SystemExit(3)], ids=repr)
def test_an_error_of_the_import_is_raised_where_it_is_joined(
    tmp_path: Path, gate: SimpleNamespace, error: BaseException
) -> None:
    (tmp_path / "then_gated.py").write_text(f"raise {error!r}\n")
    gate.opened.set()
    ahead = ImportAhead("first_gated", "then_gated")
    with pytest.raises(type(error)) as raised:
        ahead.join()
    assert raised.value.args == error.args
    assert gate.imported == ["first_gated"]
    with pytest.raises(type(error)):  # whoever asks again does not get half of it
        ahead.join()


def test_what_is_there_needs_no_thread() -> None:
    before = threading.active_count()
    ahead = ImportAhead("json", "threading")
    assert threading.active_count() == before
    assert not ahead.running
    ahead.join()
