"""CSV files where the system refuses threads: Arrow would wait for its own for ever."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import outcrop as oc


def test_a_refused_thread_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "triples").mkdir()
    for name in ("train", "valid", "test"):
        (tmp_path / "triples" / f"{name}.txt").write_text("a\tr\tb\nb\tr\ta\n")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(oc.IoError, match="another thread cannot be started"):
            oc.import_triples(tmp_path / "triples", tmp_path / "t.kg", progress=False)
    assert not (tmp_path / "t.kg").exists()
    oc.import_triples(tmp_path / "triples", tmp_path / "t.kg", progress=False)
