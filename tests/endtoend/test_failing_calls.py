"""Calls on files and for memory fail one by one, and commands are killed at them (scripts/fail_calls.py): a share here,
all in ``make soak``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from artifact_support import child_environment, script_output
from support import REPOSITORY, script


@pytest.mark.slow
@pytest.mark.parametrize(
    "share",
    [
        ["--every", "101"],
        ["--kinds", "thread", "--every", "8"],
        ["--kinds", "memory", "--every", "11"],
        ["--kill", "--every", "29"],
    ],
)
def test_every_command_survives_or_names_what_failed(share: list[str]) -> None:
    assert " 0 wrong" in script_output("fail_calls", *share)[-1]


def test_what_is_wrong_is_found() -> None:
    """By what a command says and makes after a fault; the library's own part is that calls are counted at all."""
    module = script("fail_calls")
    job = module.Job("import", lambda _: None, ["import", "arrays:source", "g.oc"], lambda _: {})

    def said(status: int | None, text: str, *, made: bool = False, kind: str = "read") -> str:
        return module.wrong_of(module.Ended(status, text, 1, 1, "read"), made, job, kind)

    assert said(0, "", made=True) == ""
    assert said(0, "") == "status 0, and something else was made"
    assert said(1, "error: g.oc: Input/output error") == ""
    assert said(1, "error: /a/b cannot be read") == ""
    assert said(1, "error: source: Too many open files") == ""
    assert said(1, "error: [Errno 12] Cannot allocate memory") == "the error names no file"
    for text in (
        "error: out of memory: end other programs, or raise ulimit -v",
        "error: memory: smaller --memory",
    ):
        assert said(1, text, kind="memory") == ""
    for text in (
        "error: MemoryError",
        "error: g.oc is damaged",
        "error: out of memory",
        "error: g.oc (ulimit -v)",
    ):
        assert said(1, text, kind="memory") == "the error does not say that memory ran out"
    assert said(1, "") == "no error is said"
    assert said(1, "Traceback (most recent call last):") == "a traceback"
    assert (
        said(1, "error: RuntimeError: x.py This was not foreseen and may be a bug of Outcrop")
        == "it was not foreseen"
    )
    assert said(None, "") == "hung for 60 s"
    assert said(-11, "") == "ended by signal 11"
    assert said(3, "") == "status 3"


def test_a_kill_counts_as_one_where_the_command_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what a command that was killed leaves behind after it has run again is wrong."""
    module = script("fail_calls")
    ends = iter([module.Ended(-9, "", 3, 1, "write"), module.Ended(0, "", 0, 0, "")] * 2)
    monkeypatch.setattr(module, "run", lambda *_: next(ends))
    held = iter([{}, {"g.oc": b"1"}, {}, {"g.oc": b"1", module.BESIDE: [".g.oc.tmp"]}])
    job = module.Job(
        "import", lambda folder: folder.mkdir(), ["import"], lambda _: next(held), want={"g.oc": b"1"}
    )
    search = module.Search(None, tmp_path, lambda _: None)
    search.fail(job, "write", 3, module.KILL)
    assert (search.tried["import"], search.named["import"], search.wrong) == (1, 1, [])
    search.fail(job, "write", 3, module.KILL)
    assert search.wrong == [
        f"import: write 3, SIGKILL: write: then the same command makes other {[module.BESIDE]!r}"
    ]


PIECES = """
import ctypes, mmap, sys
library, at, once = ctypes.CDLL(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
libc, shared = ctypes.CDLL(None), mmap.mmap(-1, 4096)
libc.malloc.restype = libc.calloc.restype = libc.realloc.restype = libc.aligned_alloc.restype = ctypes.c_void_p
libc.mmap.restype, size = ctypes.c_void_p, ctypes.c_size_t
held = ctypes.c_void_p()
calls = [
    lambda n: libc.malloc(size(n)),
    lambda n: libc.calloc(size(n // 8), size(8)),
    lambda n: libc.realloc(None, size(n)),
    lambda n: libc.aligned_alloc(size(4096), size(n)),
    lambda n: libc.posix_memalign(ctypes.byref(held), size(64), size(n)) == 0,
    lambda n: libc.mmap(None, size(n), 3, 0x22, -1, 0) != ctypes.c_void_p(-1).value,
]
address = ctypes.addressof(ctypes.c_char.from_buffer(shared))
library.begin_failing(b"/nowhere", ctypes.c_void_p(address), ctypes.c_long(at), 12, once, 256)
found = [bool(call(n)) for n in (65536, 65528) for call in calls]
counted = int.from_bytes(shared[:8], sys.byteorder)
print(counted, *map(int, found))
"""


@pytest.mark.parametrize(
    ("at", "once", "wanted"),
    [
        (0, 1, [1] * 12),
        *((at, 1, [int(i != at - 1) for i in range(12)]) for at in range(1, 7)),
        (3, 0, [1, 1, 0, 0, 0, 0] + [1] * 6),
    ],
)
def test_the_library_fails_large_pieces_of_memory_alone(
    tmp_path: Path, at: int, once: int, wanted: list[int]
) -> None:
    """Of each way to ask for memory: first 64 KiB, then 8 bytes less, which is not counted."""
    library = tmp_path / "failing.so"
    source = REPOSITORY / "tests" / "faults" / "failing_calls.c"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    command = [sys.executable, "-c", PIECES, library, str(at), str(once)]
    environment = child_environment(LD_PRELOAD=str(library), PYTHONMALLOC="malloc")
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    counted, *found = map(int, said.split())
    assert counted == 6
    assert found == wanted
